use std::io::Write;
use std::time::Duration;

use outboxd_core::{Outcome, Target};

use crate::harness::{call, error, load, word};
use crate::server::{Server, answer};

/// A guest that POSTs `chunks` chunks of 4 KiB through `wasi:http`, announcing `length` where there is one, and is cancelled
/// with the status it got; a stream that closes under it is a retry.
fn posts(address: &std::net::SocketAddr, chunks: u32, length: Option<u64>) -> String {
    let authority = address.to_string();
    let (authority_len, path_at) = (authority.len(), 1024 + authority.len());
    let digits = length.map(|length| length.to_string()).unwrap_or_default();
    let announce = match length {
        Some(_) => format!(
            "(call $append (local.get $f) (i32.const 2048) (i32.const 14) (i32.const 2064) (i32.const {}) (i32.const 256))",
            digits.len()
        ),
        None => String::new(),
    };
    format!(
        r#"
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[method]fields.append" (func $append (param i32 i32 i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-method" (func $method (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-scheme" (func $scheme (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.body" (func $body (param i32 i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-body.write" (func $stream (param i32 i32)))
(import "wasi:http/types@0.2.12" "[static]outgoing-body.finish" (func $finish (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.12" "[resource-drop]output-stream" (func $drop_stream (param i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.get" (func $get (param i32 i32)))
(import "wasi:http/types@0.2.12" "[method]incoming-response.status" (func $status (param i32) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(data (i32.const 1024) "{authority}/")
(data (i32.const 2048) "content-length  {digits}")
(func $digit (param $at i32) (param $n i32) (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10)))))
(func $main (result i32) (local $f i32) (local $r i32) (local $n i32) (local $s i32)
  (local.set $f (call $fields))
  {announce}
  (local.set $r (call $request (local.get $f)))
  (drop (call $method (local.get $r) (i32.const 2) (i32.const 0) (i32.const 0)))
  (drop (call $scheme (local.get $r) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)))
  (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const {authority_len})))
  (drop (call $path (local.get $r) (i32.const 1) (i32.const {path_at}) (i32.const 1)))
  (call $body (local.get $r) (i32.const 256))
  (call $stream (i32.load (i32.const 260)) (i32.const 264))
  (call $handle (local.get $r) (i32.const 0) (i32.const 0) (i32.const 272))
  (if (i32.load8_u (i32.const 272)) (then unreachable))
  (memory.fill (i32.const 4096) (i32.const 98) (i32.const 4096))
  (block $written (loop $l
    (br_if $written (i32.ge_u (local.get $n) (i32.const {chunks})))
    (call $write (i32.load (i32.const 268)) (i32.const 4096) (i32.const 4096) (i32.const 288))
    (if (i32.load8_u (i32.const 288)) (then (return (call $retry (i32.const 1024) (i32.const 4)))))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br $l)))
  (call $drop_stream (i32.load (i32.const 268)))
  (call $finish (i32.load (i32.const 260)) (i32.const 0) (i32.const 0) (i32.const 320))
  (call $block (call $subscribe (i32.load (i32.const 280))))
  (call $get (i32.load (i32.const 280)) (i32.const 512))
  ;; option<result<result<response, error>>>: the innermost tag, then the response.
  (if (i32.load8_u (i32.const 528)) (then (return (call $retry (i32.const 1024) (i32.const 0)))))
  (local.set $s (call $status (i32.load (i32.const 536))))
  (call $digit (i32.const 902) (local.get $s))
  (call $digit (i32.const 901) (i32.div_u (local.get $s) (i32.const 10)))
  (call $digit (i32.const 900) (i32.div_u (local.get $s) (i32.const 100)))
  (call $cancel (i32.const 900) (i32.const 3)))
"#
    )
}

/// A guest that GETs through `wasi:http` and reads the answer to its end, or until nothing has come for so long: that is a retry.
fn gets(address: &std::net::SocketAddr, between_bytes: Duration) -> String {
    let authority = address.to_string();
    let (authority_len, path_at) = (authority.len(), 1024 + authority.len());
    let between_ns = between_bytes.as_nanos();
    format!(
        r#"
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-scheme" (func $scheme (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]request-options" (func $options (result i32)))
(import "wasi:http/types@0.2.12" "[method]request-options.set-between-bytes-timeout" (func $between (param i32 i32 i64) (result i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.get" (func $get (param i32 i32)))
(import "wasi:http/types@0.2.12" "[method]incoming-response.consume" (func $consume (param i32 i32)))
(import "wasi:http/types@0.2.12" "[method]incoming-body.stream" (func $stream (param i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]input-stream.blocking-read" (func $read (param i32 i64 i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(data (i32.const 1024) "{authority}/")
(func $main (result i32) (local $r i32) (local $o i32)
  (local.set $r (call $request (call $fields)))
  (drop (call $scheme (local.get $r) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)))
  (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const {authority_len})))
  (drop (call $path (local.get $r) (i32.const 1) (i32.const {path_at}) (i32.const 1)))
  (local.set $o (call $options))
  (drop (call $between (local.get $o) (i32.const 1) (i64.const {between_ns})))
  (call $handle (local.get $r) (i32.const 1) (local.get $o) (i32.const 272))
  (if (i32.load8_u (i32.const 272)) (then unreachable))
  (call $block (call $subscribe (i32.load (i32.const 280))))
  (call $get (i32.load (i32.const 280)) (i32.const 512))
  (if (i32.load8_u (i32.const 528)) (then (return (call $retry (i32.const 1024) (i32.const 0)))))
  (call $consume (i32.load (i32.const 536)) (i32.const 600))
  (call $stream (i32.load (i32.const 604)) (i32.const 608))
  (loop $l
    (call $read (i32.load (i32.const 612)) (i64.const 4096) (i32.const 616))
    (br_if $l (i32.eqz (i32.load8_u (i32.const 616)))))
  ;; result<_, stream-error>: closed, or what went wrong.
  (if (i32.load8_u (i32.const 620)) (then (return (call $ok))))
  (call $retry (i32.const 1024) (i32.const 4)))
"#
    )
}

fn grant(server: &Server) -> String {
    format!("[limits]\ndeadline = \"15s\"\ncpu = \"3s\"\n[grants]\nhosts = [\"{}\"]", server.url())
}

fn status(text: &str) -> Outcome {
    Outcome::Cancel { error: text.into() }
}

#[tokio::test]
async fn a_body_whose_length_is_announced_is_sent_with_it() {
    let server = Server::start(|stream, _| answer(stream, "201 Created", ""));
    let plugin = load(&posts(&server.address, 3, Some(3 * 4096)), &grant(&server)).await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!(handled.outcome, status("201"));
    assert_eq!(handled.http_status, Some(201));
    let request = server.requests().remove(0);
    assert!(
        request.starts_with("POST / HTTP/1.1\r\n") && request.to_lowercase().contains("content-length: 12288\r\n"),
        "{request}"
    );
    assert!(request.ends_with(&"b".repeat(3 * 4096)));
}

#[tokio::test]
async fn a_body_of_unknown_length_is_sent_in_chunks() {
    let server = Server::silent(|stream, requests| {
        // Reads to the end of the last chunk.
        let mut bytes = vec![];
        let mut buffer = [0; 4096];
        while !bytes.ends_with(b"0\r\n\r\n") {
            match std::io::Read::read(stream, &mut buffer) {
                Ok(read) if read > 0 => bytes.extend_from_slice(&buffer[..read]),
                _ => return,
            }
        }
        requests.lock().unwrap().push(String::from_utf8_lossy(&bytes).into_owned());
        answer(stream, "200 OK", "");
    });
    let plugin = load(&posts(&server.address, 3, None), &grant(&server)).await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, status("200"));
    assert!(server.requests()[0].to_lowercase().contains("transfer-encoding: chunked\r\n"));
}

#[tokio::test]
async fn a_target_that_answers_before_it_has_read_the_body_does_not_close_it_under_the_guest() {
    let server = Server::silent(|stream, _| {
        let mut head = vec![];
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && std::io::Read::read(stream, &mut byte).is_ok_and(|read| read > 0) {
            head.push(byte[0]);
        }
        let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        std::thread::sleep(Duration::from_secs(2));
    });
    let plugin = load(&posts(&server.address, 500, None), &grant(&server)).await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, status("413"));
}

