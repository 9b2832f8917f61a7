//! What reads texts, names and bytes from outside, fed with what nobody would write. A target panics where a rule is broken.
//!
//! `tests/fuzz/run` searches, guided by coverage. What is worth keeping lies in `corpus/TARGET/`; a plain `cargo test` tries that.

use std::path::{Path, PathBuf};

/// Addresses in every clothing.
#[path = "targets/address.rs"]
mod address;
/// `outboxd.toml`.
#[path = "targets/config.rs"]
mod config;
/// Golden messages.
#[path = "targets/golden.rs"]
mod golden;
/// `NAME.toml`.
#[path = "targets/manifest.rs"]
mod manifest;
/// Patterns of hosts and of topics.
#[path = "targets/pattern.rs"]
mod pattern;
/// What lies in the plugins folder.
#[path = "targets/plugin_file.rs"]
mod plugin_file;
/// Pages and texts that show what outsiders wrote.
#[path = "targets/render.rs"]
mod render;
/// Requests to the admin address.
#[path = "targets/router.rs"]
mod router;
/// Operations on the store.
#[path = "targets/store.rs"]
mod store;
/// Names of tables.
#[path = "targets/table.rs"]
mod table;
/// URLs that plugins ask for.
#[path = "targets/url.rs"]
mod url;
/// What a call came to.
#[path = "targets/verdict.rs"]
mod verdict;

type Target = fn(&[u8]);

/// Each target by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("address", address::try_one),
    ("config", |bytes| as_text(bytes, config::try_one)),
    ("golden", |bytes| as_text(bytes, golden::try_one)),
    ("manifest", |bytes| as_text(bytes, manifest::try_one)),
    ("pattern", |bytes| as_text(bytes, pattern::try_one)),
    ("plugin_file", plugin_file::try_one),
    ("render", |bytes| as_text(bytes, render::try_one)),
    ("router", |bytes| as_text(bytes, router::try_one)),
    ("store", store::try_one),
    ("table", |bytes| as_text(bytes, table::try_one)),
    ("url", |bytes| as_text(bytes, url::try_one)),
    ("verdict", verdict::try_one),
];

/// The target that `OUTBOXD_FUZZ_TARGET` names.
pub fn chosen() -> Target {
    let name = std::env::var("OUTBOXD_FUZZ_TARGET").unwrap_or_default();
    let known = TARGETS.iter().find(|(known, _)| *known == name);
    known.unwrap_or_else(|| panic!("OUTBOXD_FUZZ_TARGET={name:?} is no target")).1
}

/// The inputs that are kept of a target.
pub fn corpus(target: &str) -> PathBuf {
    // Cargo says at run time where this is: clones may share a target folder.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).join("corpus").join(target)
}

fn as_text(bytes: &[u8], try_one: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        try_one(text);
    }
}

/// One line that a person can read: no error may bring a terminal or a log into disorder.
fn assert_readable(error: &str) {
    assert!(!error.is_empty() && !error.contains(['\n', '\r', '\0', '\u{1b}']), "{error:?}");
}

/// Runs to its end what a target has to wait for, with time that stands still.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_that_was_kept_holds_again() {
        for (name, try_one) in TARGETS {
            let files: Vec<_> =
                std::fs::read_dir(corpus(name)).expect(name).map(|file| file.expect(name).path()).collect();
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                println!("{}", file.display());
                try_one(&std::fs::read(&file).expect(name));
            }
        }
    }

    #[test]
    fn no_corpus_is_without_a_target() {
        for folder in std::fs::read_dir(corpus("")).expect("corpus") {
            let name = folder.expect("corpus").file_name().into_string().expect("a name");
            assert!(TARGETS.iter().any(|(target, _)| *target == name), "{name}");
        }
    }
}
