//! What this host itself can have wrong: folders that others may write, limits, certificates, the sandbox's age.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use outboxd_store::Finding;

use crate::config::Config;
use crate::plugin::egress::RootsBase;
use crate::plugin::{self, ENGINE_NAME, ENGINE_VERSION, ENGINE_VERSION_MIN, Watch};

pub fn examine(config: &Config) -> Vec<Finding> {
    vec![folder(&config.plugins), watching(config), authorities(config), sandbox(ENGINE_VERSION)]
}

/// Who can write a plugin decides what is delivered and where secrets go.
fn folder(dir: &Path) -> Finding {
    const CHECK: &str = "plugins folder";
    let (entries, resolved) = match fs::read_dir(dir).and_then(|entries| Ok((entries, fs::canonicalize(dir)?))) {
        Ok(found) => found,
        Err(error) => {
            return Finding::warn(CHECK, format!("{dir:?}: {error}"), "create it, or name another by --plugins");
        }
    };
    let files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let components = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "wasm")).count();
    // Where others may write above it, they may put another folder in its place; a sticky folder (/tmp) keeps what is another's.
    let above =
        resolved.ancestors().skip(1).filter(|path| fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o1000 == 0));
    let places = above.map(Path::to_path_buf).chain([resolved.clone()]).chain(files);
    let Some((who, path)) = places.filter_map(|path| Some((writer(&path)?, path))).max() else {
        return Finding::ok(CHECK, format!("{}: {components} plugins, only their owner may write", dir.display()));
    };
    let found = format!("{} may be written by {}", path.display(), who.name());
    match who {
        Writer::Everybody => {
            Finding::fail(CHECK, found, "\"chmod o-w\" it: who writes there decides what is delivered where")
        }
        Writer::Group => Finding::warn(CHECK, found, "\"chmod g-w\" it, unless the group is meant to deploy plugins"),
    }
}

/// The worse, the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Writer {
    Group,
    Everybody,
}

impl Writer {
    fn name(self) -> &'static str {
        match self {
            Writer::Everybody => "everybody",
            Writer::Group => "its group",
        }
    }
}

/// Who beside its owner may write there.
fn writer(path: &Path) -> Option<Writer> {
    let mode = fs::metadata(path).ok()?.mode();
    match mode & 0o022 {
        0 => None,
        bits if bits & 0o002 != 0 => Some(Writer::Everybody),
        _ => Some(Writer::Group),
    }
}

fn watching(config: &Config) -> Finding {
    const CHECK: &str = "watching";
    if config.watch != Watch::Auto {
        return Finding::ok(CHECK, "by looking, as configured");
    }
    match plugin::try_watching(&config.plugins) {
        Ok(()) => Finding::ok(CHECK, "the plugins folder tells of changes"),
        Err(_) if !config.plugins.exists() => Finding::ok(CHECK, "there is no plugins folder yet"),
        Err(error) => Finding::warn(
            CHECK,
            format!("the plugins folder cannot be watched: {error}"),
            "raise fs.inotify.max_user_instances and max_user_watches (sysctl); meanwhile it is looked at every 2 s",
        ),
    }
}

fn authorities(config: &Config) -> Finding {
    const CHECK: &str = "authorities";
    match config.roots.count() {
        Ok(0) => Finding::fail(
            CHECK,
            "no certificate authority is known, so no https target can be reached",
            "install ca-certificates, or set tls_roots = \"webpki\" under [sandbox]",
        ),
        Ok(count) => {
            let base = if config.roots.base == RootsBase::Webpki { "Mozilla's, compiled in" } else { "this machine's" };
            Finding::ok(
                CHECK,
                format!("{count} certificate authorities: {base}, and {} extra files", config.roots.extra_ca.len()),
            )
        }
        Err(error) => Finding::fail(CHECK, error, "correct extra_ca under [sandbox]"),
    }
}

fn sandbox(version: &str) -> Finding {
    const CHECK: &str = "sandbox";
    let numbers = |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    if numbers(version) < numbers(ENGINE_VERSION_MIN) {
        let found = format!("{ENGINE_NAME} {version} has known holes; {ENGINE_VERSION_MIN} is the floor");
        return Finding::fail(CHECK, found, "install a newer outboxd");
    }
    Finding::ok(CHECK, format!("{ENGINE_NAME} {version}, not below the floor {ENGINE_VERSION_MIN}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use outboxd_store::Verdict;
    use tempfile::TempDir;

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_plugin_that_everybody_may_write_is_not_hidden_by_a_folder_that_only_the_group_may() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("shop.wasm");
        fs::write(&file, "").unwrap();
        chmod(&file, 0o666);
        chmod(dir.path(), 0o775);

        let finding = folder(dir.path());

        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.found.contains("shop.wasm may be written by everybody"), "{finding:?}");
    }

    #[test]
    fn a_folder_that_everybody_may_replace_is_not_hidden_by_a_plugin_that_only_the_group_may_write() {
        let above = TempDir::new().unwrap();
        let dir = above.path().join("plugins");
        fs::create_dir(&dir).unwrap();
        let file = dir.join("shop.wasm");
        fs::write(&file, "").unwrap();
        chmod(&file, 0o664);
        chmod(&dir, 0o755);
        chmod(above.path(), 0o777);

        let open = folder(&dir);
        chmod(above.path(), 0o1777);
        let sticky = folder(&dir);

        assert_eq!(open.verdict, Verdict::Fail, "{open:?}");
        assert_eq!(sticky.verdict, Verdict::Warn, "{sticky:?}");
        assert!(sticky.found.contains("shop.wasm may be written by its group"), "{sticky:?}");
    }

    #[test]
    fn a_sandbox_below_the_floor_fails_and_this_binarys_does_not() {
        assert_eq!(sandbox("48.0.7").verdict, Verdict::Fail);
        assert_eq!(sandbox("unknown").verdict, Verdict::Fail);
        assert_eq!(sandbox("48.0.10").verdict, Verdict::Ok);
        assert_eq!(sandbox(ENGINE_VERSION).verdict, Verdict::Ok);
    }
}