#[tokio::test]
async fn a_body_of_another_length_than_announced_is_never_sent_as_if_it_were_whole() {
    for (chunks, length) in [(1, 8192), (3, 8192)] {
        let server = Server::start(|stream, _| answer(stream, "200 OK", ""));
        let plugin = load(&posts(&server.address, chunks, Some(length)), &grant(&server)).await.unwrap();

        let handled = call(&plugin, "{}").await;

        assert_ne!(word(&handled.outcome), "success", "{handled:?}");
        // What is longer may have been answered at the length that was announced.
        assert!(chunks > 1 || handled.target == Target::Unseen, "{handled:?}");
        assert!(server.requests().iter().all(|request| request.len() <= 8192 + 400), "{chunks}");
    }
}

#[tokio::test]
async fn a_target_that_does_not_end_the_body_of_its_answer_has_failed() {
    for (length, outcome, target) in [(5, "success", Target::Answered), (6, "retry", Target::Failed)] {
        let server = Server::start(move |stream, _| {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\nhello");
        });
        let plugin = load(&gets(&server.address, Duration::from_millis(100)), &grant(&server)).await.unwrap();

        let handled = call(&plugin, "{}").await;

        assert_eq!((word(&handled.outcome), handled.target), (outcome, target), "{handled:?}");
    }
}

/// A target that says 200, and sends half of its body.
fn half_answers() -> Server {
    Server::start(|stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    })
}

#[tokio::test]
async fn a_target_whose_answer_lasts_until_the_deadline_has_failed() {
    let server = half_answers();
    let manifest = grant(&server).replace("15s", "2s");
    let plugin = load(&gets(&server.address, Duration::from_secs(10)), &manifest).await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!((word(&handled.outcome), handled.http_status), ("deadline", Some(200)), "{handled:?}");
    assert_eq!(handled.target, Target::Failed);
}

#[tokio::test]
async fn a_target_has_answered_a_guest_that_does_not_read_the_body_of_its_answer() {
    let server = half_answers();
    let plugin = load(&posts(&server.address, 1, Some(4096)), &grant(&server)).await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!((handled.outcome, handled.target), (status("200"), Target::Answered));
}

#[tokio::test]
async fn a_streamed_body_ends_at_limits_upload() {
    let server = Server::start(|stream, _| answer(stream, "200 OK", ""));
    let manifest = grant(&server).replace("cpu", "upload = \"64KiB\"\ncpu");
    let plugin = load(&posts(&server.address, 100, None), &manifest).await.unwrap();

    let handled = call(&plugin, "{}").await;

    assert_eq!(word(&handled.outcome), "retry", "{handled:?}");
    assert!(error(&handled.outcome).contains("limits.upload"), "{handled:?}");
}
