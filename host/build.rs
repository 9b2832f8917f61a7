//! Tells the program which wasmtime is compiled into it: wasmtime itself says only its major version.

use std::fs;

fn main() {
    let lock = "../Cargo.lock";
    println!("cargo::rerun-if-changed={lock}");
    let text = fs::read_to_string(lock).unwrap_or_default();
    let mut lines = text.lines().skip_while(|line| *line != "name = \"wasmtime\"");
    let version =
        lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"')).unwrap_or("unknown");
    println!("cargo::rustc-env=OUTBOXD_WASMTIME={version}");
}
