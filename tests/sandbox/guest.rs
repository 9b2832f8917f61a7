//! Turns the text form of a guest into a component, without any toolchain.
//!
//! A text that begins with `(component` or `(module` is taken as it is. Anything else is the inside of a module that has a
//! memory, an allocator and the contract's export already, and supplies `(func $main (result i32) …)`: what it returns is
//! the address of the answer. `$ok`, `$retry` and `$cancel` make one. The message's parts are in globals.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The world of text guests: the contract, and all of WASI that any of them tries.
const WORLD: &str = r#"
package test:guests;
world guest {
    include outboxd:plugin/plugin-wasi-http@1.0.0;
    import wasi:cli/environment@0.2.12;
    import wasi:cli/exit@0.2.12;
    import wasi:cli/stdin@0.2.12;
    import wasi:cli/stdout@0.2.12;
    import wasi:cli/stderr@0.2.12;
    import wasi:clocks/monotonic-clock@0.2.12;
    import wasi:clocks/wall-clock@0.2.12;
    import wasi:filesystem/preopens@0.2.12;
    import wasi:filesystem/types@0.2.12;
    import wasi:io/poll@0.2.12;
    import wasi:io/streams@0.2.12;
    import wasi:random/random@0.2.12;
    import wasi:sockets/instance-network@0.2.12;
    import wasi:sockets/ip-name-lookup@0.2.12;
    import wasi:sockets/tcp-create-socket@0.2.12;
    import wasi:sockets/tcp@0.2.12;
    import wasi:sockets/udp-create-socket@0.2.12;
}
"#;

/// Memory below 4096 is the guest's own; answers are written at 64.
const PRELUDE: &str = r#"
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 65536))
  (global $payload (mut i32) (i32.const 0))
  (global $payload_len (mut i32) (i32.const 0))
  (global $attempt (mut i32) (i32.const 0))
  (func $realloc (export "cabi_realloc") (param $old i32) (param $old_len i32) (param $align i32) (param $len i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 15)) (i32.const -16)))
    (global.set $heap (i32.add (local.get $at) (local.get $len)))
    (block $enough (loop $grow
      (br_if $enough (i32.ge_u (i32.mul (memory.size) (i32.const 65536)) (global.get $heap)))
      (br_if $grow (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))
      unreachable))
    (memory.copy (local.get $at) (local.get $old) (local.get $old_len))
    (local.get $at))
  (func $ok (result i32) (i64.store (i32.const 64) (i64.const 0)) (i32.const 64))
  (func $failure (param $kind i32) (param $at i32) (param $len i32) (result i32)
    (i32.store8 (i32.const 64) (i32.const 1))
    (i32.store8 (i32.const 72) (local.get $kind))
    (i32.store (i32.const 80) (local.get $at))
    (i32.store (i32.const 84) (local.get $len))
    (i32.store8 (i32.const 88) (i32.const 0))
    (i32.const 64))
  (func $retry (param $at i32) (param $len i32) (result i32) (call $failure (i32.const 0) (local.get $at) (local.get $len)))
  (func $cancel (param $at i32) (param $len i32) (result i32) (call $failure (i32.const 1) (local.get $at) (local.get $len)))
  (func (export "outboxd:plugin/handler@1.0.0#handle")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)
    (global.set $payload (local.get 7))
    (global.set $payload_len (local.get 8))
    (global.set $attempt (local.get 11))
    (call $main))
"#;

/// The component of a guest's text.
pub(crate) fn build(text: &str) -> Vec<u8> {
    let code =
        text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with(";;")).unwrap_or_default();
    if code.starts_with("(component") {
        return wat::parse_str(text).expect("the text of a component");
    }
    if code.starts_with("(module") {
        return encode(wat::parse_str(text).expect("the text of a module"));
    }
    // Imports stand before everything else.
    let (imports, rest): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.trim_start().starts_with("(import"));
    let module = format!("(module\n{}\n{PRELUDE}\n{})", imports.join("\n"), rest.join("\n"));
    encode(wat::parse_str(&module).unwrap_or_else(|error| panic!("{error}\n{module}")))
}

