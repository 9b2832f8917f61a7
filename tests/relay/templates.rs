//! `plugin new`, one language a test: the page of docs/plugins is run as it stands, then a thousand messages are delivered.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::tools::tool;
use outboxd_test_support::{guests, wait_for};
use serde_json::{Value, json};

use crate::stage::{Finished, PATIENCE, Stage, cache};

const MESSAGES: usize = 1000;

/// The commands of a page: the lines of its `sh` blocks.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("\n```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("\n```").next().unwrap_or_default().lines());
    lines.map(str::to_owned).collect()
}

/// Runs one command of a page, as a person in the stage's folder would who has a language's `tools` on the path.
fn run(stage: &Stage, tools: &[PathBuf], command: &str) {
    let bin = Path::new(env!("CARGO_BIN_EXE_outboxd")).parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin).chain(tools.iter().cloned()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).expect("a path");
    let mut shell = Command::new("sh");
    shell.args(["-euc", command]).current_dir(stage.path()).env("PATH", path);
    shell.env("OUTBOXD_CACHE", cache()).env_remove("DATABASE_URL");
    let output = shell.output().expect("sh starts");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command}\n{}\n{}", said(&output.stdout), said(&output.stderr));
}

/// From the page's first command to a thousand messages at the target, each under its own idempotency key; then odd answers, of
/// so many bytes.
fn the_page_works(page: &str, tools: &[PathBuf], answer_bytes: usize) {
    let stage = Stage::postgres();
    let receiver = Receiver::start();
    let mut commands = commands(page);
    assert_eq!(commands.pop().as_deref(), Some("outboxd run"), "the page ends with the relay");

    for command in commands {
        run(&stage, tools, &command.replace("127.0.0.1:9000", &receiver.address().to_string()));
    }
    let payloads: Vec<String> = (0..MESSAGES).map(|n| format!("{{\"id\": {n}, \"total\": 1.5}}")).collect();
    stage.publish_lines("orders", &payloads);
    let _relay = stage.relay();

    // The page itself has sent one message by `plugin invoke` and published another.
    let keys = || {
        let received = receiver.received();
        received.iter().filter_map(|request| request.header("idempotency-key").map(str::to_owned)).collect()
    };
    let arrived = wait_for(PATIENCE, || BTreeSet::<String>::len(&keys()) >= MESSAGES + 2);
    assert!(arrived, "{} of {} messages arrived", keys().len(), MESSAGES + 2);
    let ids: BTreeSet<u64> = receiver.received().iter().filter_map(|request| request.json()["id"].as_u64()).collect();
    assert_eq!(ids.len(), MESSAGES);

    odd_answers_are_told(&stage, &receiver, answer_bytes);
}

/// What a target answers may be no UTF-8, or have a character where its reason is cut: it is told, and no fault of the plugin's.
fn odd_answers_are_told(stage: &Stage, receiver: &Receiver, answer_bytes: usize) {
    // Latin-1, a character longer than it need be, a surrogate, one beyond the last, half a one.
    let no_utf8 = b"told: \xe9 \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82".to_vec();
    for body in [no_utf8, format!("told: {}", "€".repeat(answer_bytes / "€".len())).into_bytes()] {
        receiver.script([Answer::status(400).body(body)]);

        let id = stage.publish("orders", r#"{"id": 7, "total": 1.5}"#);

        let message = stage.wait_until(&id, "dead");
        let told = message["last_error"].as_str().is_some_and(|error| error.starts_with("HTTP 400: told: "));
        assert!(told, "{message:#}");
    }
}

/// More than the text of a call may hold.
const LARGE: usize = 4 << 20;

#[test]
fn rust() {
    the_page_works(include_str!("../../docs/plugins/rust.md"), &[], LARGE);
}

#[test]
fn js() {
    if is_there("npm") {
        // QuickJS would decode megabytes for longer than a call may compute.
        the_page_works(include_str!("../../docs/plugins/js.md"), &[], 16 << 10);
    }
}

#[test]
fn python() {
    if is_there("python3") {
        the_page_works(include_str!("../../docs/plugins/python.md"), &[], LARGE);
    }
}

#[test]
fn go() {
    if let Some(go) = tool("go") {
        the_page_works(include_str!("../../docs/plugins/go.md"), &[go.join("bin")], LARGE);
    }
}

#[test]
fn c() {
    if let Some(programs) = tool("clang") {
        the_page_works(include_str!("../../docs/plugins/c.md"), &[programs], LARGE);
    }
}

/// Whether a program is on the path: where it is not, the language is skipped by name, and in CI the test fails.
fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        outboxd_test_support::skip(&format!("there is no {program}"));
    }
    found
}

