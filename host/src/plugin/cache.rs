use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tracing::{debug, warn};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::compiler::Compiler;
use super::folder::Content;

/// Compiled components on disk, so that a start does not compile again what was compiled before.
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

    /// The component of these bytes: from the folder, or compiled and then kept there.
    pub(crate) fn component(&self, engine: &Engine, bytes: &[u8]) -> Result<Component, String> {
        let path = self.dir.join(format!("{}.cwasm", name(engine, bytes)));
        match self.load(engine, &path) {
            Ok(component) => return Ok(component),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!("compiled plugin {path:?} is not usable, it is compiled again: {error}"),
        }
        let _turn = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let artefact = self.compiler.compile(engine, bytes)?;
        metrics::histogram!("outboxd_plugin_compile_seconds").record(started.elapsed().as_secs_f64());
        self.keep(&path, &artefact)
            .and_then(|()| self.load(engine, &path))
            .map_err(|error| format!("it is compiled, but cannot be kept in {:?}: {error}", self.dir))
    }

    fn load(&self, engine: &Engine, path: &Path) -> io::Result<Component> {
        let expected = fs::read(path.with_extension("mac"))?;
        let artefact = fs::read(path)?;
        self.mac(path, &artefact)
            .verify_slice(&expected)
            .map_err(|_| io::Error::other("its authentication code is wrong"))?;
        // What is in use is not deleted as unused.
        fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now())).ok();
        debug!("compiled plugin {path:?} loaded");
        load_authenticated(engine, path).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    fn keep(&self, path: &Path, artefact: &[u8]) -> io::Result<()> {
        // Mapped files are never written in place: a process that runs from one would see it change.
        write_aside(path, artefact)?;
        write_aside(&path.with_extension("mac"), &self.mac(path, artefact).finalize().into_bytes())
    }

    /// Keeps a plugin that was found good, so that it can serve when the file in `folder` is bad at the next start.
    pub(crate) fn keep_good(&self, folder: &Path, name: &str, content: &Content) -> io::Result<()> {
        let path = self.good(folder, name);
        let manifest = content.manifest.as_deref();
        // No manifest is told from an empty one.
        let length = manifest.map_or(u64::MAX, |manifest| manifest.len() as u64);
        let body = [&length.to_le_bytes(), manifest.unwrap_or_default().as_bytes(), &content.component].concat();
        let code = self.mac(&path, &body).finalize().into_bytes();
        let same = fs::File::open(&path).and_then(|mut file| {
            let mut known = [0; 32];
            file.read_exact(&mut known)?;
            Ok(known == code[..])
        });
        if same.unwrap_or(false) {
            return Ok(());
        }
        write_aside(&path, &[&code[..], &body].concat())
    }

    /// The plugin of that name that was good last, if it was kept and nobody touched it.
    pub(crate) fn last_good(&self, folder: &Path, name: &str) -> Option<Content> {
        let path = self.good(folder, name);
        let bytes = Bytes::from(fs::read(&path).ok()?);
        let (code, body) = (bytes.get(..32)?, bytes.slice(32..));
        self.mac(&path, &body).verify_slice(code).ok()?;
        let length = u64::from_le_bytes(body.get(..8)?.try_into().ok()?);
        if length == u64::MAX {
            return Some(Content::new(body.slice(8..), None));
        }
        let end = usize::try_from(length).ok()?.checked_add(8).filter(|end| *end <= body.len())?;
        let manifest = String::from_utf8(body[8..end].to_vec()).ok()?;
        Some(Content::new(body.slice(end..), Some(manifest)))
    }

    /// A plugin that is gone is not to come back.
    pub(crate) fn forget_good(&self, folder: &Path, name: &str) {
        fs::remove_file(self.good(folder, name)).ok();
    }

    /// Remembers that a version was sent back, so that a restart does not begin with it.
    pub(crate) fn mark_bad(&self, folder: &Path, name: &str, digest: &str) -> io::Result<()> {
        write_aside(&self.good(folder, name).with_extension("bad"), digest.as_bytes())
    }

    pub(crate) fn is_bad(&self, folder: &Path, name: &str, digest: &str) -> bool {
        fs::read(self.good(folder, name).with_extension("bad")).is_ok_and(|marked| marked == digest.as_bytes())
    }

    /// Folders may share a cache, and names are only unique in one folder.
    fn good(&self, folder: &Path, name: &str) -> PathBuf {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let place = hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes()));
        self.dir.join(format!("{name}-{}.good", &place[..16]))
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

    /// Over the name too: an artefact under another's name is another engine's or another plugin's.
    fn mac(&self, path: &Path, artefact: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        mac.update(&[0]);
        mac.update(artefact);
        mac
    }
}

