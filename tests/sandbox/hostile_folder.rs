//! A folder full of what is no plugin, beside one that is.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use outboxd_core::Outcome;

use crate::folder::{deliver, large, start};
use crate::guest::build;

const OK: &str = "(func $main (result i32) (call $ok))";

/// What lies under the name `NAME.wasm`.
enum Lies {
    Bytes(Vec<u8>),
    /// A good component with this manifest.
    Under(Vec<u8>),
    /// Zeroes without end, as far as they take no room.
    Sparse(u64),
    Folder,
    LinkTo(&'static str),
    Pipe,
    Socket,
}

/// Name, what lies there, and words of the reason.
fn corpus() -> Vec<(&'static [u8], Lies, &'static str)> {
    use Lies::*;
    let text = |text: &str| Bytes(build(text));
    let binary = |text: &str| Bytes(wat::parse_str(text).expect("the text of a component"));
    let core = |fields: &str| format!("(component (core module {fields}))");
    let whole = large("whole");
    let first = |share: usize| Bytes(whole[..whole.len() * share / 100].to_vec());
    let under = |manifest: &str| Under(manifest.into());
    vec![
        // No files.
        (b"folder", Folder, "no regular file"),
        (b"dangling", LinkTo("/nowhere/at/all"), "leads nowhere: No such file"),
        (b"link-to-itself", LinkTo("link-to-itself.wasm"), "leads nowhere"),
        (b"link-to-a-device", LinkTo("/dev/zero"), "no regular file"),
        (b"link-to-a-folder", LinkTo("/"), "no regular file"),
        (b"link-to-a-pipe", LinkTo("pipe.wasm"), "no regular file"),
        (b"link-to-a-socket", LinkTo("socket.wasm"), "no regular file"),
        (b"pipe", Pipe, "no regular file"),
        (b"socket", Socket, "no regular file"),
        // Wrong sizes.
        (b"empty", Bytes(vec![]), "empty"),
        (b"four-gibibytes", Sparse(4 << 30), "at most 64 MiB"),
        (b"a-byte-too-large", Sparse((64 << 20) + 1), "at most 64 MiB"),
        // Wrong names.
        (b"star*", text(OK), "\"*\""),
        (b"two words", text(OK), "at most 100 characters"),
        (b"line\nbreak", text(OK), "at most 100 characters"),
        (b"\x1b[31mred", text(OK), "at most 100 characters"),
        (b"<script>", text(OK), "at most 100 characters"),
        (b"$(reboot)", text(OK), "at most 100 characters"),
        ("\u{43e}rders".as_bytes(), text(OK), "at most 100 characters"),
        (b"\xff\xfe", text(OK), "not UTF-8"),
        (&[b'n'; 101], text(OK), "at most 100 characters"),
        (&[b'n'; 250], text(OK), "at most 100 characters"),
        // Wrong contents.
        (b"blank", Bytes(vec![b' ']), "text"),
        (b"zeroes", Sparse(4096), "no WebAssembly"),
        (b"text", Bytes(b"(component)".to_vec()), "text"),
        (b"script", Bytes(b"#!/bin/sh\nreboot\n".to_vec()), "text"),
        (b"program", Bytes(fs::read("/bin/true").expect("a program")), "no WebAssembly"),
        (b"core-module", Bytes(wat::parse_str("(module)").unwrap()), "core WebAssembly module"),
        (b"unknown-version", Bytes(b"\0asm\x0e\0\x01\0".to_vec()), "unknown version"),
        (b"header-only", Bytes(b"\0asm\x0d\0\x01\0".to_vec()), "exports nothing"),
        (b"native", Bytes(native()), "precompiled native artefact"),
        (b"cut-at-a-tenth", first(10), "cut off"),
        (b"cut-at-a-half", first(50), "cut off"),
        (b"cut-near-its-end", first(98), "cut off"),
        (b"nothing-exported", Bytes(wat::parse_str("(component)").unwrap()), "exports nothing"),
        (b"no-handler", text(include_str!("../guests/wat/exports-no-handler.wat")), "no outboxd:plugin/handler"),
        (b"later-contract", text(include_str!("../guests/wat/speaks-a-later-contract.wat")), "this host speaks"),
        (b"unknown-import", text(include_str!("../guests/wat/imports-what-nobody-has.wat")), "does not have"),
        (b"spins-in-start", text(include_str!("../guests/wat/spins-in-start.wat")), "cannot be started"),
        (b"too-much-memory", text(include_str!("../guests/wat/starts-with-too-much-memory.wat")), "limits.memory"),
        (
            b"too-large-a-table",
            text(include_str!("../guests/wat/starts-with-a-huge-table.wat")),
            "than this host gives: module table",
        ),
        // Bombs; what takes long to compile is tried in `compiler`.
        (b"nested-a-thousand-times", Bytes(nested(1000)), "exports nothing"),
        (b"too-many-locals", binary(&core(&format!("(func (local {}))", "i64 ".repeat(60_000)))), "locals"),
        (b"too-many-segments", binary(&core(&format!("(memory 1) {}", "(data \"\")".repeat(100_001)))), "segments"),
        (b"larger-than-it-says", Bytes([build(OK), vec![1, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat()), "cut off"),
        // Wrong manifests.
        (b"no-toml", under("topics = ["), "no-toml.toml:1"),
        (b"unknown-key", under("topic = [\"a\"]"), "\"topics\""),
        (
            b"too-many-topics",
            under(&format!("topics = {:?}", (0..101).map(|n| format!("t{n}")).collect::<Vec<_>>())),
            "at most 100",
        ),
        (b"no-topic", under("topics = []"), "names no topic"),
        (b"overlapping-topics", under("topics = [\"a.*\", \"a.b\"]"), "overlap"),
        (b"grants-everything", under("[grants]\nhosts = [\"*\"]"), "bare"),
        (b"no-scheme", under("[grants]\nhosts = [\"example.com\"]"), "no scheme"),
        (b"beyond-the-ceiling", under("[limits]\nmemory = \"4GiB\""), "256 MiB"),
        (b"private-network", under("[grants]\nprivate_networks = [\"10.0.0.0/8\"]"), "beyond"),
        (b"manifest-not-utf8", Under(b"topics = [\"\xff\"]".to_vec()), "not UTF-8"),
        (b"owns-it-too", under("topics = [\"owned\"]"), "handled by both"),
        (b"owns-it", under("topics = [\"own*\"]"), "handled by both"),
    ]
}

/// Native code as wasmtime keeps it.
fn native() -> Vec<u8> {
    wasmtime::Engine::default().precompile_component(&wat::parse_str("(component)").unwrap()).expect("compiles")
}

/// Components within components.
pub(crate) fn nested(times: usize) -> Vec<u8> {
    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";
    let mut bytes = HEADER.to_vec();
    for left in (0..times).rev() {
        // A component's section: its length in five digits, of which the last may say nothing.
        let length = HEADER.len() + left * (HEADER.len() + 6);
        bytes.push(4);
        bytes.extend((0..5).map(|n| (length >> (7 * n)) as u8 & 0x7f | if n < 4 { 0x80 } else { 0 }));
        bytes.extend(HEADER);
    }
    bytes
}

fn lay(path: &Path, lies: Lies) {
    match lies {
        Lies::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Lies::Under(manifest) => {
            fs::write(path, build(OK)).unwrap();
            fs::write(path.with_extension("toml"), manifest).unwrap();
        }
        Lies::Sparse(size) => File::create(path).unwrap().set_len(size).unwrap(),
        Lies::Folder => fs::create_dir(path).unwrap(),
        Lies::LinkTo(target) => symlink(target, path).unwrap(),
        Lies::Pipe => assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()),
        Lies::Socket => drop(UnixListener::bind(path).unwrap()),
    }
}

#[tokio::test]
async fn everything_in_a_hostile_folder_is_refused_in_words_and_the_good_plugin_serves() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    for (name, lies, words) in corpus() {
        let file = [name, b".wasm"].concat();
        lay(&dir.path().join(OsStr::from_bytes(&file)), lies);
        expected.insert(shown(&file), words);
    }
    assert!(expected.len() >= 56, "the corpus has shrunk to {}", expected.len());
    fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    tokio::time::timeout(Duration::from_secs(60), host.scan_once()).await.expect("a scan that ends");

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    let mut listed: BTreeMap<String, String> = BTreeMap::new();
    for plugin in host.list().into_iter().filter(|plugin| plugin.name != "orders") {
        assert_eq!(plugin.state, "bad", "{plugin:?}");
        listed.insert(format!("{}.wasm", plugin.name), plugin.error.expect("a reason"));
    }
    let as_expected = |(name, words): (&String, &&str)| listed.get(name).is_some_and(|error| error.contains(words));
    let wrong: Vec<_> = expected.iter().filter(|entry| !as_expected(*entry)).collect();
    assert!(wrong.is_empty() && listed.len() == expected.len(), "{wrong:#?}, of {listed:#?}");
    for (name, error) in &listed {
        assert!(error.lines().count() == 1 && !error.contains('\x1b'), "{name}: {error:?}");
        println!("{name}: {error}");
    }
}

/// A file's name as people see it.
fn shown(file: &[u8]) -> String {
    outboxd_core::one_line(&String::from_utf8_lossy(file), 300)
}
