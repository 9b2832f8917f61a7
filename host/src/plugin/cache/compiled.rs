use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Instant, SystemTime};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use tracing::{debug, warn};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::{Cache, hex, write_aside};
use crate::plugin::component::one_line;
use crate::plugin::folder::Content;

/// Why what was compiled before does not serve.
enum Unusable {
    Absent,
    /// Touched, cut short, unreadable: compiled again it may do.
    Broken(io::Error),
    /// As it was made, and still the engine does not take it: compiled again it would be the same.
    Refused(String),
}

impl Cache {
    /// The compiled component of this content: from the folder, or compiled and then kept there.
    pub(crate) fn component(&self, engine: &Engine, content: &Content) -> Result<Component, String> {
        let path = self.dir.join(format!("{}.cwasm", name(engine, content)));
        match self.load(engine, &path) {
            Ok(component) => return Ok(component),
            Err(Unusable::Refused(why)) => return Err(why),
            Err(Unusable::Absent) => {}
            Err(Unusable::Broken(error)) => {
                warn!("compiled plugin {path:?} is not usable, it is compiled again: {error}")
            }
        }
        let _turn = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let artefact = self.compiler.compile(engine, &content.component)?;
        metrics::histogram!("outboxd_plugin_compile_seconds").record(started.elapsed().as_secs_f64());
        let not_kept = |error| format!("it is compiled, but cannot be kept in {:?}: {error}", self.dir);
        self.keep(&path, &artefact).map_err(not_kept)?;
        self.load(engine, &path).map_err(|unusable| match unusable {
            Unusable::Refused(why) => why,
            Unusable::Broken(error) => not_kept(error),
            Unusable::Absent => not_kept(io::ErrorKind::NotFound.into()),
        })
    }

    fn load(&self, engine: &Engine, path: &Path) -> Result<Component, Unusable> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Unusable::Absent,
            _ => Unusable::Broken(error),
        };
        let expected = fs::read(path.with_extension("mac")).map_err(broken)?;
        let mac = self.mac_of_file(path).map_err(broken)?;
        mac.verify_slice(&expected).map_err(|_| broken(io::Error::other("its authentication code is wrong")))?;
        // What is in use is not deleted as unused.
        fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now())).ok();
        debug!("compiled plugin {path:?} loaded");
        load_authenticated(engine, path)
            .map_err(|error| Unusable::Refused(format!("it needs more than this host gives: {}", one_line(&error))))
    }

    fn keep(&self, path: &Path, artefact: &[u8]) -> io::Result<()> {
        // Mapped files are never written in place: a process that runs from one would see it change.
        write_aside(path, artefact)?;
        write_aside(&path.with_extension("mac"), &self.mac(path).chain_update(artefact).finalize().into_bytes())
    }

    /// Piece by piece: the file is mapped afterwards, so a copy of it in memory would only be another one.
    fn mac_of_file(&self, path: &Path) -> io::Result<Hmac<Sha256>> {
        let (mut file, mut mac) = (fs::File::open(path)?, self.mac(path));
        let mut piece = vec![0; 256 << 10];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(mac),
                read => mac.update(&piece[..read]),
            }
        }
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
fn name(engine: &Engine, content: &Content) -> String {
    let mut settings = Fixed(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut settings);
    settings.0.update(env!("CARGO_PKG_VERSION"));
    settings.0.update(WASMTIME_VERSION);
    format!("{}-{}", hex(&content.component_sha256), &hex(&settings.0.finalize())[..32])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::compiler::Compiler;
    use crate::plugin::engine::strict_config;

    fn engine() -> Engine {
        Engine::new(&strict_config()).unwrap()
    }

    fn content() -> Content {
        Content::new(wat::parse_str("(component (core module (func)))").unwrap().into(), None)
    }

    #[test]
    fn a_component_is_compiled_once_and_then_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();

        cache.component(&engine(), &content()).unwrap();

        let path = dir.path().join(format!("{}.cwasm", name(&engine(), &content())));
        assert!(Cache::open(dir.path(), Compiler::InProcess).unwrap().load(&engine(), &path).is_ok());
    }

    #[test]
    fn an_artefact_that_was_touched_or_renamed_is_never_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        cache.component(&engine(), &content()).unwrap();
        let path = dir.path().join(format!("{}.cwasm", name(&engine(), &content())));
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
        assert!(cache.component(&engine(), &content()).is_ok());
        assert!(cache.load(&engine(), &path).is_ok());
    }

    #[test]
    fn the_name_of_an_artefact_holds_the_version_of_wasmtime_that_is_built_in() {
        let lock = include_str!("../../../../Cargo.lock");

        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{WASMTIME_VERSION}\"\n")));
        assert_eq!(lock.matches("name = \"wasmtime\"\n").count(), 1);
    }
}
