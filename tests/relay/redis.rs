//! The plugin `redis` against Debian's Redis.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outboxd_test_support::process::{SIGKILL, die_with_thread};
use outboxd_test_support::tools::tool;
use outboxd_test_support::{guests, wait_for};
use tempfile::TempDir;

use crate::stage::{PATIENCE, Stage};

#[path = "../../plugins/redis/src/resp.rs"]
#[allow(dead_code, reason = "its own tests use the rest")]
mod resp;

use resp::{Connection, Reply};

/// A server of the test's own, with nothing in it. Ends with the test.
struct Redis {
    program: PathBuf,
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Redis {
    /// Nothing where it cannot be installed, which is said.
    fn start() -> Option<Redis> {
        let program = tool("redis")?.join("redis-server");
        // A port that is free now may be taken a moment later; then the next one is tried.
        let started = (0..10).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("its address").port();
            drop(free);
            let folder = TempDir::new().expect("a temporary folder");
            let child = spawn(&program, &folder, port);
            let mut redis = Redis { program: program.clone(), folder, port, child };
            redis.answers().then_some(redis)
        });
        Some(started.expect("redis-server starts"))
    }

    /// Ends it and starts it again at the same port, empty.
    fn restart(&mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
        self.child = spawn(&self.program, &self.folder, self.port);
        assert!(self.answers(), "redis-server does not start again");
    }

    /// Whether it answers before it ends.
    fn answers(&mut self) -> bool {
        let mut ended = false;
        let decided = wait_for(PATIENCE, || {
            ended = self.child.try_wait().expect("our child").is_some();
            ended || self.try_ask(&["PING"]).is_ok()
        });
        decided && !ended
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn try_ask(&self, command: &[&str]) -> std::io::Result<Reply> {
        let command: Vec<&[u8]> = command.iter().map(|part| part.as_bytes()).collect();
        Connection::open(&self.address())?.ask(&command)
    }

    fn ask(&self, command: &[&str]) -> String {
        match self.try_ask(command).expect("Redis answers") {
            Reply::Text(text) => text,
            Reply::Error(error) => panic!("{command:?}: {error}"),
        }
    }

    /// The entries of a stream, each with its fields and values in turn.
    fn entries(&self, stream: &str) -> Vec<Vec<String>> {
        let script = "return cjson.encode(redis.call('xrange', KEYS[1], '-', '+'))";
        let said = self.ask(&["EVAL", script, "1", stream]);
        // Lua knows no empty list from an empty table.
        if said == "{}" {
            return vec![];
        }
        let entries: Vec<(String, Vec<String>)> = serde_json::from_str(&said).expect("entries");
        entries.into_iter().map(|(_, fields)| fields).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, folder: &TempDir, port: u16) -> Child {
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    die_with_thread(&mut command, SIGKILL);
    command.spawn().expect("redis-server starts")
}

/// A stage with the plugin as it lies in `plugins/`, but for the address, and with more in its settings.
fn stage_for(redis: &Redis, settings: &str) -> Stage {
    let stage = Stage::sqlite();
    stage.configure(&format!("tcp = [\"{}\"]", redis.address()));
    let manifest = include_str!("../../plugins/redis/redis.toml").replace("redis.internal:6379", &redis.address());
    stage.install("redis", &guests::plugin("redis"), &format!("{manifest}{settings}\n"));
    stage
}

#[test]
fn each_message_becomes_one_entry_also_when_redis_is_restarted() {
    let Some(mut redis) = Redis::start() else { return };
    let stage = stage_for(&redis, "");
    let payloads: Vec<String> = (0..200).map(|n| format!("{{\"order\": {n}}}")).collect();
    let ids = stage.publish_lines("events.order", &payloads);
    let _relay = stage.relay();

    let mut entries = vec![];
    let arrived = wait_for(PATIENCE, || {
        entries = redis.entries("events.order");
        entries.len() == ids.len()
    });
    assert!(arrived, "{} of {} entries", entries.len(), ids.len());
    redis.restart();
    let last = stage.publish("events.order", r#"{"order": 200}"#);
    stage.wait_until(&last, "delivered");

    let value = |entry: &[String], name: &str| {
        entry.chunks(2).find(|field| field[0] == name).map(|field| field[1].clone()).expect("a field")
    };
    let mut told: Vec<(String, String)> =
        entries.iter().map(|entry| (value(entry, "id"), value(entry, "payload"))).collect();
    told.sort();
    let mut published: Vec<(String, String)> = ids.into_iter().zip(payloads).collect();
    published.sort();
    assert_eq!(told, published);
    assert_eq!(value(&redis.entries("events.order")[0], "id"), last);
}

#[test]
fn a_message_that_comes_again_adds_nothing() {
    let Some(redis) = Redis::start() else { return };
    let stage = stage_for(&redis, "");
    let id = stage.publish("events.order", "{}");
    // As after a relay that died between Redis's answer and the note of it.
    redis.ask(&["SET", &format!("{{events.order}}:outboxd:{id}"), ""]);
    let _relay = stage.relay();

    stage.wait_until(&id, "delivered");

    assert_eq!(redis.ask(&["EXISTS", "events.order"]), "0");
}

#[test]
fn what_redis_says_stands_in_the_error() {
    let Some(redis) = Redis::start() else { return };
    let stage = stage_for(&redis, "");
    redis.ask(&["SET", "events.order", "no stream"]);
    let id = stage.publish("events.order", "{}");
    let _relay = stage.relay();

    let message = stage.wait_until(&id, "dead");

    let error = message["last_error"].as_str().expect("an error");
    assert!(error.starts_with("Redis answered: WRONGTYPE"), "{error}");
}

#[test]
fn a_password_is_told_to_a_server_that_asks_for_one() {
    let Some(redis) = Redis::start() else { return };
    let user = "outboxd on >tell-me ~events.* ~{events.*}:outboxd:* +eval +set +del +xadd";
    redis.ask(&[&["ACL", "SETUSER"], user.split(' ').collect::<Vec<_>>().as_slice()].concat());
    let delivers = |password: &str| {
        let stage = stage_for(&redis, &format!("user = \"outboxd\"\npassword = \"{password}\""));
        let id = stage.publish("events.order", "{}");
        let _relay = stage.relay();
        stage.wait_until(&id, if password == "tell-me" { "delivered" } else { "dead" })
    };

    let refused = delivers("tell-me-not");
    delivers("tell-me");

    let error = refused["last_error"].as_str().expect("an error");
    assert!(error.starts_with("Redis does not let outboxd in: WRONGPASS"), "{error}");
    assert_eq!(redis.ask(&["XLEN", "events.order"]), "1");
}
