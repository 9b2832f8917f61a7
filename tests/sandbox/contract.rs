use outboxd_core::Outcome;

use crate::harness::{call, load, watch_logs};

#[tokio::test]
async fn the_payload_arrives_as_the_bytes_that_were_written() {
    let echoes = "(func $main (result i32) (call $cancel (global.get $payload) (global.get $payload_len)))";
    let plugin = load(echoes, "").await.unwrap();
    let payload = "{\"b\": 1.0,   \"a\":\t12345678901234567890.10, \"a\": \"\u{e9}\\u0000\"}";

    assert_eq!(call(&plugin, payload).await.outcome, Outcome::Cancel { error: payload.into() });
}

#[tokio::test]
async fn settings_of_the_manifest_are_what_wasi_config_answers() {
    let reads = r#"
        (import "wasi:config/store@0.2.0-rc.1" "get" (func $get (param i32 i32 i32)))
        (data (i32.const 1024) "urlnope")
        (func $main (result i32)
          (call $get (i32.const 1027) (i32.const 4) (i32.const 256))
          (if (i32.or (i32.load8_u (i32.const 256)) (i32.load8_u (i32.const 260))) (then unreachable))
          (call $get (i32.const 1024) (i32.const 3) (i32.const 256))
          (call $cancel (i32.load (i32.const 264)) (i32.load (i32.const 268))))"#;
    let plugin = load(reads, "[settings]\nurl = \"https://hooks.example.com/orders\"").await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Cancel { error: "https://hooks.example.com/orders".into() });
}

#[tokio::test]
async fn the_context_tells_attempts_deadline_key_and_trace() {
    let tells = r#"
        (import "outboxd:plugin/context@1.0.0" "max-attempts" (func $max (param i32)))
        (import "outboxd:plugin/context@1.0.0" "deadline-ms" (func $deadline (result i64)))
        (import "outboxd:plugin/context@1.0.0" "idempotency-key" (func $key (param i32)))
        (import "outboxd:plugin/context@1.0.0" "traceparent" (func $trace (param i32)))
        (import "outboxd:plugin/context@1.0.0" "pause-key" (func $pause (param i64)))
        (func $main (result i32)
          (call $max (i32.const 256))
          (if (i32.ne (i32.load (i32.const 260)) (i32.const 7)) (then unreachable))
          (if (i64.gt_u (call $deadline) (i64.const 3000)) (then unreachable))
          (if (i64.lt_u (call $deadline) (i64.const 1000)) (then unreachable))
          (call $key (i32.const 256))
          (if (i32.ne (i32.load (i32.const 260)) (i32.const 36)) (then unreachable))
          (call $pause (i64.const 1000))
          (call $trace (i32.const 256))
          (call $cancel (i32.load (i32.const 260)) (i32.load (i32.const 264))))"#;
    let plugin = load(tells, "[retry]\nmax_attempts = 7\n[limits]\ndeadline = \"3s\"").await.unwrap();

    let outcome = call(&plugin, "{}").await.outcome;

    assert_eq!(outcome, Outcome::Cancel { error: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into() });
}

#[tokio::test]
async fn what_a_guest_prints_becomes_log_lines_that_say_whose_they_are() {
    let logs = watch_logs();
    let prints = r#"
        (import "wasi:cli/stderr@0.2.12" "get-stderr" (func $stderr (result i32)))
        (import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
        (import "wasi:logging/logging@0.1.0-draft" "log" (func $log (param i32 i32 i32 i32 i32)))
        (data (i32.const 1024) "mark-one\nmark-two\1b[31mctx")
        (func $main (result i32)
          (call $write (call $stderr) (i32.const 1024) (i32.const 22) (i32.const 256))
          (call $log (i32.const 3) (i32.const 1046) (i32.const 3) (i32.const 1024) (i32.const 8))
          (call $ok))"#;
    let plugin = load(prints, "").await.unwrap();

    call(&plugin, "{}").await;

    let lines = logs.marked();
    let says = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    let whose = ["topic", "guest", "plugin", "message.id", "attempt"];
    assert!(says(&[&whose[..], &["stderr", "mark-one"]].concat()), "{lines:#?}");
    assert!(says(&["stderr", "mark-two\\u{1b}[31m"]), "{lines:#?}");
    assert!(says(&["WARN", "ctx: mark-one"]), "{lines:#?}");
}