#[test]
fn each_page_shows_the_handler_that_plugin_new_writes() {
    for (page, fence, source) in [
        (
            include_str!("../../docs/plugins/rust.md"),
            "```rust\n",
            include_str!("../../plugins/templates/rust/src/lib.rs"),
        ),
        (include_str!("../../docs/plugins/js.md"), "```js\n", include_str!("../../plugins/templates/js/plugin.js")),
        (
            include_str!("../../docs/plugins/python.md"),
            "```python\n",
            include_str!("../../plugins/templates/python/app.py"),
        ),
        (include_str!("../../docs/plugins/go.md"), "```go\n", include_str!("../../plugins/templates/go/plugin.go")),
        (include_str!("../../docs/plugins/c.md"), "```c\n", include_str!("../../plugins/templates/c/handler.c")),
    ] {
        let shown = page.split(fence).nth(1).expect("a handler").split("```").next().expect("its end");
        assert!(source.contains(shown), "the page shows another handler than the template's:\n{shown}");
    }
}

/// A project's own build, with nothing on the path but `programs` and what every system has.
fn build_with(stage: &Stage, programs: &[(&str, &str)]) -> String {
    let bin = stage.path().join("programs");
    std::fs::create_dir_all(&bin).unwrap();
    for (name, text) in programs {
        std::fs::write(bin.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["bash", "dirname", "env", "rm"] {
        let path = std::env::var_os("PATH").expect("a path");
        let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists());
        let program = found.expect(name);
        std::os::unix::fs::symlink(program, bin.join(name)).ok();
    }
    let build = Command::new(bin.join("bash")).arg("orders/build").current_dir(stage.path()).env("PATH", &bin).output();
    let build = build.unwrap();
    assert!(!build.status.success());
    String::from_utf8(build.stderr).unwrap()
}

#[test]
fn a_build_names_what_is_missing() {
    for (lang, programs, words) in [
        ("rust", &[][..], "cargo is missing: install Rust"),
        ("rust", &[("cargo", ""), ("rustc", "echo /nowhere")], "run `rustup target add wasm32-wasip2`"),
        ("js", &[], "node is missing: install Node.js"),
        ("js", &[("node", "")], "componentize-qjs is missing: run `npm install`"),
        ("python", &[], "componentize-py is missing: run `python3 -m venv .venv"),
        ("go", &[], "go is missing: install Go"),
        ("go", &[("go", "")], "outboxd is missing: put it on your path"),
        ("c", &[], "outboxd is missing: put it on your path"),
        ("c", &[("outboxd", "")], "install clang, lld and wasi-libc"),
        ("c", &[("outboxd", ""), ("clang", "exit 1")], "\"clang\" does not build for WASI"),
    ] {
        let stage = Stage::sqlite();
        stage.outboxd(&["plugin", "new", "orders", "--lang", lang]).ok();

        let complaint = build_with(&stage, programs);

        assert!(complaint.contains(words), "{lang}: {complaint}");
    }
}

#[test]
fn a_core_module_that_cannot_become_a_plugin_fails_in_one_line() {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let module = stage.path().join("orders.core.wasm");

    std::fs::copy(verbs(&stage), &module).unwrap();
    let complaint = stage.outboxd(&["plugin", "build", "orders.core.wasm"]).fails(1);

    let component = "\"orders.core.wasm\" cannot become a plugin: it is a component already";
    assert!(complaint.contains(component) && complaint.trim().lines().count() == 1, "{complaint}");
    assert!(!stage.path().join("orders.wasm").exists());
    std::fs::rename(&module, stage.path().join("orders.o")).unwrap();
    let complaint = stage.outboxd(&["plugin", "build", "orders.o"]).fails(2);
    assert!(complaint.contains("--output"), "{complaint}");
}

#[test]
fn a_folder_that_is_there_is_left_alone() {
    let stage = Stage::sqlite();
    std::fs::create_dir(stage.path().join("orders")).unwrap();

    let complaint = stage.outboxd(&["plugin", "new", "orders", "--lang", "rust"]).fails(1);

    assert!(complaint.contains("is there already"), "{complaint}");
    assert_eq!(std::fs::read_dir(stage.path().join("orders")).unwrap().count(), 0);
    let complaint = stage.outboxd(&["plugin", "new", "../orders", "--lang", "rust"]).fails(2);
    assert!(complaint.contains("is no name for a plugin"), "{complaint}");
}

/// The guest `verbs` with one golden message, which succeeds and should come to `expected`.
fn verbs_that_should(expected: &str) -> Stage {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    std::fs::create_dir(stage.plugins().join("verbs.tests")).unwrap();
    let golden = json!({ "message": { "payload": { "do": "succeed" } }, "expect": { "outcome": expected } });
    std::fs::write(stage.plugins().join("verbs.tests/first.json"), golden.to_string()).unwrap();
    stage
}

fn verbs(stage: &Stage) -> String {
    stage.plugins().join("verbs.wasm").display().to_string()
}

#[test]
fn what_is_checked_is_what_a_relay_lists() {
    let stage = verbs_that_should("success");

    let checked = stage.outboxd(&["plugin", "check", &verbs(&stage), "--json"]).ok();
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let admin = relay.admin();
    let list = |more: &[&str]| stage.outboxd(&[&["plugin", "list", "--admin", &admin], more].concat()).ok();
    let (listed, shown) = (list(&["--json"]), list(&[]));

    let [checked, listed] = [checked, listed].map(|said| serde_json::from_str::<Value>(&said).expect("JSON"));
    let digest = checked["digest"].as_str().expect("a digest");
    assert_eq!((checked["goldens"].as_u64(), digest.len()), (Some(1), 64), "{checked:#}");
    assert_eq!(listed[0]["digest"], digest, "{listed:#}");
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&json!("verbs"), &json!("live")));
    assert!(shown.contains("verbs") && shown.contains("live") && shown.contains(&digest[..12]), "{shown}");
}

