//! What must be absent where: read from the sources, since a habit is not a rule.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use outboxd_test_support::planted::BUGS;

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![outboxd_test_support::repository().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}")) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source text");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} holds no source");
    found
}

/// No file of `folder` has a line of code with `word`, but those whose path contains one of `except`.
fn absent(folder: &str, word: &str, except: &[&str]) {
    for (path, text) in sources(folder) {
        let shown = path.display().to_string();
        if except.iter().any(|except| shown.contains(except)) {
            continue;
        }
        let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (number, line) in code {
            assert!(!line.contains(word), "{shown}:{}: {word:?} has no place here", number + 1);
        }
    }
}

#[test]
fn the_core_does_no_io_waits_for_nothing_and_draws_nothing() {
    for word in ["async ", "tokio", "std::fs", "std::net", "SystemTime", "Instant::now", "sqlx", "rand::"] {
        // A test may read a clock to have a moment to start from.
        absent("host/core/src", word, if word == "Instant::now" { &["health.rs"] } else { &[] });
    }
}

#[test]
fn producers_do_not_compile_the_sandbox_and_storage_does_not_know_plugins() {
    absent("host/client/src", "outboxd_store", &[]);
    absent("host/client/src", "wasmtime", &[]);
    absent("host/store/src", "wasmtime", &[]);
    absent("host/store/src", "hyper", &[]);
}

#[test]
fn only_client_and_store_name_sqlx_and_only_plugin_names_wasmtime() {
    // The demo's shop is an application, and uses sqlx as one does.
    absent("host/src", "sqlx", &["cli/demo"]);
    absent("host/src", "wasmtime", &["/plugin/"]);
}

#[test]
fn only_cli_prints_reads_settings_and_has_opaque_errors() {
    absent("host/src", "println!", &["/cli/", "main.rs"]);
    absent("host/src", "anyhow", &["/cli/", "main.rs"]);
    absent("host/src", "crate::config", &["/cli/", "/config/"]);
}

#[test]
fn unsafe_stands_in_one_file() {
    absent("host/src", "unsafe ", &["plugin/cache/compiled.rs"]);
    absent("host/store/src", "unsafe ", &[]);
    absent("host/client/src", "unsafe ", &[]);
}

#[test]
fn only_the_core_compares_an_attempt_with_a_maximum() {
    absent("host/src", ">= policy.max_attempts", &[]);
    absent("host/store/src", "max_attempts", &[]);
}

#[test]
fn planted_bugs_are_in_no_program_that_is_shipped() {
    // Refused in a release build; here it is a debug build, as anybody makes it who gives no feature.
    let program = fs::read(env!("CARGO_BIN_EXE_outboxd")).expect("the program");
    let chosen_by = ["OUTBOXD_PLANTED", "_BUG"].concat();

    assert!(!program.windows(chosen_by.len()).any(|window| window == chosen_by.as_bytes()));
}

#[test]
fn every_bug_that_is_planted_has_a_suite_that_must_find_it_and_the_docs_count_them() {
    let rows: BTreeSet<u32> = BUGS.iter().map(|bug| bug.number).collect();
    let mut planted = BTreeSet::new();
    for (_, text) in sources("host") {
        let code: String = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
        // The edits of statements stand in a list, each with its number first.
        for place in ["planted!(", "postgres(", "sqlite("] {
            for argument in code.split(place).skip(1).filter_map(|rest| rest.split(',').next()) {
                let (first, last) = argument.split_once("..=").unwrap_or((argument, argument));
                if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
                    planted.extend(first..=last);
                }
            }
        }
    }

    assert_eq!(planted, rows);
    let counted = format!("\n{} bugs stand in the code on purpose", rows.len());
    assert!(include_str!("../../docs/reliability.md").contains(&counted), "docs/reliability.md should say: {counted}");
}
