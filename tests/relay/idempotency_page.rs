//! `docs/idempotency.md`: its receivers, as they stand there, do the work of a message once, however often it comes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::Proxy;
use outboxd_test_support::tools::tool;
use outboxd_test_support::{guests, wait_for};

use crate::page::{block, execute, number, tcp_url};
use crate::stage::{PATIENCE, Stage};

const PAGE: &str = include_str!("../../docs/idempotency.md");

/// A receiver in a process group of its own: `go run` starts another process.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// The status of one POST of the message.
fn post(port: u16, id: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let length = body.len();
    let head =
        format!("POST / HTTP/1.1\r\nhost: t\r\nconnection: close\r\nwebhook-id: {id}\r\ncontent-length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split(' ').nth(1)?.to_owned())
}

/// So many fresh ids are raced for.
const RACES: i64 = 5;

/// The statuses of eight POSTs of one message that set out together.
fn eight_at_once(port: u16, id: &str, body: &str) -> Vec<Option<String>> {
    let start = Barrier::new(8);
    let send = || {
        start.wait();
        post(port, id, body)
    };
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
        requests.into_iter().map(|request| request.join().expect("no panic")).collect()
    })
}

fn works_once(heading: &str, file: &str, command: impl FnOnce(&std::path::Path) -> Command) {
    use std::os::unix::process::CommandExt as _;
    let stage = Stage::postgres();
    execute(&stage.database, block(PAGE, "Idempotent receivers"));
    execute(&stage.database, "create table invoices (order_id bigint not null)");
    let proxy = Proxy::before_postgres(TestPostgres::shared().socket_folder());
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let program = stage.path().join(file);
    std::fs::write(&program, block(PAGE, heading).replace("8080", &port.to_string())).expect("written");
    let mut command = command(&program);
    command.env("DATABASE_URL", tcp_url(&proxy, &stage.database)).process_group(0);
    let _receiver = Receiver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    assert!(wait_for(PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok()), "it never listened");
    let target = format!("http://127.0.0.1:{port}");
    let manifest =
        format!("topics = [\"orders\"]\n[grants]\nhosts = [\"{target}\"]\n[settings]\nurl = \"{target}/\"\n");
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    let id = stage.publish("orders", r#"{"order": 7}"#);
    let _relay = stage.relay();
    stage.wait_until(&id, "delivered");

    let again = eight_at_once(port, &id, r#"{"order": 7}"#);
    // An id that none of them finds committed: a receiver that looks first and then works books it several times.
    let fresh: Vec<_> = (8..8 + RACES)
        .flat_map(|order| eight_at_once(port, &uuid::Uuid::now_v7().to_string(), &format!("{{\"order\": {order}}}")))
        .collect();

    let all_are_taken = |statuses: &[Option<String>]| statuses.iter().all(|status| status.as_deref() == Some("204"));
    assert!(all_are_taken(&again), "{again:?}");
    assert!(all_are_taken(&fresh), "{fresh:?}");
    assert_eq!(number(&stage.database, "select count(*) from invoices where order_id = 7"), 1);
    assert_eq!(number(&stage.database, "select count(distinct order_id) from invoices"), 1 + RACES);
    assert_eq!(number(&stage.database, "select count(*) from invoices"), 1 + RACES);
}

#[test]
fn python() {
    let Some(python) = tool("python") else { return };
    works_once("Python", "receiver.py", |program| {
        let mut command = Command::new(python.join("bin/python"));
        command.arg(program);
        command
    });
}

#[test]
fn javascript() {
    let Some(node) = tool("node") else { return };
    works_once("JavaScript", "receiver.js", |program| {
        let mut command = Command::new("node");
        command.env("NODE_PATH", node.join("node_modules")).arg(program);
        command
    });
}

#[test]
fn go() {
    let (Some(go), Some(path)) = (tool("go"), tool("go-pq")) else { return };
    works_once("Go", "receiver.go", |program| {
        let mut command = Command::new(go.join("bin/go"));
        // Debian's packages of Go modules lie in a GOPATH.
        command.env("GO111MODULE", "off").env("GOPATH", path).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        command.arg("run").arg(program);
        command
    });
}
