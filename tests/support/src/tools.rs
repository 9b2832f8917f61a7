//! Tools of other languages, installed by `tests/install-tools` where they are missing.

use std::path::PathBuf;
use std::process::Command;

/// The folder of the tool `name`, installed now if it was not. Nothing where it cannot be: that is said by name, and a
/// failure in CI.
pub fn tool(name: &str) -> Option<PathBuf> {
    let script = crate::repository().join("tests/install-tools");
    let why = match Command::new(&script).arg(name).output() {
        Ok(output) if output.status.success() => return Some(folder().join(name)),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    crate::skip(&format!("{name} cannot be installed by {script:?}: {why}"));
    None
}

fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("OUTBOXD_TOOLS") {
        return folder.into();
    }
    std::env::home_dir().unwrap_or_default().join(".cache/outboxd/tools")
}
