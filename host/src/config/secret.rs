//! Values that come from the environment or a file, never from the configuration itself.

use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use crate::config::Environment;
use crate::plugin::Secrets;
use crate::toml_reader::Reader;

/// The secret under `key`, written `{ env = "NAME" }` or `{ file = "PATH" }`. Mistakes are noted on the reader; none of
/// them shows a value.
pub(super) fn secret(reader: &Reader, key: &str, environment: &Environment) -> Option<SecretString> {
    if reader.has(key) && !reader.is_table(key) {
        // Not through a getter: it would show the value that should not have been here.
        reader.skip(key);
        reader.error(key, r#"a secret is written { env = "NAME" } or { file = "PATH" }, never as itself"#);
        return None;
    }
    let table = reader.table(key)?;
    match (table.string("env"), table.string("file")) {
        (Some(name), None) => {
            let value = environment.get(&name);
            if value.is_none() {
                table.error("env", format!("environment variable {name:?} is not set"));
            }
            value.map(SecretString::from)
        }
        (None, Some(path)) => match std::fs::read_to_string(Path::new(&path)) {
            Ok(text) => Some(SecretString::from(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(error) => {
                table.error("file", format!("cannot read {path:?}: {error}"));
                None
            }
        },
        _ => {
            reader.error(key, r#"write either { env = "NAME" } or { file = "PATH" }"#);
            None
        }
    }
}

/// Every secret of the `[secrets]` table.
pub(super) fn secrets(reader: &Reader, environment: &Environment) -> Secrets {
    let value = |name: String| {
        let secret = secret(reader, &name, environment)?;
        Some((name, secret.expose_secret().to_owned()))
    };
    reader.keys().into_iter().filter_map(value).collect()
}
