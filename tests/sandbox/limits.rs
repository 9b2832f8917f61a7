use outboxd::plugin::OnePlugin;
use outboxd_core::{Outcome, Target};

use crate::guest::{TELL, sends_with};
use crate::harness::{call, error, load, word};
use crate::server::{Server, answer};

fn ok_server() -> Server {
    Server::start(|stream, _| answer(stream, "200 OK", &"x".repeat(1000)))
}

/// A guest under `limits` that may reach `server`.
async fn guest(text: &str, server: &Server, limits: &str) -> OnePlugin {
    let manifest = format!("[limits]\ndeadline = \"15s\"\n{limits}\n[grants]\nhosts = [\"{}\"]", server.url());
    load(text, &manifest).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Sends `times` requests one after the other and tells of the last.
fn sends_times(url: &str, times: u32) -> String {
    let again = format!(
        "(global.set $n (i32.add (global.get $n) (i32.const 1)))
         (if (i32.and (i32.eqz (i32.load8_u (i32.const 128))) (i32.lt_u (global.get $n) (i32.const {times}))) (then (return (call $main))))
         {TELL}"
    );
    format!("(global $n (mut i32) (i32.const 0))\n{}", sends_with("GET", url, &[], "", &again))
}

#[tokio::test]
async fn requests_of_one_call_end_at_their_limit() {
    let server = ok_server();

    let within = call(&guest(&sends_times(&server.url(), 5), &server, "requests = 5").await, "{}").await;
    let beyond = call(&guest(&sends_times(&server.url(), 6), &server, "requests = 5").await, "{}").await;

    assert_eq!(word(&within.outcome), "cancelled");
    assert!(error(&beyond.outcome).contains("limits.requests"), "{beyond:?}");
    assert_eq!(server.requests().len(), 10);
}

#[tokio::test]
async fn a_refusal_takes_back_nothing_that_a_target_did() {
    let sick = Server::start(|stream, _| answer(stream, "500 Internal Server Error", ""));

    let beyond = call(&guest(&sends_times(&sick.url(), 6), &sick, "requests = 5").await, "{}").await;

    assert!(error(&beyond.outcome).contains("limits.requests"), "{beyond:?}");
    assert_eq!(beyond.target, Target::Failed);
}

#[tokio::test]
async fn request_bodies_end_at_limits_upload() {
    let server = ok_server();
    let body = |bytes: usize| sends_with("POST", &server.url(), &[], &"b".repeat(bytes), TELL);

    let within = call(&guest(&body(1024), &server, "upload = \"1KiB\"").await, "{}").await;
    let beyond = call(&guest(&body(1025), &server, "upload = \"1KiB\"").await, "{}").await;

    assert_eq!(word(&within.outcome), "cancelled");
    assert!(
        error(&beyond.outcome).starts_with("5 [") && error(&beyond.outcome).contains("limits.upload"),
        "{beyond:?}"
    );
}

#[tokio::test]
async fn response_bodies_end_at_limits_download() {
    let server = ok_server();
    let text = sends_with("GET", &server.url(), &[], "", TELL);

    let within = call(&guest(&text, &server, "download = \"1000B\"").await, "{}").await;
    let beyond = call(&guest(&text, &server, "download = \"999B\"").await, "{}").await;

    assert_eq!(word(&within.outcome), "cancelled");
    assert!(
        error(&beyond.outcome).starts_with("5 [") && error(&beyond.outcome).contains("limits.download"),
        "{beyond:?}"
    );
}

#[tokio::test]
async fn a_request_has_a_hundred_headers_at_most_and_a_url_of_eight_kibibytes() {
    let server = ok_server();
    let names: Vec<String> = (0..101).map(|n| format!("x-{n}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let long = |bytes: usize| format!("{}/{}", server.url(), "p".repeat(bytes));
    let run = async |text: String| call(&guest(&text, &server, "").await, "{}").await.outcome;

    assert_eq!(word(&run(sends_with("GET", &server.url(), &headers[..100], "", TELL)).await), "cancelled");
    let many = run(sends_with("GET", &server.url(), &headers, "", TELL)).await;
    assert!(error(&many).contains("more than 100 headers"), "{many:?}");
    let large = "v".repeat(40_000);
    let wide = run(sends_with("GET", &server.url(), &[("a", &large), ("b", &large)], "", TELL)).await;
    assert!(error(&wide).contains("64 KiB"), "{wide:?}");
    assert_eq!(word(&run(sends_with("GET", &long(8000), &[], "", TELL)).await), "cancelled");
    let too_long = run(sends_with("GET", &long(8193), &[], "", TELL)).await;
    assert!(error(&too_long).contains("longer than 8 KiB"), "{too_long:?}");
}

#[tokio::test]
async fn a_line_break_in_a_header_or_a_method_is_an_error_and_nothing_is_sent() {
    let server = ok_server();
    for (method, name, value) in [
        ("GET", "x-a", "1\r\nhost: evil"),
        ("GET", "x-a\r\nhost", "evil"),
        ("GET", "x a", "1"),
        ("GET", "", "1"),
        ("GET", "x-a", "nul\0"),
        ("GET / HTTP/1.1\r\nx:", "x-a", "1"),
        ("", "x-a", "1"),
        ("CONNECT", "x-a", "1"),
        ("TRACE", "x-a", "1"),
    ] {
        let handled =
            call(&guest(&sends_with(method, &server.url(), &[(name, value)], "", TELL), &server, "").await, "{}").await;

        assert_eq!(word(&handled.outcome), "retry", "{method:?} {name:?} {value:?}: {handled:?}");
        assert_eq!(handled.target, Target::Unseen);
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_guests_own_time_for_a_request_is_kept_and_zero_is_no_panic() {
    let silent = Server::start(|_, _| std::thread::sleep(std::time::Duration::from_secs(10)));
    for (ms, most) in [(0, 5000), (300, 5000)] {
        let text = sends_with("GET", &silent.url(), &[], "", TELL).replace(
            "(i32.const 0) (i64.const 0) (i32.const 128)",
            &format!("(i32.const 1) (i64.const {ms}) (i32.const 128)"),
        );
        let plugin = guest(&text, &silent, "").await;
        let started = std::time::Instant::now();

        let handled = call(&plugin, "{}").await;

        assert!(error(&handled.outcome).starts_with('4'), "{handled:?}");
        assert!(started.elapsed() < std::time::Duration::from_millis(most), "{:?}", started.elapsed());
    }
}

/// Sends as many requests through `wasi:http` as the URL's host allows at once, and waits for the last.
fn streams_at_once(address: &std::net::SocketAddr, times: u32) -> String {
    let authority = address.to_string();
    let len = authority.len();
    format!(
        r#"
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-scheme" (func $scheme (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.get" (func $get (param i32 i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(data (i32.const 1024) "{authority}/")
(func $main (result i32) (local $r i32) (local $n i32)
  (loop $l
    (local.set $r (call $request (call $fields)))
    (drop (call $scheme (local.get $r) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)))
    (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const {len})))
    (drop (call $path (local.get $r) (i32.const 1) (i32.const {}) (i32.const 1)))
    (call $handle (local.get $r) (i32.const 0) (i32.const 0) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then unreachable))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $l (i32.lt_u (local.get $n) (i32.const {times}))))
  (call $block (call $subscribe (i32.load (i32.const 264))))
  (call $get (i32.load (i32.const 264)) (i32.const 512))
  ;; option<result<result<response, error>>>: the innermost tag says whether there is an answer.
  (if (i32.load8_u (i32.const 528)) (then (return (call $retry (i32.const 1024) (i32.const {len})))))
  (call $ok))
"#,
        1024 + len
    )
}

#[tokio::test]
async fn requests_under_way_at_once_end_at_their_limit() {
    let slow = Server::start(|stream, _| {
        std::thread::sleep(std::time::Duration::from_millis(300));
        answer(stream, "200 OK", "ok");
    });

    let within = call(&guest(&streams_at_once(&slow.address, 4), &slow, "").await, "{}").await;
    let beyond = call(&guest(&streams_at_once(&slow.address, 5), &slow, "").await, "{}").await;

    assert_eq!(within.outcome, Outcome::Success);
    assert_eq!(word(&beyond.outcome), "retry", "{beyond:?}");
}

#[tokio::test]
async fn a_request_that_a_guest_left_running_ends_with_its_call() {
    let silent = Server::start(|stream, _| {
        // Ends when the other side hangs up.
        let mut byte = [0];
        let _ = std::io::Read::read(stream, &mut byte);
    });
    let leaves = streams_at_once(&silent.address, 3)
        .replace("(call $block (call $subscribe (i32.load (i32.const 264))))", "(return (call $ok))");
    let plugin = guest(&leaves, &silent, "").await;
    let started = std::time::Instant::now();

    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);

    assert!(started.elapsed() < std::time::Duration::from_secs(10));
}
