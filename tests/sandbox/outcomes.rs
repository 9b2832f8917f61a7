use std::time::Duration;

use outboxd::handler::CallControl;
use outboxd_core::{Blame, Outcome};
use tokio_util::sync::CancellationToken;

use crate::harness::{blame, call, claim, error, load, run, word};

const PANIC: &str = r#"
(import "wasi:cli/stderr@0.2.12" "get-stderr" (func $stderr (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(data (i32.const 1024) "thread 'main' panicked at src/lib.rs:7:5:\nno such customer\n")
(func $main (result i32)
  (call $write (call $stderr) (i32.const 1024) (i32.const 60) (i32.const 128))
  unreachable)
"#;
const SPIN: &str = "(func $main (result i32) (loop $l (br $l)) unreachable)";

#[tokio::test]
async fn returning_is_success() {
    let (outcome, _) = run("(func $main (result i32) (call $ok))", "").await;

    assert_eq!(outcome, Outcome::Success);
}

#[tokio::test]
async fn a_retry_and_a_cancel_are_what_they_say() {
    let text = |answer: &str| {
        format!(
            "(data (i32.const 1024) \"target is busy\") (func $main (result i32) (call ${answer} (i32.const 1024) (i32.const 14)))"
        )
    };

    let (retry, _) = run(&text("retry"), "").await;
    let (cancel, _) = run(&text("cancel"), "").await;

    assert_eq!(retry, Outcome::Retry { error: "target is busy".into(), after: None });
    assert_eq!(cancel, Outcome::Cancel { error: "target is busy".into() });
}

#[tokio::test]
async fn a_panic_is_a_trap_and_its_message_comes_first() {
    let (outcome, _) = run(PANIC, "").await;

    assert_eq!(word(&outcome), "trap");
    assert!(
        error(&outcome).starts_with("thread 'main' panicked at src/lib.rs:7:5:\nno such customer\n"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_version_that_never_worked_is_blamed_itself() {
    let (outcome, _) = run(PANIC, "").await;

    assert_eq!(blame(&outcome), Some(Blame::Plugin));
}

#[tokio::test]
async fn a_spinning_guest_ends_at_its_cpu_budget() {
    let (outcome, took) = run(SPIN, "[limits]\ncpu = \"200ms\"").await;

    assert_eq!(word(&outcome), "cpu", "{outcome:?}");
    assert!(took >= Duration::from_millis(195) && took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_guest_that_spins_past_its_deadline_is_late_not_greedy() {
    let (outcome, took) = run(SPIN, "[limits]\ncpu = \"5s\"\ndeadline = \"150ms\"").await;

    assert_eq!(word(&outcome), "deadline", "{outcome:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_guest_that_grows_past_its_memory_ends_as_memory() {
    let grow = "(func $main (result i32) (loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 64)) (i32.const 0)))) unreachable)";

    let (outcome, _) = run(grow, "[limits]\nmemory = \"8MiB\"").await;

    assert_eq!(word(&outcome), "memory", "{outcome:?}");
}

#[tokio::test]
async fn an_exit_is_a_failed_attempt_even_of_zero() {
    let exit = r#"
        (import "wasi:cli/exit@0.2.12" "exit" (func $exit (param i32)))
        (func $main (result i32) (call $exit (i32.const 0)) unreachable)"#;

    let (outcome, _) = run(exit, "").await;

    assert_eq!(word(&outcome), "trap");
    assert!(error(&outcome).contains("exit(0)"), "{outcome:?}");
}

#[tokio::test]
async fn a_call_that_is_stopped_is_interrupted_and_nobodys_fault() {
    let plugin = load(SPIN, "[limits]\ncpu = \"10s\"").await.unwrap();
    let stop = CancellationToken::new();
    let control = CallControl { stop: stop.clone() };
    let started = std::time::Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.cancel();
    });

    let handled = plugin.handler.handle(&claim("{}"), control).await;

    assert_eq!(word(&handled.outcome), "interrupted");
    assert_eq!(blame(&handled.outcome), Some(Blame::Host));
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_refused_request_that_the_guest_cannot_bear_is_denied() {
    let (outcome, _) = run(&crate::guest::sends("GET", "https://example.com/", "unreachable"), "").await;

    assert_eq!(word(&outcome), "denied", "{outcome:?}");
    assert!(error(&outcome).contains("https://example.com is not granted"), "{outcome:?}");
}

#[tokio::test]
async fn the_digest_of_the_version_goes_with_the_attempt() {
    let plugin = load("(func $main (result i32) (call $ok))", "").await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!(handled.digest.as_deref(), Some(plugin.digest.as_str()));
}

/// A resolver that is broken in the worst way.
struct Panics;

impl outboxd::plugin::egress::Resolve for Panics {
    fn resolve<'a>(
        &'a self,
        _name: &'a str,
    ) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<std::net::IpAddr>>> + Send + 'a>> {
        Box::pin(async { panic!("a bug of the host, on purpose") })
    }
}

#[tokio::test]
async fn a_panic_of_the_host_costs_one_message_and_is_nobodys_fault() {
    let manifest = "[limits]\ndeadline = \"15s\"\n[grants]\nhosts = [\"https://example.com\"]";
    let options =
        outboxd::plugin::SandboxOptions { resolver: std::sync::Arc::new(Panics), ..crate::harness::options() };
    for text in [
        crate::guest::sends("GET", "https://example.com/", "(call $ok)"),
        include_str!("../guests/wat/streams-to-a-host-that-is-not-granted.wat").into(),
    ] {
        let plugin = crate::harness::load_with(options.clone(), &text, manifest).await.unwrap();
        for _ in 0..3 {
            let outcome = call(&plugin, "{}").await.outcome;

            assert_eq!(word(&outcome), "panic", "{outcome:?}");
            assert_eq!(blame(&outcome), Some(Blame::Host));
        }
    }
}
