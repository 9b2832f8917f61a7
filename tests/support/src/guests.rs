//! Paths of the components that tests run, built on first use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

const TARGET: &str = "wasm32-wasip2";

/// The component `name` of `tests/guests`. Panics with one line that says what to do if it cannot be built: a missing
/// tool is a failure, never a skip.
pub fn guest(name: &str) -> PathBuf {
    component("tests/guests", name)
}

/// The plugin `plugins/NAME`, ready to be copied into a plugin folder.
pub fn plugin(name: &str) -> PathBuf {
    component(&format!("plugins/{name}"), name)
}

/// A ready plugin of another language, by `tests/build-plugins`. Nothing where its tools cannot be had: that is said by name,
/// and a failure in CI.
pub fn ready(name: &str) -> Option<PathBuf> {
    let mut command = Command::new(crate::repository().join("tests/build-plugins"));
    // Go's need an outboxd to be built with: the one beside the test that runs.
    let test = std::env::current_exe().unwrap_or_default();
    let outboxd = test.ancestors().nth(2).map(|folder| folder.join("outboxd")).filter(|outboxd| outboxd.exists());
    if let Some(outboxd) = outboxd {
        command.env("OUTBOXD", outboxd);
    }
    let output = command.arg(name).output();
    let output = output.unwrap_or_else(|error| panic!("tests/build-plugins cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if said.contains("SKIPPED") {
        crate::skip(said.trim());
        return None;
    }
    Some(crate::repository().join("plugins").join(name).with_extension("wasm"))
}

/// Another content that does the same: the component with a custom section at its end.
pub fn marked(component: &[u8], mark: &str) -> Vec<u8> {
    let length = |length: usize| u8::try_from(length).expect("a short mark");
    let mut marked = component.to_vec();
    marked.extend([0, length(mark.len() + 1), length(mark.len())]);
    marked.extend(mark.as_bytes());
    marked
}

/// Builds the Cargo workspace `folder` once in this process; Cargo itself keeps several test processes apart.
fn component(folder: &str, name: &str) -> PathBuf {
    static BUILT: LazyLock<Mutex<HashMap<String, Result<(), String>>>> = LazyLock::new(Mutex::default);

    let outcome = {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        built.entry(folder.to_string()).or_insert_with(|| build(folder)).clone()
    };
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let file = target_dir().join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
    // Cargo names the file of a library with underscores and that of a program as it is.
    let file = if file.exists() { file } else { file.with_file_name(format!("{name}.wasm")) };
    assert!(file.exists(), "{folder} builds no component {name:?}");
    file
}

fn build(folder: &str) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "--target", TARGET])
        .arg("--manifest-path")
        .arg(crate::repository().join(folder).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir())
        // Meant for the host's code: coverage or a linker's flags would break the guest.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .map_err(|error| format!("cargo, needed to build {folder}, cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("can't find crate for `std`") || errors.contains("can't find crate for `core`") {
        return Err(format!("{folder} needs the target {TARGET}: run `rustup target add {TARGET}`"));
    }
    Err(format!("{folder} cannot be built:\n{errors}"))
}

/// Apart from the host's target folder, so that neither build throws the other's work away.
fn target_dir() -> PathBuf {
    if let Some(folder) = std::env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(folder).join("guests");
    }
    match std::env::home_dir() {
        Some(home) => home.join(".cache/outboxd/guests"),
        None => std::env::temp_dir().join("outboxd-guests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_and_plugins_are_components() {
        for file in [guest("verbs"), guest("wrong-version"), guest("no-export"), plugin("webhook")] {
            let bytes = std::fs::read(&file).unwrap();

            assert!(bytes.starts_with(b"\0asm\x0d\x00\x01\x00"), "{file:?} is no component");
        }
    }
}
