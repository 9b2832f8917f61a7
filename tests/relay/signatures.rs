//! What the webhook plugin signs, as the libraries that receivers use see it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use outboxd_test_support::guests;
use outboxd_test_support::receiver::{Answer, Received, Receiver};
use outboxd_test_support::tools::tool;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stage::Stage;

const NEW: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Without its padding, as some services hand keys out.
const OLD: &str = "whsec_b3VyIG9sZCBrZXkgb2YgMjQgYnl0ZXM";
/// The first key pair of RFC 8032, section 7.1.
const PRIVATE: &str = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const PUBLIC: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const PAYLOAD: &str = r#"{"order": 7,  "note": "naïve – “quoted”", "total": 1.50}"#;

/// What a receiver gets of one message signed with the secrets NEW, OLD and PRIVATE that `setting` names; the first
/// requests are answered by `answers`.
fn sent(setting: &str, answers: Vec<Answer>) -> Vec<Received> {
    let stage = Stage::sqlite();
    let receiver = Receiver::start();
    receiver.script(answers);
    stage.configure("[secrets]\nNEW = { env = \"NEW\" }\nOLD = { env = \"OLD\" }\nPRIVATE = { env = \"PRIVATE\" }");
    let manifest = format!(
        "topics = [\"orders\"]\n[grants]\nhosts = [\"{0}\"]\n[grants.secrets]\nNEW = []\nOLD = []\nPRIVATE = []\n\
         [retry]\nmax = \"5s\"\n[settings]\nurl = \"{0}/hooks\"\nsecret = \"{setting}\"\n",
        receiver.url("")
    );
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    let id = stage.publish("orders", PAYLOAD);
    let _relay = stage.relay_in(&[("NEW", NEW), ("OLD", OLD), ("PRIVATE", PRIVATE)]);
    stage.wait_until(&id, "delivered");
    receiver.received()
}

fn request(received: &Received, secret: &str) -> Value {
    let headers: BTreeMap<&str, &str> =
        received.headers.keys().filter_map(|name| Some((name.as_str(), received.header(name.as_str())?))).collect();
    json!({ "secret": secret, "headers": headers, "body": String::from_utf8_lossy(&received.body) })
}

/// Whether the verifier takes the request. It must have read the body then.
fn takes(verifier: &mut Command, request: &Value) -> Result<(), String> {
    verifier.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = verifier.spawn().expect("the verifier starts");
    child.stdin.take().expect("a pipe").write_all(request.to_string().as_bytes()).expect("written");
    let output = child.wait_with_output().expect("the verifier ends");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let read: Value = serde_json::from_slice(&output.stdout).expect("the body as JSON");
    assert_eq!(read, serde_json::from_str::<Value>(PAYLOAD).expect("JSON"));
    Ok(())
}

fn script(program: impl AsRef<Path>, name: &str) -> Command {
    let mut command = Command::new(program.as_ref());
    command.arg(outboxd_test_support::repository().join("tests/relay/verify").join(name));
    command
}

fn in_python() -> Option<Command> {
    Some(script(tool("python")?.join("bin/python"), "official.py"))
}

fn in_javascript() -> Option<Command> {
    let folder = tool("node")?;
    let mut command = script("node", "official.js");
    command.env("NODE_PATH", folder.join("node_modules"));
    Some(command)
}

#[test]
fn the_official_libraries_of_two_languages_take_what_is_signed_and_nothing_else() {
    let [received] = &sent("NEW", vec![])[..] else { panic!("one request") };
    let genuine = request(received, NEW);
    let (mut forged, mut late) = (genuine.clone(), genuine.clone());
    forged["body"] = json!(PAYLOAD.replace('7', "8"));
    late["headers"]["webhook-timestamp"] = json!("1700000000");

    for verifier in [in_python, in_javascript] {
        let take = |request| verifier().map(|mut verifier| takes(&mut verifier, request));
        assert!(take(&genuine).is_none_or(|taken| taken.is_ok()), "{genuine:#}: {:?}", take(&genuine));
        for (refused, why) in
            [(&forged, "No matching signature"), (&late, "too old"), (&request(received, OLD), "No matching signature")]
        {
            let taken = take(refused);
            assert!(
                taken.as_ref().is_none_or(|taken| taken.as_ref().is_err_and(|error| error.contains(why))),
                "{taken:?}"
            );
        }
    }
}

#[test]
fn while_keys_are_rotated_receivers_with_either_key_are_served() {
    let [received] = &sent("NEW OLD PRIVATE", vec![])[..] else { panic!("one request") };

    let signatures = received.header("webhook-signature").expect("signed");
    let kinds: Vec<&str> = signatures.split(' ').filter_map(|one| Some(one.split_once(',')?.0)).collect();
    assert_eq!(kinds, ["v1", "v1", "v1a"], "{signatures}");
    for verifier in [in_python, in_javascript] {
        for secret in [NEW, OLD] {
            let taken = verifier().map(|mut verifier| takes(&mut verifier, &request(received, secret)));
            assert!(taken.as_ref().is_none_or(|taken| taken.is_ok()), "{secret}: {taken:?}");
        }
    }
}

#[test]
fn an_asymmetric_signature_is_verified_with_the_public_key() {
    if tool("node").is_none() {
        return;
    }
    let [received] = &sent("PRIVATE", vec![])[..] else { panic!("one request") };
    let genuine = request(received, PUBLIC);
    let mut forged = genuine.clone();
    forged["body"] = json!("{}");

    assert!(received.header("webhook-signature").is_some_and(|signature| signature.starts_with("v1a,")));
    assert_eq!(takes(&mut script("node", "ed25519.js"), &genuine), Ok(()));
    let refusal = takes(&mut script("node", "ed25519.js"), &forged).expect_err("forged");
    assert!(refusal.contains("no matching signature"), "{refusal}");
}

#[test]
fn every_attempt_has_the_same_id_and_a_time_and_signature_of_its_own() {
    let received = sent("NEW", vec![Answer::status(503).header("retry-after", "2")]);
    let [first, second] = &received[..] else { panic!("two requests") };

    let header = |received: &Received, name: &str| received.header(name).unwrap_or_default().to_owned();
    let second_of = |received: &Received| header(received, "webhook-timestamp").parse::<u64>().expect("a number");
    assert_eq!(first.id(), second.id());
    assert!(Uuid::parse_str(first.id()).is_ok(), "and so without a dot: {}", first.id());
    assert_eq!(header(first, "idempotency-key"), first.id());
    assert!(second_of(second) > second_of(first), "{received:#?}");
    assert_ne!(header(first, "webhook-signature"), header(second, "webhook-signature"));
    assert_eq!((first.verify(NEW), second.verify(NEW)), (Ok(()), Ok(())));
}