fn encode(mut module: Vec<u8>) -> Vec<u8> {
    let mut resolve = Resolve::default();
    resolve.push_dir(outboxd_test_support::repository().join("wit/v1")).expect("the contract");
    let package = resolve.push_str("guests.wit", WORLD).expect("the world of guests");
    let world = resolve.select_world(&[package], Some("guest")).expect("its only world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("room for metadata");
    let encoder = ComponentEncoder::default().module(&module).expect("a module of the world");
    encoder.validate(true).encode().unwrap_or_else(|error| panic!("the guest is no component: {error:#}"))
}

/// A guest that sends one request through the contract's `http`, then does `after`. The answer's bytes lie at 128: tag 0 for
/// a response, 1 for an error; the status or the kind of error at 132.
pub(crate) fn sends(method: &str, url: &str, after: &str) -> String {
    sends_with(method, url, &[], "", after)
}

/// The same with headers and a body.
pub(crate) fn sends_with(method: &str, url: &str, headers: &[(&str, &str)], body: &str, after: &str) -> String {
    let mut data = Vec::new();
    let mut at = 8192;
    let mut placed: std::collections::HashMap<Vec<u8>, usize> = std::collections::HashMap::new();
    // The same bytes stand once: what lies beyond 64 KiB is the allocator's.
    let mut place = |bytes: &[u8]| {
        if let Some(here) = placed.get(bytes) {
            return (*here, bytes.len());
        }
        let here = at;
        placed.insert(bytes.to_vec(), here);
        data.push(format!("(data (i32.const {here}) \"{}\")", escape(bytes)));
        at += bytes.len().next_multiple_of(8);
        (here, bytes.len())
    };
    let (method_at, method_len) = place(method.as_bytes());
    let (url_at, url_len) = place(url.as_bytes());
    let (body_at, body_len) = place(body.as_bytes());
    let mut table = Vec::new();
    for (name, value) in headers {
        for (here, len) in [place(name.as_bytes()), place(value.as_bytes())] {
            table.extend(u32::try_from(here).unwrap().to_le_bytes());
            table.extend(u32::try_from(len).unwrap().to_le_bytes());
        }
    }
    let (headers_at, _) = place(&table);
    format!(
        r#"
(import "outboxd:plugin/http@1.0.0" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
{}
(func $main (result i32)
  (call $send (i32.const {method_at}) (i32.const {method_len}) (i32.const {url_at}) (i32.const {url_len})
    (i32.const {headers_at}) (i32.const {}) (i32.const {body_at}) (i32.const {body_len})
    (i32.const 0) (i64.const 0) (i32.const 128))
  {after})
"#,
        data.join("\n"),
        headers.len(),
    )
}

/// What becomes of an answer of `http.send` at 128: cancelled with the body of a response; of an error, a retry with its
/// kind as a digit: 0 denied, 1 dns, 2 connect, 3 tls, 4 timeout, 5 too large, 6 protocol.
pub(crate) const TELL: &str = r#"
  (if (i32.eqz (i32.load8_u (i32.const 128))) (then (return (call $cancel (i32.load (i32.const 144)) (i32.load (i32.const 148))))))
  (i32.store8 (i32.const 4000) (i32.add (i32.const 48) (i32.load8_u (i32.const 132))))
  (call $retry (i32.const 4000) (i32.const 1))"#;

/// A guest that GETs the URL that its message's payload is, and tells.
pub(crate) fn gets_its_payload() -> String {
    format!(
        r#"
(import "outboxd:plugin/http@1.0.0" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
(data (i32.const 1024) "GET")
(func $main (result i32)
  (call $send (i32.const 1024) (i32.const 3) (global.get $payload) (global.get $payload_len)
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 128))
  {TELL})
"#
    )
}

fn escape(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}
