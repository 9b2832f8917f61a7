mod compiled;
mod good;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tracing::{debug, warn};

use super::compiler::Compiler;

/// Compiled components on disk, so that a start does not compile again what was compiled before, and the version of each
/// plugin that was good last.
///
/// Loading machine code is only as safe as where it comes from: the folder is private to the service's user, each
/// artefact is authenticated, and its name holds the content, the engine's settings and the full version of wasmtime. What
/// does not fit is compiled again, never loaded.
pub(crate) struct Cache {
    dir: PathBuf,
    key: [u8; 32],
    compiler: Compiler,
    /// One compiler at a time: a folder of new plugins must not take all cores.
    compiling: Mutex<()>,
    _temporary: Option<tempfile::TempDir>,
}

/// What was not used for so long is deleted when a cache is opened.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 86_400);
/// And so is what goes beyond this, the longest unused first. Bytes.
const BYTES_MAX: u64 = 1 << 30;

impl Cache {
    /// The cache in `dir`; where there is none or it cannot be used, one that ends with this process.
    pub(crate) fn open_or_temporary(dir: Option<&Path>, compiler: Compiler) -> Result<Cache, String> {
        if let Some(dir) = dir {
            match Cache::open(dir, compiler.clone()) {
                Ok(cache) => return Ok(cache),
                Err(error) => warn!("{error}; plugins are compiled at every start"),
            }
        }
        let temporary =
            tempfile::tempdir().map_err(|error| format!("no temporary folder for compiled plugins: {error}"))?;
        let cache = Cache::open(temporary.path(), compiler)?;
        Ok(Cache { _temporary: Some(temporary), ..cache })
    }

    /// Opens or makes the folder; the text says why it cannot be used.
    pub(crate) fn open(dir: &Path, compiler: Compiler) -> Result<Cache, String> {
        let complain = |error: io::Error| format!("compiled plugins cannot be kept in {dir:?}: {error}");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(complain)?;
        let meta = fs::metadata(dir).map_err(complain)?;
        let own = fs::metadata("/proc/self").map(|own| own.uid()).unwrap_or(meta.uid());
        if meta.uid() != own {
            return Err(format!("compiled plugins cannot be kept in {dir:?}: it belongs to another user"));
        }
        if meta.mode() & 0o077 != 0 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(complain)?;
        }
        let key = key(&dir.join("key")).map_err(complain)?;
        let cache = Cache { dir: dir.into(), key, compiler, compiling: Mutex::default(), _temporary: None };
        cache.tidy();
        Ok(cache)
    }

    /// Deletes what has long been unused, and what was left half-written. Only that: what is mapped stays readable.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = vec![];
        for entry in entries.flatten() {
            let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let is_old = |age: Duration| used.elapsed().is_ok_and(|elapsed| elapsed > age);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cwasm") => kept.push((used, meta.len(), path)),
                Some(extension) if extension.starts_with("new-") && is_old(Duration::from_secs(3600)) => {
                    drop(fs::remove_file(path))
                }
                _ => {}
            }
        }
        kept.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut bytes = 0;
        for (used, size, path) in kept {
            bytes += size;
            if bytes > BYTES_MAX || used.elapsed().is_ok_and(|age| age > UNUSED_MAX) {
                debug!("compiled plugin {path:?} is deleted: unused, or one too many");
                fs::remove_file(path.with_extension("mac")).ok();
                fs::remove_file(path).ok();
            }
        }
    }

    /// Begins with the name: what lies under another's name is another engine's or another plugin's.
    fn mac(&self, path: &Path) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.chain_update(path.file_name().unwrap_or_default().as_encoded_bytes()).chain_update([0])
    }
}

/// In hexadecimal, lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// The key of this folder, made when it is first needed.
fn key(path: &Path) -> io::Result<[u8; 32]> {
    for _ in 0..2 {
        match fs::read(path) {
            Ok(bytes) if bytes.len() == 32 => return Ok(bytes.try_into().expect("it has 32 bytes")),
            Ok(_) => fs::remove_file(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut key = [0; 32];
        let provider = rustls::crypto::ring::default_provider();
        provider.secure_random.fill(&mut key).map_err(|_| io::Error::other("no random numbers"))?;
        // Another relay may be making it at this moment: whoever is first wins, and the other reads.
        let aside = path.with_extension(format!("new-{}", std::process::id()));
        write_new(&aside, &key)?;
        let linked = fs::hard_link(&aside, path);
        fs::remove_file(&aside)?;
        match linked {
            Ok(()) => return Ok(key),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("its key file is neither readable nor replaceable"))
}

fn write_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("new-{}-{:x}", std::process::id(), fastrand::u64(..)));
    write_new(&aside, bytes).and_then(|()| fs::rename(&aside, path)).inspect_err(|_| {
        fs::remove_file(&aside).ok();
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_unused_is_deleted_and_what_is_used_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (used, unused) = (dir.path().join("used.cwasm"), dir.path().join("unused.cwasm"));
        fs::write(&used, "x").unwrap();
        for path in [unused.clone(), unused.with_extension("mac")] {
            fs::write(&path, "x").unwrap();
            fs::File::open(&path)
                .unwrap()
                .set_modified(SystemTime::now() - UNUSED_MAX - Duration::from_secs(60))
                .unwrap();
        }

        Cache::open(dir.path(), Compiler::InProcess).unwrap();

        assert!(used.exists());
        assert!(!unused.exists() && !unused.with_extension("mac").exists());
    }

    #[test]
    fn the_folder_and_its_key_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        Cache::open(&path, Compiler::InProcess).unwrap();

        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path.join("key")).unwrap().mode() & 0o777, 0o600);
    }
}