#[test]
fn what_a_relay_would_refuse_does_not_pass_the_check() {
    let stage = verbs_that_should("cancel");
    let place = |file: &str| stage.plugins().join(file).display().to_string();
    std::fs::copy(verbs(&stage), place("two words.wasm")).unwrap();
    assert!(Command::new("mkfifo").arg(place("pipe.wasm")).status().unwrap().success());

    for (file, words) in [
        ("verbs.wasm", "would not be accepted: golden message first.json: expected cancel, came to success"),
        ("two words.wasm", "would not be accepted: a plugin's name has at most 100 characters"),
        ("pipe.wasm", "would not be accepted: it is no regular file"),
    ] {
        let complaint = stage.outboxd(&["plugin", "check", &place(file)]).fails(1);
        assert!(complaint.contains(words), "{complaint}");
    }
}

#[test]
fn the_check_tells_what_trust_asks_for() {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let file = verbs(&stage);
    let check = |trust: &str, more: &[&str]| {
        stage.configure(trust);
        stage.outboxd(&[&["plugin", "check", &file], more].concat()).ok()
    };

    let unpinned: Value = serde_json::from_str(&check("[trust]\nrequire_pins = true", &["--json"])).expect("JSON");
    let pin = |digest: &str| format!("[trust.pins]\nverbs = [{digest:?}]");
    let pinned = check(&pin(unpinned["digest"].as_str().expect("a digest")), &[]);
    let changed = check(&pin(&"0".repeat(64)), &[]);

    assert!(unpinned["untrusted"].as_str().is_some_and(|why| why.starts_with("it has no pin")), "{unpinned:#}");
    assert!(pinned.starts_with(&format!("{file} would be accepted\n")), "{pinned}");
    assert!(changed.starts_with(&format!("{file} would be accepted if it were trusted: its digest ")), "{changed}");
}

#[test]
fn a_secret_at_hand_is_there_for_the_plugin_that_is_tried() {
    let stage = Stage::sqlite();
    stage.configure("[secrets]\nSHOP_KEY = { env = \"SHOP_KEY\" }\nOTHER = { env = \"NOBODY_SETS_THIS\" }");
    let manifest = "topics = [\"verbs\"]\n[grants.secrets]\nSHOP_KEY = []\n";
    stage.install("verbs", &guests::guest("verbs"), manifest);
    let order = json!({ "do": "sign", "secret": "SHOP_KEY", "data": "" }).to_string();
    let invoke = |environment: &[(&str, &str)]| {
        let file = verbs(&stage);
        let mut command = stage.command(&["plugin", "invoke", &file, "--payload", &order, "--json"]);
        let output = command.env_remove("SHOP_KEY").envs(environment.iter().copied()).output().expect("outboxd starts");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["error"].to_string()
    };

    let signed = invoke(&[("SHOP_KEY", "a key")]);

    assert!(invoke(&[]).contains("is not granted, or there is none of that name"));
    assert!(!signed.contains("not granted"), "{signed}");
}

