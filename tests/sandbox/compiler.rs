use std::fmt::Write;
use std::time::{Duration, Instant};

use outboxd::plugin::{ChildCompiler, Compiler, Content, OnePlugin, SandboxOptions};
use outboxd_core::Outcome;

use crate::guest::build;
use crate::harness::{call, manifest, options};
use crate::hostile_folder::nested;

fn child() -> ChildCompiler {
    ChildCompiler::new(env!("CARGO_BIN_EXE_outboxd").into())
}

async fn load(compiler: ChildCompiler, component: Vec<u8>) -> Result<OnePlugin, String> {
    let options = SandboxOptions { compiler: Compiler::Child(compiler), ..options() };
    OnePlugin::load(options, None, "guest", Content::new(component.into(), None), manifest("")).await
}

#[tokio::test]
async fn a_child_compiles_what_this_process_then_runs() {
    let plugin = load(child(), build("(func $main (result i32) (call $ok))")).await.unwrap();

    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);
}

#[tokio::test]
async fn what_the_child_says_is_wrong_is_said() {
    // A section of types in which there is none.
    let component = b"\0asm\x0d\0\x01\0\x07\x02\x01\xff".to_vec();

    let error = load(child(), component).await.err().unwrap();

    assert!(error.starts_with("it cannot be compiled: "), "{error}");
}

/// Functions whose compilation takes a long time and much memory: many values, all alive until the end.
fn bomb() -> Vec<u8> {
    const VALUES: usize = 40_000;
    let mut text = String::from("(component (core module\n");
    for _ in 0..6 {
        writeln!(text, "(func (param i64) (result i64) (local {})", "i64 ".repeat(VALUES)).unwrap();
        for n in 1..=VALUES {
            writeln!(text, "(local.set {n} (i64.mul (local.get {}) (i64.add (local.get 0) (i64.const {n}))))", n - 1)
                .unwrap();
        }
        text.push_str("(local.get 0)\n");
        for n in 1..=VALUES {
            writeln!(text, "(local.get {n}) i64.xor").unwrap();
        }
        text.push_str(")\n");
    }
    text.push_str("))");
    wat::parse_str(text).unwrap()
}

#[tokio::test]
async fn a_component_made_to_exhaust_compilers_ends_its_child_alone() {
    let bomb = bomb();
    let started = Instant::now();
    let memory = load(ChildCompiler { memory: 192 << 20, ..child() }, bomb.clone()).await.err().unwrap();
    let cpu = load(ChildCompiler { cpu: Duration::from_secs(1), ..child() }, bomb.clone()).await.err().unwrap();
    let wall = load(ChildCompiler { wall: Duration::from_millis(100), ..child() }, bomb).await.err().unwrap();

    assert!(memory.contains("within bounds"), "{memory}");
    assert!(cpu.contains("1 s of computing"), "{cpu}");
    assert!(wall.contains("cannot be compiled within 0 s"), "{wall}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let nesting = load(child(), nested(100_000)).await.err().unwrap();
    println!("components within components: {nesting}");
    let plugin = load(child(), build("(func $main (result i32) (call $ok))")).await.unwrap();
    assert_eq!(call(&plugin, "{}").await.outcome, Outcome::Success);
}

#[tokio::test]
async fn the_child_sees_nothing_of_its_parents_environment() {
    // A program that shows what it was given: it ends with 1 and says it on stderr.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("shows");
    std::fs::write(&program, "#!/bin/sh\nenv | grep -v -e PWD -e SHLVL -e '^_=' >&2; echo args: \"$@\" >&2; exit 1\n")
        .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();

    let error =
        load(ChildCompiler { program, ..child() }, build("(func $main (result i32) (call $ok))")).await.err().unwrap();

    assert_eq!(error, format!("args: compile-plugin {} 120", 4u64 << 30));
}
