use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tracing::{debug, warn};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::component::compile;

/// Compiled components on disk, so that a start does not compile again what was compiled before.
///
/// Loading machine code is only as safe as where it comes from: the folder is private to the service's user, each
/// artefact is authenticated, and its name holds the content, the engine's settings and the full version of wasmtime. What
/// does not fit is compiled again, never loaded.
pub(crate) struct Cache {
    dir: PathBuf,
    key: [u8; 32],
}

impl Cache {
    /// Opens or makes the folder; the text says why it cannot be used.
    pub(crate) fn open(dir: &Path) -> Result<Cache, String> {
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
        Ok(Cache { dir: dir.into(), key })
    }

    /// The component of these bytes: from the folder, or compiled and then kept there.
    pub(crate) fn component(&self, engine: &Engine, bytes: &[u8]) -> Result<Component, String> {
        let path = self.dir.join(format!("{}.cwasm", name(engine, bytes)));
        match self.load(engine, &path) {
            Ok(component) => return Ok(component),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!("compiled plugin {path:?} is not usable, it is compiled again: {error}"),
        }
        let artefact = compile(engine, bytes)?;
        match self.keep(&path, &artefact).and_then(|()| self.load(engine, &path)) {
            Ok(component) => Ok(component),
            Err(error) => {
                warn!("compiled plugin {path:?} cannot be kept: {error}");
                Component::from_binary(engine, bytes).map_err(|error| super::component::one_line(&error))
            }
        }
    }

    fn load(&self, engine: &Engine, path: &Path) -> io::Result<Component> {
        let expected = fs::read(path.with_extension("mac"))?;
        let artefact = fs::read(path)?;
        self.mac(path, &artefact)
            .verify_slice(&expected)
            .map_err(|_| io::Error::other("its authentication code is wrong"))?;
        debug!("compiled plugin {path:?} loaded");
        load_authenticated(engine, path).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    fn keep(&self, path: &Path, artefact: &[u8]) -> io::Result<()> {
        // Mapped files are never written in place: a process that runs from one would see it change.
        write_aside(path, artefact)?;
        write_aside(&path.with_extension("mac"), &self.mac(path, artefact).finalize().into_bytes())
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
        let cache = Cache::open(dir.path()).unwrap();

        cache.component(&engine(), &component()).unwrap();

        let path = dir.path().join(format!("{}.cwasm", name(&engine(), &component())));
        assert!(Cache::open(dir.path()).unwrap().load(&engine(), &path).is_ok());
    }

    #[test]
    fn an_artefact_that_was_touched_or_renamed_is_never_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
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
    fn the_folder_and_its_key_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        Cache::open(&path).unwrap();

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
