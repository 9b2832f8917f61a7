use std::time::{Duration, Instant};

use outboxd::plugin::SandboxOptions;
use outboxd_core::Outcome;

use crate::guest::build;
use crate::harness::{cache, call, error, load, load_with, options, word};

/// Counts its calls in a global, and answers with the count as one digit.
const COUNTS: &str = "(global $n (mut i32) (i32.const 0))
    (func $main (result i32)
      (global.set $n (i32.add (global.get $n) (i32.const 1)))
      (i32.store8 (i32.const 1024) (i32.add (i32.const 48) (global.get $n)))
      (call $cancel (i32.const 1024) (i32.const 1)))";

fn cancelled(text: &str) -> Outcome {
    Outcome::Cancel { error: text.into() }
}

#[tokio::test]
async fn without_reuse_every_message_meets_a_fresh_instance() {
    let plugin = load(COUNTS, "").await.unwrap();

    for _ in 0..3 {
        assert_eq!(call(&plugin, "{}").await.outcome, cancelled("1"));
    }
}

#[tokio::test]
async fn with_reuse_an_instance_serves_as_many_messages_as_the_manifest_says() {
    let plugin = load(COUNTS, "[instances]\nreuse = 3").await.unwrap();

    for expected in ["1", "2", "3", "1"] {
        assert_eq!(call(&plugin, "{}").await.outcome, cancelled(expected));
    }
}

#[tokio::test]
async fn an_instance_that_failed_or_was_refused_something_serves_no_more() {
    let fails = format!(
        "{}\n(func $unused)",
        COUNTS.replace("(call $cancel", "(if (i32.eq (global.get $n) (i32.const 2)) (then unreachable)) (call $cancel")
    );
    let plugin = load(&fails, "[instances]\nreuse = 100").await.unwrap();

    for expected in ["cancelled", "trap", "cancelled", "trap"] {
        assert_eq!(word(&call(&plugin, "{}").await.outcome), expected);
    }
}

#[tokio::test]
async fn every_limit_starts_anew_for_each_message_of_a_reused_instance() {
    // 120 ms of computing, within a budget of 300 ms: ten calls would spend it four times over.
    let works = "(global $i (mut i32) (i32.const 0))
        (import \"wasi:clocks/monotonic-clock@0.2.12\" \"now\" (func $now (result i64)))
        (func $main (result i32) (local $end i64)
          (local.set $end (i64.add (call $now) (i64.const 120000000)))
          (loop $l (br_if $l (i64.lt_u (call $now) (local.get $end)))) (call $ok))";
    let plugin = load(works, "[limits]\ncpu = \"300ms\"\n[instances]\nreuse = 100").await.unwrap();

    for _ in 0..10 {
        assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);
    }
}

/// Answers with the eight bytes of a payload that the call before kept, after a letter of its own, and keeps its own.
const KEEPS_ITS_PAYLOAD: &str = "(func $main (result i32)
    (i32.store8 (i32.const 1024) (i32.const 61))
    (i64.store (i32.const 1025) (i64.load (i32.const 2048)))
    (i64.store (i32.const 2048) (i64.load (global.get $payload)))
    (call $cancel (i32.const 1024) (i32.const 9)))";

#[tokio::test]
async fn what_a_reused_instance_keeps_is_its_own_memory() {
    let reused = load(KEEPS_ITS_PAYLOAD, "[instances]\nreuse = 8").await.unwrap();
    let fresh = load(KEEPS_ITS_PAYLOAD, "").await.unwrap();

    for plugin in [&reused, &fresh] {
        call(plugin, "1234567890").await;
    }

    assert_eq!(call(&reused, "{}").await.outcome, cancelled("=12345678"));
    let nothing = call(&fresh, "{}").await.outcome;
    assert!(!error(&nothing).contains("1234"), "{nothing:?}");
}

/// Looks through all of its memory for what the payload begins with, then writes the payload to the end of its memory.
const LOOKS_FOR_ITS_PAYLOAD: &str = "(func $main (result i32) (local $at i32) (local $end i32) (local $found i32)
    (drop (memory.grow (i32.const 64)))
    (local.set $end (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 64)))
    (loop $l
      (if (i64.eq (i64.load (local.get $at)) (i64.load (global.get $payload)))
        (then (if (i32.ne (local.get $at) (global.get $payload)) (then (local.set $found (i32.const 1))))))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (br_if $l (i32.lt_u (local.get $at) (local.get $end))))
    (memory.copy (local.get $end) (global.get $payload) (i32.const 8))
    (memory.copy (i32.const 131072) (global.get $payload) (i32.const 8))
    (if (local.get $found) (then unreachable))
    (call $ok))";