/// Maps a compiled component whose authentication code has just been found right.
#[allow(unsafe_code)]
fn load_authenticated(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: the file was made by `precompile_component` of this program: it lies in a folder that only this user may
    // enter, and its HMAC under a key that lies there too has been verified over its whole content. It is never written
    // in place, so the mapping does not change. wasmtime itself checks that version and settings fit.
    unsafe { Component::deserialize_file(engine, path) }
}

/// What an artefact depends on: content, settings of the engine, version of wasmtime (its own check looks at the major one
/// only, and a patch release may fix what it compiles).
fn name(engine: &Engine, bytes: &[u8]) -> String {
    let mut settings = Fixed(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut settings);
    settings.0.update(env!("CARGO_PKG_VERSION"));
    settings.0.update(WASMTIME_VERSION);
    format!("{}-{}", hex(&Sha256::digest(bytes)), &hex(&settings.0.finalize())[..32])
}

/// The version in Cargo.lock; a test holds the two together.
pub(crate) const WASMTIME_VERSION: &str = "48.0.8";

/// A hasher that gives the same in every process.
struct Fixed(Sha256);

impl Hasher for Fixed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
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
    use crate::plugin::engine::strict_config;

    fn engine() -> Engine {
        Engine::new(&strict_config()).unwrap()
    }

    fn component() -> Vec<u8> {
        wat::parse_str("(component (core module (func)))").unwrap()
    }

    #[test]
    fn a_component_is_compiled_once_and_then_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();

        cache.component(&engine(), &component()).unwrap();

        let path = dir.path().join(format!("{}.cwasm", name(&engine(), &component())));
        assert!(Cache::open(dir.path(), Compiler::InProcess).unwrap().load(&engine(), &path).is_ok());
    }

    #[test]
    fn an_artefact_that_was_touched_or_renamed_is_never_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        cache.component(&engine(), &component()).unwrap();
        let path = dir.path().join(format!("{}.cwasm", name(&engine(), &component())));
        let other = dir.path().join("other.cwasm");
        fs::copy(&path, &other).unwrap();
        fs::copy(path.with_extension("mac"), other.with_extension("mac")).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();

        assert!(cache.load(&engine(), &path).is_err());
        assert!(cache.load(&engine(), &other).is_err());
        assert!(cache.component(&engine(), &component()).is_ok());
        assert!(cache.load(&engine(), &path).is_ok());
    }

    #[test]
    fn the_last_good_plugin_comes_back_as_it_was_and_only_from_its_own_folder() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        let (here, elsewhere) = (Path::new("/here"), Path::new("/elsewhere"));
        for manifest in [None, Some(String::new()), Some("topics = [\"a\"]".to_string())] {
            let content = Content::new(component().into(), manifest);
            cache.keep_good(here, "shop", &content).unwrap();

            assert_eq!(cache.last_good(here, "shop"), Some(content));
            assert_eq!(cache.last_good(elsewhere, "shop"), None);
        }
        let path = cache.good(here, "shop");
        let mut bytes = fs::read(&path).unwrap();
        bytes[45] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.last_good(here, "shop"), None);
    }

    #[test]
    fn what_was_long_unused_is_deleted_and_what_is_used_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        cache.component(&engine(), &component()).unwrap();
        let used = dir.path().join(format!("{}.cwasm", name(&engine(), &component())));
        let unused = dir.path().join("unused.cwasm");
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

    #[test]
    fn the_name_of_an_artefact_holds_the_version_of_wasmtime_that_is_built_in() {
        let lock = include_str!("../../../Cargo.lock");

        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{WASMTIME_VERSION}\"\n")));
        assert_eq!(lock.matches("name = \"wasmtime\"\n").count(), 1);
    }
}
