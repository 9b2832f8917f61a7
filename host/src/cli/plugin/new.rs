use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::templates;
use crate::cli::args::Lang;
use crate::cli::output;
use crate::cli::settings::WrongSettings;

/// Writes a project into a new folder. One that is there already is left alone.
pub fn new(name: &str, lang: Lang) -> anyhow::Result<()> {
    let first = name.starts_with(|first: char| first.is_ascii_lowercase());
    let rest = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !first || !rest || name.len() > 60 {
        let wrong = format!("{name:?} is no name for a plugin: a lower-case letter, then letters, digits and \"-\"");
        return Err(WrongSettings::one(wrong));
    }
    let dir = Path::new(name);
    if dir.exists() {
        bail!("{name:?} is there already; choose another name, or remove it");
    }
    for (path, text) in templates::COMMON.iter().chain(templates::WIT).chain(templates::of(lang)) {
        let path = dir.join(path.replace("{{name}}", name));
        write(&path, &text.replace("{{name}}", name)).with_context(|| format!("cannot write {path:?}"))?;
    }
    output::line(format!("{name}/ is ready; its README.md says what is where. Next:"));
    output::line(format!("  {name}/build"));
    output::line(format!("  outboxd plugin test {name}/{name}.wasm"));
    Ok(())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)?;
    if path.file_name().is_some_and(|name| name == "build") {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
