use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::args::Lang;
use super::templates;
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
    let files = [templates::COMMON, templates::WIT].into_iter().chain(templates::of(lang)).flatten();
    make(Path::new(name), files.map(|(path, text)| (path.replace("{{name}}", name), text.replace("{{name}}", name))))?;
    output::line(format!("{name}/ is ready; its README.md says what is where. Next:"));
    output::line(format!("  {name}/build"));
    output::line(format!("  outboxd plugin test {name}/{name}.wasm"));
    Ok(())
}

/// Makes the folder with all its files, of two for the same path the later one, or leaves nothing behind that would stand in
/// the way of another try.
fn make(dir: &Path, files: impl IntoIterator<Item = (String, String)>) -> anyhow::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{dir:?} is there already; choose another name, or remove it")
        }
        made => made.with_context(|| format!("cannot make {dir:?}"))?,
    }
    let written = files.into_iter().try_for_each(|(path, text)| {
        let path = dir.join(path);
        write(&path, &text).with_context(|| format!("cannot write {path:?}"))
    });
    if written.is_err() {
        // Why it could not be written is the better error.
        std::fs::remove_dir_all(dir).ok();
    }
    written
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_that_cannot_be_written_whole_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("orders");
        let file = |path: &str| (path.to_owned(), String::new());

        let error = make(&dir, [file("README.md"), file("README.md/inside")]).unwrap_err();

        assert!(error.to_string().starts_with("cannot write"), "{error}");
        assert!(!dir.exists());
        make(&dir, [file("README.md")]).unwrap();
        assert!(dir.join("README.md").exists());
    }

    #[test]
    fn a_languages_own_manifest_takes_the_place_of_the_common_one() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("orders");

        make(&dir, [("orders.toml".into(), "common".into()), ("orders.toml".into(), "python".into())]).unwrap();

        assert_eq!(std::fs::read_to_string(dir.join("orders.toml")).unwrap(), "python");
    }
}
