use outboxd_core::Outcome;

use crate::harness::{call, load};

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