#[test]
fn a_golden_message_that_fails_fails_the_command_and_says_what_came() {
    let stage = verbs_that_should("cancel");

    let finished = stage.outboxd(&["plugin", "test", stage.plugins().to_str().unwrap()]);

    assert!(finished.stdout.contains("FAILED  first.json: expected cancel, came to"), "{}", finished.stdout);
    assert!(finished.fails(1).contains("1 of 1 golden messages failed"));
}

fn invoke(stage: &Stage, payload: &Value, more: &[&str]) -> Finished {
    stage.outboxd(&[&["plugin", "invoke", &verbs(stage), "--payload", &payload.to_string()], more].concat())
}

#[test]
fn an_invoked_message_tells_its_outcome_and_its_request() {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let receiver = Receiver::start();
    receiver.script([Answer::status(503)]);
    let url = receiver.url("/hooks");
    let payload = json!({ "do": "http", "url": url });

    let retried = invoke(&stage, &payload, &[]);
    let delivered = invoke(&stage, &payload, &["--json"]).ok();

    assert!(retried.stdout.starts_with("outcome   retry: answered 503\n"), "{}", retried.stdout);
    let request = format!("\nrequest   POST {url} -> 503 Service Unavailable in ");
    assert!(retried.stdout.contains(&request), "{}", retried.stdout);
    assert!(retried.fails(1).contains("the message was not delivered"));
    let delivered: Value = serde_json::from_str(&delivered).expect("JSON");
    assert_eq!((&delivered["outcome"], &delivered["error"]), (&json!("success"), &Value::Null), "{delivered:#}");
    let requests = delivered["requests"].as_array().expect("requests");
    assert_eq!((requests.len(), &requests[0]["url"], &requests[0]["answer"]), (1, &json!(url), &json!("200 OK")));
}

#[test]
fn a_connection_is_told_as_a_request_is() {
    let stage = Stage::sqlite();
    let receiver = Receiver::start();
    let peer = receiver.address().to_string();
    stage.configure(&format!("tcp = [\"{peer}\"]"));
    let manifest = format!("topics = [\"verbs\"]\n[grants]\ntcp = [\"{peer}\"]\n");
    stage.install("verbs", &guests::guest("verbs"), &manifest);

    for (address, answer) in [(&*peer, "allowed"), ("127.0.0.1:9", "denied: TCP to 127.0.0.1:9 is not granted")] {
        let finished = invoke(&stage, &json!({ "do": "tcp", "address": address }), &["--json"]);

        let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let request = &said["requests"][0];
        assert_eq!((&request["method"], &request["url"]), (&json!("CONNECT"), &json!(address)), "{said:#}");
        assert!(request["answer"].as_str().is_some_and(|said| said.starts_with(answer)), "{said:#}");
    }
    let checked = stage.outboxd(&["plugin", "check", &verbs(&stage)]).ok();
    assert!(checked.contains(&format!("reaches   tcp://{peer}\n")), "{checked}");
}

#[test]
fn a_request_that_brings_no_answer_is_told_too() {
    let stage = Stage::sqlite();
    stage.install_verbs("deadline = \"2s\"");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port that nobody answers at");
    let url = format!("http://{}/", silent.local_addr().expect("its address"));

    for (payload, outcome, answer) in [
        (json!({ "do": "echo-http", "url": url, "ms": 50 }), "cancel", "no answer"),
        (json!({ "do": "http", "url": url }), "fault", "no answer"),
        (json!({ "do": "http", "url": "https://elsewhere.example/" }), "retry", "denied: "),
    ] {
        let finished = invoke(&stage, &payload, &["--json"]);

        let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(said["outcome"], outcome, "{said:#}");
        let requests = said["requests"].as_array().expect("requests");
        assert_eq!((requests.len(), &requests[0]["url"]), (1, &payload["url"]), "{said:#}");
        assert!(requests[0]["answer"].as_str().is_some_and(|said| said.starts_with(answer)), "{said:#}");
        finished.fails(1);
    }
}