#[tokio::test]
async fn what_one_call_wrote_no_later_call_can_read() {
    // One slot: each call gets the memory of the one before.
    let options = SandboxOptions { slots: 1, threads: Some(1), ..options() };
    let plugin = load_with(options, LOOKS_FOR_ITS_PAYLOAD, "").await.unwrap();

    for _ in 0..50 {
        assert_eq!(call(&plugin, "\"s3cr3t canary of call 1\"").await.outcome, Outcome::Success);
    }
}

#[tokio::test]
async fn the_minimal_profile_has_no_files_sockets_or_environment_even_in_name() {
    for (text, word) in [
        (include_str!("../guests/wat/looks-for-files.wat"), "wasi:filesystem"),
        (include_str!("../guests/wat/looks-for-variables.wat"), "wasi:cli/environment"),
        (include_str!("../guests/wat/opens-a-tcp-socket.wat"), "wasi:sockets"),
        (include_str!("../guests/wat/exits-with-zero.wat"), "wasi:cli/exit"),
    ] {
        assert!(load(text, "").await.is_ok());
        let refused = load(text, "profile = \"minimal\"").await.err().unwrap();
        assert!(refused.contains(word), "{refused}");
    }
    assert!(load(COUNTS, "profile = \"minimal\"").await.is_ok());
    assert!(load(include_str!("../guests/wat/sleeps-for-ever.wat"), "profile = \"minimal\"").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spinning_guests_leave_room_for_short_calls_and_never_delay_the_host() {
    let options = SandboxOptions { slots: 16, ..options() };
    // Both guests in one sandbox: what they share is its threads.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("spins.wasm"), build("(func $main (result i32) (loop $l (br $l)) unreachable)"))
        .unwrap();
    std::fs::write(dir.path().join("spins.toml"), "[limits]\ncpu = \"200ms\"\ndeadline = \"60s\"").unwrap();
    std::fs::write(dir.path().join("short.wasm"), build("(func $main (result i32) (call $ok))")).unwrap();
    let host = outboxd::plugin::PluginHost::start(outboxd::plugin::PluginOptions {
        dir: dir.path().into(),
        cache_dir: Some(cache().into()),
        sandbox: options,
        ..Default::default()
    })
    .unwrap();
    host.scan_once().await;
    let control = || outboxd::handler::CallControl { stop: tokio_util::sync::CancellationToken::new() };
    let handlers = host.handlers();
    let spinning: Vec<_> = (0..12)
        .map(|_| {
            let handler = handlers.route("spins").unwrap().handler;
            let control = control();
            tokio::spawn(async move { handler.handle(&crate::harness::claim("{}"), control).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;

    let mut latencies = vec![];
    let mut ticks = vec![];
    while !spinning.iter().all(|call| call.is_finished()) && latencies.len() < 2000 {
        let started = Instant::now();
        let outcome =
            handlers.route("short").unwrap().handler.handle(&crate::harness::claim("{}"), control()).await.outcome;
        assert_eq!(outcome, Outcome::Success);
        latencies.push(started.elapsed());
        let started = Instant::now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        ticks.push(started.elapsed());
    }
    for call in spinning {
        assert_eq!(word(&call.await.unwrap().outcome), "cpu");
    }

    latencies.sort();
    ticks.sort();
    let at = |times: &[Duration], share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{} short calls beside 12 spinning: p50 {:?} p99 {:?}; a timer of 1 ms: p99 {:?}",
        latencies.len(),
        at(&latencies, 0.5),
        at(&latencies, 0.99),
        at(&ticks, 0.99)
    );
    assert!(latencies.len() >= 100, "only {} short calls", latencies.len());
    assert!(at(&latencies, 0.5) < Duration::from_millis(50), "{:?}", at(&latencies, 0.5));
    assert!(at(&latencies, 0.99) < Duration::from_millis(300), "{:?}", at(&latencies, 0.99));
    assert!(at(&ticks, 0.99) < Duration::from_millis(200), "{:?}", at(&ticks, 0.99));
}
