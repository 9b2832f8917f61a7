//! No secret leaves: canaries in every place where one is held, and a look into every place where one might show.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::{guests, wait_for};

use crate::stage::{PATIENCE, Stage};

const PASSWORD: &str = "canary-of-the-database";
const TOKEN: &str = "canary-of-the-admin";
const KEY: &str = "canary-of-the-shop";

/// The whole answer to a GET, head and body.
fn get(port: u16, path: &str, headers: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

fn files_hold(folder: &Path, canary: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.into_iter().any(|path| match path.is_dir() {
        true => files_hold(&path, canary),
        false => {
            let bytes = std::fs::read(&path).unwrap_or_default();
            bytes.windows(canary.len()).any(|window| window == canary.as_bytes())
        }
    })
}

#[test]
fn no_secret_shows_in_logs_metrics_admin_answers_errors_rows_or_files() {
    let receiver = Receiver::start();
    // The first answer fails, so that an error and a response are kept too.
    receiver.script([Answer::status(503).body("not now")]);
    let stage = Stage::postgres();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let settings = format!(
        "database = \"{}&password={PASSWORD}\"\nplugins = {:?}\nadmin = \"127.0.0.1:{port}\"\n\
         admin_token = {{ env = \"ADMIN_TOKEN\" }}\n\
         [relay]\npoll_interval = \"200ms\"\n[retry]\nbase = \"50ms\"\nmax = \"200ms\"\n\
         [sandbox]\nprivate_networks = [\"127.0.0.0/8\"]\n[secrets]\nSHOP_KEY = {{ env = \"SHOP_KEY\" }}\n",
        stage.database,
        stage.plugins(),
    );
    std::fs::write(stage.config(), settings).expect("written");
    let manifest = format!(
        "topics = [\"orders\"]\n[grants]\nhosts = [\"{0}\"]\n[grants.secrets]\nSHOP_KEY = [\"{0}\"]\n\
         [settings]\nurl = \"{0}/hooks\"\nsecret = \"SHOP_KEY\"\n\"header.authorization\" = \"Bearer {{{{secret:SHOP_KEY}}}}\"\n",
        receiver.url(""),
    );
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    let id = stage.publish("orders", "{}");
    // Not the cache that all tests fill, so that nothing of others is looked through.
    let cache = stage.path().join("cache");
    let environment = [
        ("SHOP_KEY", KEY),
        ("ADMIN_TOKEN", TOKEN),
        ("OUTBOXD_LOG", "trace"),
        ("OUTBOXD_CACHE", cache.to_str().expect("text")),
    ];
    let relay = stage.relay_in(&environment);
    let message = stage.wait_until(&id, "delivered").to_string();

    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let ready = wait_for(PATIENCE, || get(port, "/readyz", "").contains(" 200 "));
    assert!(ready, "{}", get(port, "/readyz", ""));
    let answers: Vec<String> = [
        "/metrics",
        "/healthz",
        "/api/stats",
        "/api/plugins",
        "/api/failures",
        "/",
        "/messages",
        &format!("/messages/{id}"),
        "/api/messages",
        &format!("/api/messages/{id}"),
        "/api/relay",
    ]
    .iter()
    .map(|path| get(port, path, &bearer))
    .collect();
    assert!(get(port, "/api/plugins", "").contains(" 401 "), "the token is required once there is one");
    assert!(answers.iter().all(|answer| answer.contains(" 200 ")), "{answers:#?}");
    assert!(answers[0].contains("outboxd_settled_total"), "{}", answers[0]);
    assert!(answers[3].contains("SHOP_KEY"), "a secret's name may be seen: {}", answers[3]);
    assert!(answers[4].contains(&id) && answers[4].contains("not now"), "the first attempt failed: {}", answers[4]);
    let command_line = std::fs::read_to_string(format!("/proc/{}/cmdline", relay.pid())).expect("our child");
    let log = relay.log();
    let check = stage.command(&["run", "--check"]).envs(environment).output().expect("outboxd runs");
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains("[relay]"), "{check}");
    drop(relay);

    assert_eq!(
        receiver.received()[1].header("authorization"),
        Some("Bearer canary-of-the-shop"),
        "it did reach its host"
    );
    let sent = &receiver.received()[1];
    assert_eq!(sent.verify(KEY), Ok(()));
    assert!(log.len() > 10_000, "at trace there is much to look through");
    assert!(cache.read_dir().expect("the cache").next().is_some(), "the plugin's code is kept");
    for canary in [PASSWORD, TOKEN, KEY] {
        assert!(!log.contains(canary), "{canary} stands in the log");
        assert!(answers.iter().all(|answer| !answer.contains(canary)), "{canary} stands in an answer");
        assert!(!message.contains(canary), "{canary} stands in the message's row");
        assert!(!command_line.contains(canary) && !check.contains(canary), "{canary} is shown");
        assert!(!files_hold(&cache, canary), "{canary} stands in the cache of compiled plugins");
    }
}
