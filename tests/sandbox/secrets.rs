use std::sync::Arc;

use outboxd::plugin::SandboxOptions;
use outboxd_core::Outcome;

use crate::egress::Names;
use crate::guest::{TELL, sends_with};
use crate::harness::{SECRET, call, error, load, load_with, options, watch_logs, word};
use crate::server::{Server, answer};

/// A server that sends back what it was sent, headers and all.
fn echo() -> Server {
    Server::start(|stream, request| {
        let request = request.to_string();
        answer(stream, "500 Internal Server Error", &request);
    })
}

#[tokio::test]
async fn a_secret_reaches_the_host_it_is_bound_to_and_shows_nowhere_else() {
    let logs = watch_logs();
    let server = echo();
    let url = server.url();
    let manifest = format!("[grants]\nhosts = [\"{url}\"]\n[grants.secrets]\nAPI_KEY = [\"{url}\"]");
    // The guest prints what came back, then puts it into its answer.
    let tell = r#"
        (call $write (call $stderr) (i32.load (i32.const 144)) (i32.load (i32.const 148)) (i32.const 256))
        (call $cancel (i32.load (i32.const 144)) (i32.load (i32.const 148)))"#;
    let guest = sends_with(
        "POST",
        &url,
        &[("authorization", "Bearer {{secret:API_KEY}}"), ("x-two", "{{secret:API_KEY}}/{{secret:API_KEY}}")],
        "",
        tell,
    );
    let stderr = r#"
        (import "wasi:cli/stderr@0.2.12" "get-stderr" (func $stderr (result i32)))
        (import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))"#;
    let plugin = load(&format!("{stderr}\n{guest}"), &manifest).await.unwrap();

    let handled = call(&plugin, "{}").await;

    let sent = server.requests().remove(0);
    assert!(sent.contains(&format!("authorization: Bearer {SECRET}\r\n")), "{sent}");
    assert!(sent.contains(&format!("x-two: {SECRET}/{SECRET}\r\n")), "{sent}");
    assert_eq!(word(&handled.outcome), "cancelled");
    assert!(error(&handled.outcome).contains("authorization: Bearer [secret]"), "{handled:?}");
    assert!(handled.response_excerpt.as_ref().unwrap().contains("authorization: Bearer [secret]"), "{handled:?}");
    assert!(!format!("{handled:?}").contains(SECRET));
    assert!(logs.lines() > 0, "nothing was logged at all");
    assert_eq!(logs.hits(), Vec::<String>::new());
}

#[tokio::test]
async fn a_placeholder_is_filled_only_for_the_hosts_its_secret_is_bound_to() {
    let (bound, other) = (echo(), echo());
    let manifest = format!(
        "[grants]\nhosts = [\"{}\", \"{}\"]\n[grants.secrets]\nAPI_KEY = [\"{}\"]\nOTHER = []",
        bound.url(),
        other.url(),
        bound.url()
    );
    for (url, headers) in [
        (other.url(), [("x-key", "{{secret:API_KEY}}")]),
        (bound.url(), [("x-key", "{{secret:OTHER}}")]),
        (bound.url(), [("x-key", "{{secret:NOBODY}}")]),
        (bound.url(), [("x-key", "{{secret:}}")]),
        (format!("{}/{{{{secret:API_KEY}}}}", bound.url()), [("x-key", "v")]),
        (format!("{}/?{{{{secret:API_KEY}}}}", bound.url()), [("x-key", "v")]),
    ] {
        let plugin = load(&sends_with("POST", &url, &headers, "", TELL), &manifest).await.unwrap();

        let handled = call(&plugin, "{}").await;

        assert!(error(&handled.outcome).starts_with("0 [denied"), "{url} {headers:?}: {handled:?}");
    }
    assert_eq!(bound.connections() + other.connections(), 0);
}

#[tokio::test]
async fn a_placeholder_in_a_body_is_not_filled() {
    let server = echo();
    let manifest = format!("[grants]\nhosts = [\"{0}\"]\n[grants.secrets]\nAPI_KEY = [\"{0}\"]", server.url());
    let plugin = load(&sends_with("POST", &server.url(), &[], "{{secret:API_KEY}}", TELL), &manifest).await.unwrap();

    call(&plugin, "{}").await;

    assert!(server.requests()[0].ends_with("{{secret:API_KEY}}"));
}

#[tokio::test]
async fn a_secret_with_a_line_break_fits_in_no_header() {
    let server = echo();
    let secrets = [("API_KEY".to_string(), "canary-line\r\nx-evil: 1".to_string())].into_iter().collect();
    let options = SandboxOptions { secrets, resolver: Arc::new(Names::default()), ..options() };
    let manifest = format!("[grants]\nhosts = [\"{0}\"]\n[grants.secrets]\nAPI_KEY = [\"{0}\"]", server.url());
    let plugin =
        load_with(options, &sends_with("POST", &server.url(), &[("x", "{{secret:API_KEY}}")], "", TELL), &manifest)
            .await
            .unwrap();

    let handled = call(&plugin, "{}").await;

    assert!(error(&handled.outcome).starts_with("0 [denied"), "{handled:?}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_host_signs_with_a_granted_secret_and_the_guest_never_sees_it() {
    // Compares the first eight bytes of HMAC-SHA-256("canary-0123456789-value", "data").
    let mac = hmac_start(SECRET, b"data");
    let guest = format!(
        r#"
        (import "outboxd:plugin/secrets@1.0.0" "hmac-sha256" (func $sign (param i32 i32 i32 i32 i32)))
        (data (i32.const 1024) "API_KEYdata")
        (func $main (result i32)
          (call $sign (i32.const 1024) (i32.const 7) (i32.const 1031) (i32.const 4) (i32.const 256))
          (if (i32.or (i32.load8_u (i32.const 256)) (i32.ne (i32.load (i32.const 264)) (i32.const 32))) (then unreachable))
          (if (i64.ne (i64.load (i32.load (i32.const 260))) (i64.const {mac})) (then unreachable))
          (call $ok))"#
    );
    let plugin = load(&guest, "[grants.secrets]\nAPI_KEY = []").await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);
}

fn hmac_start(key: &str, data: &[u8]) -> i64 {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(data);
    i64::from_le_bytes(mac.finalize().into_bytes()[..8].try_into().unwrap())
}
