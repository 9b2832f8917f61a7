//! Files that change faster than they can be compiled, and while they are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use outboxd::plugin::{ChildCompiler, Compiler, PluginOptions, SandboxOptions};
use outboxd_core::Outcome;

use crate::folder::{Watching, cancels, deliver, entry, options_of, start_with, until_answers, watching_with};
use crate::guest::build;
use crate::harness::options;

/// A folder of plugins whose compiler runs `first` and then compiles; nothing is in its cache.
fn compiled_by(dir: &Path, kept: &Path, script: &str) -> PluginOptions {
    let program: PathBuf = kept.join("compiler");
    let script = script.replace("COMPILE", concat!(env!("CARGO_BIN_EXE_outboxd"), " \"$@\""));
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let compiler = Compiler::Child(ChildCompiler::new(program));
    let sandbox = SandboxOptions { compiler, ..options() };
    PluginOptions { cache_dir: Some(kept.join("cache")), sandbox, ..options_of(dir) }
}

#[tokio::test]
async fn a_storm_of_versions_is_waited_out_and_compiled_one_at_a_time() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(&cancels("calm"))).unwrap();
    let log = kept.path().join("log");
    let script = format!("echo begin >> {log:?}; COMPILE; code=$?; echo end >> {log:?}; exit $code");
    let Watching { host, _end } = watching_with(compiled_by(dir.path(), kept.path(), &script));
    until_answers(&host, "calm").await;

    // Two hundred versions, a hundred a second, each beside another plugin's.
    for n in 1..=200 {
        for (name, text) in [("orders", format!("storm {n}")), ("bills", format!("bill {n}"))] {
            let aside = dir.path().join("_new");
            std::fs::write(&aside, build(&cancels(&text))).unwrap();
            std::fs::rename(&aside, dir.path().join(format!("{name}.wasm"))).unwrap();
        }
        assert!(matches!(deliver(&host, "orders").await, Some(Outcome::Cancel { .. })), "something serves always");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until_answers(&host, "storm 200").await;

    let said = std::fs::read_to_string(&log).unwrap();
    let compiled = said.matches("begin").count();
    println!("of 400 versions {compiled} were compiled");
    assert!(compiled <= 40, "{compiled} compilations of 400 versions");
    assert_eq!(said, "begin\nend\n".repeat(compiled), "two compilers at a time");
}

#[tokio::test]
async fn what_is_compiled_is_what_was_hashed_whatever_the_file_holds_by_then() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (file, second) = (dir.path().join("orders.wasm"), kept.path().join("second"));
    std::fs::write(&file, build(&cancels("first"))).unwrap();
    std::fs::write(&second, build(&cancels("second"))).unwrap();
    let script = format!("/bin/cp {second:?} {file:?}; COMPILE");
    let host = start_with(compiled_by(dir.path(), kept.path(), &script));

    host.scan_once().await;
    let first = entry(&host, "orders").digest;
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "first".into() }));

    host.scan_once().await;
    assert_ne!(entry(&host, "orders").digest, first);
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "second".into() }));
}
