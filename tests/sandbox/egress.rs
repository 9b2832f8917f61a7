use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outboxd::handler::Handled;
use outboxd::plugin::egress::{Resolve, TlsRoots};
use outboxd::plugin::{OnePlugin, SandboxOptions};
use outboxd_core::Outcome;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::guest::{TELL, gets_its_payload, sends_with};
use crate::harness::{call, error, load, load_with, options, word};
use crate::server::{Server, answer};

/// Names that mean what a test says: each look-up takes the next answer, and the last one stays.
#[derive(Default)]
pub(crate) struct Names {
    answers: Mutex<std::collections::HashMap<String, Vec<Vec<IpAddr>>>>,
    pub(crate) lookups: AtomicUsize,
}

impl Names {
    pub(crate) fn set(&self, name: &str, answers: &[&[&str]]) {
        let parse = |ips: &&[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.answers.lock().unwrap().insert(name.into(), answers.iter().map(parse).collect());
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send + 'a>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        let answer = answers.get_mut(name).map(|left| if left.len() > 1 { left.remove(0) } else { left[0].clone() });
        Box::pin(async move { answer.ok_or_else(|| std::io::Error::other("no such name")) })
    }
}

fn tls_file(name: &str) -> PathBuf {
    outboxd_test_support::repository().join("tests/sandbox/tls").join(name)
}

fn with_names(names: &Arc<Names>) -> SandboxOptions {
    SandboxOptions {
        resolver: names.clone(),
        roots: TlsRoots { extra_ca: vec![tls_file("ca.pem")], ..TlsRoots::default() },
        ..options()
    }
}

fn grant(server: &Server) -> String {
    format!("[limits]\ndeadline = \"6s\"\n[grants]\nhosts = [\"{}\"]", server.url())
}

async fn get(plugin: &OnePlugin, url: &str) -> Handled {
    call(plugin, url).await
}

#[tokio::test]
async fn a_request_goes_out_in_origin_form_with_the_hosts_own_headers() {
    let server = Server::start(|stream, _| answer(stream, "200 OK", "thanks"));
    let headers = [
        ("host", "evil.example"),
        ("content-length", "999"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("te", "trailers"),
        ("x-mine", "yes"),
    ];
    let guest = sends_with("POST", &format!("{}/hook?x=1#frag", server.url()), &headers, "{\"a\":1}", TELL);
    let plugin = load(&guest, &grant(&server)).await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!(handled.outcome, Outcome::Cancel { error: "thanks".into() });
    assert_eq!(handled.http_status, Some(200));
    assert_eq!(handled.response_excerpt.as_deref(), Some("thanks"));
    let request = server.requests().remove(0);
    let mut lines: Vec<&str> = request.split("\r\n").collect();
    assert_eq!(lines.remove(0), "POST /hook?x=1 HTTP/1.1");
    assert_eq!(lines.pop(), Some("{\"a\":1}"));
    lines.retain(|line| !line.is_empty());
    lines.sort_unstable();
    assert_eq!(lines, ["content-length: 7", &format!("host: {}", server.address), "x-mine: yes"]);
}

#[tokio::test]
async fn connections_are_kept_and_used_again() {
    let server = Server::start(|stream, _| answer(stream, "200 OK", "ok"));
    let plugin = load(&gets_its_payload(), &grant(&server)).await.unwrap();

    for _ in 0..5 {
        assert_eq!(word(&get(&plugin, &server.url()).await.outcome), "cancelled");
    }

    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_redirect_is_an_answer_like_any_other_and_is_not_followed() {
    let canary = Server::start(|stream, _| answer(stream, "200 OK", "canary"));
    for location in [
        canary.url(),
        "http://169.254.169.254/latest".into(),
        "//127.0.0.1:1/".into(),
        "https://hooks.example.com/".into(),
    ] {
        let server = Server::start(move |stream, _| {
            let _ = write!(
                stream,
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 5\r\n\r\nmoved"
            );
        });
        let plugin = load(&gets_its_payload(), &grant(&server)).await.unwrap();

        let handled = get(&plugin, &server.url()).await;

        assert_eq!(handled.outcome, Outcome::Cancel { error: "moved".into() });
        assert_eq!(handled.http_status, Some(307));
        // The guest's own second request is checked like its first.
        let second = get(&plugin, &canary.url()).await;
        assert!(error(&second.outcome).starts_with("0 [denied"), "{second:?}");
    }
    assert_eq!(canary.connections(), 0);
}

/// One server, what it does, and how a guest's request to it must end.
async fn meets(what: &str, server: Server, expect: &str) {
    let plugin = load(&gets_its_payload(), &grant(&server)).await.unwrap();
    let started = Instant::now();

    let handled = get(&plugin, &format!("{}/", server.url())).await;

    let came_to = format!("{} {}", word(&handled.outcome), error(&handled.outcome));
    assert!(came_to.starts_with(expect), "{what}: expected {expect:?}, came to {came_to:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "{what}: took {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_never_answer_end_at_the_deadline() {
    let wait = || std::thread::sleep(Duration::from_secs(15));
    tokio::join!(
        meets("silent", Server::start(move |_, _| wait()), "deadline"),
        meets("does not even read", Server::silent(move |_, _| wait()), "deadline"),
        meets(
            "drips its head",
            Server::start(|stream, _| {
                for byte in
                    b"HTTP/1.1 200 OK\r\nx-slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".iter().cycle().take(100)
                {
                    let _ = stream.write_all(&[*byte]);
                    std::thread::sleep(Duration::from_millis(150));
                }
            }),
            "deadline"
        ),
        meets(
            "drips its body",
            Server::start(|stream, _| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
                for _ in 0..100 {
                    let _ = stream.write_all(b"x");
                    std::thread::sleep(Duration::from_millis(150));
                }
            }),
            "deadline"
        ),
        meets(
            "stops half-way",
            Server::start(move |stream, _| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf");
                wait();
            }),
            "deadline"
        ),
    );
}

fn endless(stream: &mut TcpStream, head: &str, chunk: &[u8]) {
    let _ = stream.write_all(head.as_bytes());
    // A bound of its own: 1 GiB.
    for _ in 0..(1 << 30) / chunk.len() {
        if stream.write_all(chunk).is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_send_too_much_or_nonsense_are_cut_off() {
    let zeros = vec![b'0'; 64 << 10];
    meets(
        "endless body",
        Server::start({
            let zeros = zeros.clone();
            move |stream, _| endless(stream, "HTTP/1.1 200 OK\r\n\r\n", &zeros)
        }),
        "retry 5 [the response bodies",
    )
    .await;
    meets(
        "endless chunks",
        Server::start(|stream, _| {
            let chunk = [b"1000\r\n".as_slice(), &[b'0'; 4096], b"\r\n"].concat();
            endless(stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &chunk);
        }),
        "retry 5 [the response bodies",
    )
    .await;
    meets(
        "endless head",
        Server::start(|stream, _| endless(stream, "HTTP/1.1 200 OK\r\n", b"x-header: some value\r\n")),
        "retry 6",
    )
    .await;
    meets(
        "one endless header",
        Server::start(move |stream, _| endless(stream, "HTTP/1.1 200 OK\r\nx: ", &zeros)),
        "retry 6",
    )
    .await;
    meets(
        "endless interim answers",
        Server::start(|stream, _| endless(stream, "", b"HTTP/1.1 100 Continue\r\n\r\n")),
        "",
    )
    .await;
    meets("closes at once", Server::silent(|_, _| {}), "retry 6").await;
    meets(
        "closes after the request",
        Server::start(|stream, _| drop(stream.shutdown(std::net::Shutdown::Both))),
        "retry 6",
    )
    .await;
    meets(
        "closes half-way",
        Server::start(|stream, _| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf");
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }),
        "retry 6 [not HTTP",
    )
    .await;
    meets(
        "speaks no HTTP",
        Server::start(|stream, _| drop(stream.write_all(b"220 mail.example ESMTP\r\n"))),
        "retry 6",
    )
    .await;
    meets(
        "two lengths",
        Server::start(|stream, _| {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"))
        }),
        "retry 6",
    )
    .await;
    meets(
        "a length beyond numbers",
        Server::start(|stream, _| {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n"))
        }),
        "retry 6",
    )
    .await;
    meets(
        "two answers to one request",
        Server::start(|stream, _| {
            answer(stream, "200 OK", "first");
            answer(stream, "200 OK", "second");
        }),
        "cancelled first",
    )
    .await;
}

#[tokio::test]
async fn the_host_never_decompresses() {
    // 1 KiB of gzip that says 1 MiB: the guest gets the bytes that were sent.
    let bomb = vec![0x1f_u8, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let server = Server::start(move |stream, _| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len());
        let _ = stream.write_all(&bomb);
    });
    let length = "(if (i32.ne (i32.load (i32.const 148)) (i32.const 10)) (then unreachable)) (call $ok)";
    let plugin = load(&sends_with("GET", &server.url(), &[], "", length), &grant(&server)).await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);
}

/// A TLS server with one of the certificates beside this file.
fn tls_server(certificate: &str) -> Server {
    let chain = vec![CertificateDer::from_pem_file(tls_file(&format!("{certificate}.pem"))).unwrap()];
    let key = PrivateKeyDer::from_pem_file(tls_file(&format!("{certificate}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    Server::silent(move |stream, requests| {
        let mut connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, stream);
        if let Some(request) = crate::server::read_request(&mut tls) {
            requests.lock().unwrap().push(request);
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret");
        }
    })
}

async fn meets_tls(what: &str, server: Server, expect: &str) {
    let names = Arc::new(Names::default());
    names.set("hooks.example.com", &[&["127.0.0.1"]]);
    let port = server.address.port();
    let manifest = format!(
        "[limits]\ndeadline = \"8s\"\n[grants]\nhosts = [\"https://hooks.example.com:{port}\"]\nprivate_networks = [\"127.0.0.1/32\"]"
    );
    let plugin = load_with(with_names(&names), &gets_its_payload(), &manifest).await.unwrap();

    let handled = get(&plugin, &format!("https://hooks.example.com:{port}/")).await;

    let came_to = format!("{} {}", word(&handled.outcome), error(&handled.outcome));
    assert!(came_to.starts_with(expect), "{what}: expected {expect:?}, came to {came_to:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_certificate_of_a_trusted_authority_for_this_name_and_this_day_is_accepted() {
    meets_tls("good", tls_server("good"), "cancelled secret").await;
    for bad in ["expired", "early", "elsewhere", "stranger", "self-signed"] {
        meets_tls(bad, tls_server(bad), "retry 3 [TLS failed: the certificate is not trusted").await;
    }
    meets_tls("speaks no TLS", Server::start(|stream, _| answer(stream, "200 OK", "plain")), "retry 3").await;
    // A server that offers TLS 1.0 and no more: ServerHello with version 0x0301.
    let old = Server::silent(|stream, _| {
        let mut hello = vec![0x16, 0x03, 0x01, 0x00, 0x2a, 0x02, 0x00, 0x00, 0x26, 0x03, 0x01];
        hello.extend([7; 32]);
        hello.extend([0x00, 0x00, 0x2f, 0x00]);
        let _ = stream.write_all(&hello);
        std::thread::sleep(Duration::from_secs(1));
    });
    meets_tls("TLS 1.0", old, "retry 3").await;
    let silent = Server::silent(|_, _| std::thread::sleep(Duration::from_secs(12)));
    meets_tls("a handshake without end", silent, "retry 3 [TLS failed: no handshake").await;
}

#[tokio::test]
async fn a_name_is_resolved_once_and_every_address_of_it_is_checked() {
    let server = Server::start(|stream, _| answer(stream, "200 OK", "inside"));
    let names = Arc::new(Names::default());
    let port = server.address.port();
    // Public first, loopback at the second look: there is no second look.
    names.set("rebinds.example.com", &[&["203.0.114.1"], &["127.0.0.1"]]);
    names.set("mixed.example.com", &[&["203.0.114.1", "127.0.0.1"]]);
    names.set("home.example.com", &[&["127.0.0.1"]]);
    names.set("mapped.example.com", &[&["::ffff:127.0.0.1"]]);
    let manifest = format!("[limits]\ndeadline = \"1s\"\n[grants]\nhosts = [\"http://*.example.com:{port}\"]");
    let plugin = load_with(with_names(&names), &gets_its_payload(), &manifest).await.unwrap();

    for name in ["mixed", "home", "mapped"] {
        let handled = get(&plugin, &format!("http://{name}.example.com:{port}/")).await;
        assert!(error(&handled.outcome).contains("is not a public address"), "{name}: {handled:?}");
    }
    let before = names.lookups.load(Ordering::SeqCst);
    get(&plugin, &format!("http://rebinds.example.com:{port}/")).await;

    assert_eq!(names.lookups.load(Ordering::SeqCst) - before, 1);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_relays_own_listeners_and_the_database_are_out_of_reach_even_where_all_is_granted() {
    let admin = Server::start(|stream, _| answer(stream, "200 OK", "admin"));
    let names = Arc::new(Names::default());
    names.set("admin.example.com", &[&["127.0.0.1"]]);
    let options = SandboxOptions { refused_addresses: vec![admin.address], ..with_names(&names) };
    let manifest =
        "[grants]\nhosts = [\"http://127.0.0.1:*\", \"http://*.example.com:*\"]\nprivate_networks = [\"127.0.0.0/8\"]";
    let plugin = load_with(options, &gets_its_payload(), manifest).await.unwrap();

    for host in ["127.0.0.1", "admin.example.com"] {
        let handled = get(&plugin, &format!("http://{host}:{}/", admin.address.port())).await;
        assert!(error(&handled.outcome).contains("own listener or its database"), "{handled:?}");
    }

    assert_eq!(admin.connections(), 0);
}
