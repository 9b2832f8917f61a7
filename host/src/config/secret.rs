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
            // An empty one is a mistake of whoever set it: it would sign with no key, or let everyone in.
            match value.as_deref() {
                None => table.error("env", format!("environment variable {name:?} is not set")),
                Some("") => table.error("env", format!("environment variable {name:?} is empty")),
                Some(_) => {}
            }
            value.filter(|value| !value.is_empty()).map(SecretString::from)
        }
        (None, Some(path)) => match std::fs::read_to_string(Path::new(&path)) {
            Ok(text) if text.trim_end_matches(['\r', '\n']).is_empty() => {
                table.error("file", format!("{path:?} is empty"));
                None
            }
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

/// The secret under `key` where it is at hand: who looks at the outbox or tries a plugin may lack it.
pub(super) fn secret_at_hand(reader: &Reader, key: &str, environment: &Environment) -> Option<SecretString> {
    if !reader.is_table(key) {
        return secret(reader, key, environment);
    }
    let table = reader.table(key)?;
    let value = match (table.string("env"), table.string("file")) {
        (Some(name), _) => environment.get(&name),
        (None, path) => std::fs::read_to_string(path?).ok().map(|text| text.trim_end_matches(['\r', '\n']).to_owned()),
    };
    value.filter(|value| !value.is_empty()).map(SecretString::from)
}

/// Reads one secret: [`secret`] or [`secret_at_hand`].
pub(super) type ReadSecret = fn(&Reader, &str, &Environment) -> Option<SecretString>;

/// Every secret of the `[secrets]` table.
pub(super) fn secrets(reader: &Reader, environment: &Environment, read: ReadSecret) -> Secrets {
    let value = |name: String| {
        let secret = read(reader, &name, environment)?;
        Some((name, secret.expose_secret().to_owned()))
    };
    reader.keys().into_iter().filter_map(value).collect()
}
