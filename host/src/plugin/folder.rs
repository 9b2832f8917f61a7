use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use outboxd_core::{TopicPattern, one_line};
use sha2::{Digest, Sha256};

use super::cache::hex;
use super::component::COMPONENT_BYTES_MAX;

/// A larger manifest is not read. Bytes.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Nor is a larger signature. Bytes.
const SIGNATURE_BYTES_MAX: u64 = 64 << 10;
/// More plugins than these are not loaded.
const PLUGINS_MAX: usize = 1000;

/// What tells a file's content from another's without reading it. Never trusted to say that content is the same plugin:
/// the digest decides that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// The stamps of a component, and of its manifest and signature where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    component: Stamp,
    manifest: Option<Stamp>,
    signature: Option<Stamp>,
}

impl Stamps {
    /// Whether the manifest that was there `before` is there no more.
    pub(crate) fn lost_manifest(&self, before: &Stamps) -> bool {
        before.manifest.is_some() && self.manifest.is_none()
    }
}

/// A plugin as it lies in the folder.
pub(crate) struct Found {
    pub(crate) file: PathBuf,
    pub(crate) stamps: Stamps,
    /// Nothing where the stamps are the ones known already.
    pub(crate) content: Option<Content>,
}

/// A component and what lies beside it, read once: the same bytes are hashed, checked and compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub(crate) component: Bytes,
    pub(crate) manifest: Option<String>,
    /// What `NAME.wasm.minisig` says of the component.
    pub(crate) signature: Option<String>,
    /// Names this version: SHA-256 over component and manifest, in hexadecimal.
    pub(crate) digest: String,
    /// Of the component alone.
    pub(crate) component_sha256: [u8; 32],
}

impl Content {
    /// What both files hold; no manifest: there is no `NAME.toml`.
    pub fn new(component: Bytes, manifest: Option<String>) -> Content {
        let hasher = Sha256::new().chain_update(&component);
        let component_sha256 = hasher.clone().finalize().into();
        let digest = hex(&hasher.chain_update(manifest.as_deref().unwrap_or_default()).finalize());
        Content { component, manifest, signature: None, digest, component_sha256 }
    }

    /// This content with the signature that lies beside it.
    pub fn signed(self, signature: Option<String>) -> Content {
        Content { signature, ..self }
    }
}

/// One look at the folder.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) found: BTreeMap<String, Found>,
    /// What is no plugin, by name, and why.
    pub(crate) skipped: BTreeMap<String, String>,
    /// Something changed while it was read: look again soon.
    pub(crate) unstable: bool,
}

/// Looks at every `NAME.wasm` of the folder and reads those whose stamps are new. Never blocks on what is no regular file.
pub(crate) fn look(dir: &Path, known: &BTreeMap<String, Stamps>) -> io::Result<Look> {
    let mut look = Look::default();
    for entry in fs::read_dir(dir)? {
        let Ok(entry) = entry else {
            look.unstable = true;
            continue;
        };
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "wasm") {
            continue;
        }
        let shown = one_line(&path.file_name().unwrap_or_default().to_string_lossy(), 300);
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
            look.skipped.insert(shown, "its name is not UTF-8".into());
            continue;
        };
        if stem.starts_with(['.', '_']) {
            continue;
        }
        if let Err(why) = check_name(stem) {
            look.skipped.insert(shown, why);
            continue;
        }
        if look.found.len() >= PLUGINS_MAX {
            look.skipped.insert(shown, format!("there are {PLUGINS_MAX} plugins already"));
            continue;
        }
        match read(&path, known.get(stem)) {
            Ok(Some(found)) => {
                look.found.insert(stem.to_string(), found);
            }
            Ok(None) => look.unstable = true,
            // It went away between the listing and the look.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
                look.unstable = true
            }
            Err(error) if path.is_symlink() && path.metadata().is_err() => {
                look.skipped.insert(shown, format!("the link leads nowhere: {error}"));
            }
            Err(error) => {
                look.skipped.insert(shown, error.to_string());
            }
        }
    }
    Ok(look)
}

/// The plugin in `path`, by its name, as a look at its folder reads it; the text says why it is none.
pub(crate) fn read_one(path: &Path) -> Result<(String, Content), String> {
    let name = path.file_stem().and_then(|stem| stem.to_str()).ok_or("its name is not UTF-8")?;
    check_name(name)?;
    let found = read(path, None).map_err(|error| error.to_string())?;
    let content = found.and_then(|found| found.content).ok_or("it changed while it was read; try again")?;
    Ok((name.into(), content))
}

/// A plugin's name is a topic, a metric label and a word in messages.
fn check_name(stem: &str) -> Result<(), String> {
    match TopicPattern::parse(stem) {
        Ok(TopicPattern::Exact(_)) => {}
        Ok(TopicPattern::Prefix(_)) => return Err("its name ends with \"*\"; name topics in the manifest".into()),
        Err(why) => return Err(why),
    }
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    if stem.len() > 100 || !stem.chars().all(plain) {
        return Err(
            "a plugin's name has at most 100 characters, each of them a-z, A-Z, 0-9, \"-\", \"_\" or \".\"".into()
        );
    }
    Ok(())
}

/// Reads a plugin, or nothing where it changed meanwhile.
fn read(path: &Path, known: Option<&Stamps>) -> io::Result<Option<Found>> {
    let before = stamps(path)?;
    if before.component.size == 0 {
        // Not counted among the plugins: a folder full of empty files must not crowd the good ones out.
        return Err(io::Error::other("the file is empty"));
    }
    if known == Some(&before) {
        return Ok(Some(Found { file: path.into(), stamps: before, content: None }));
    }
    let component = read_regular(path, COMPONENT_BYTES_MAX)?;
    let manifest = before.manifest.map(|_| read_regular(&manifest_of(path), MANIFEST_BYTES_MAX)).transpose()?;
    let signature = before.signature.map(|_| read_regular(&signature_of(path), SIGNATURE_BYTES_MAX)).transpose()?;
    if stamps(path)? != before || component.len() as u64 != before.component.size {
        return Ok(None);
    }
    let text = |what, bytes| String::from_utf8(bytes).map_err(|_| io::Error::other(format!("its {what} is not UTF-8")));
    let manifest = manifest.map(|bytes| text("manifest", bytes)).transpose()?;
    let signature = signature.map(|bytes| text("signature", bytes)).transpose()?;
    let content = Content::new(component.into(), manifest).signed(signature);
    Ok(Some(Found { file: path.into(), stamps: before, content: Some(content) }))
}

fn manifest_of(component: &Path) -> PathBuf {
    component.with_extension("toml")
}

fn signature_of(component: &Path) -> PathBuf {
    component.with_extension("wasm.minisig")
}

fn stamps(path: &Path) -> io::Result<Stamps> {
    let beside = |what, path: PathBuf| match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found
            .and_then(regular)
            .map(|meta| Some(Stamp::of(&meta)))
            .map_err(|error| io::Error::other(format!("its {what}: {error}"))),
    };
    Ok(Stamps {
        component: Stamp::of(&regular(fs::metadata(path)?)?),
        manifest: beside("manifest", manifest_of(path))?,
        signature: beside("signature", signature_of(path))?,
    })
}

fn regular(meta: Metadata) -> io::Result<Metadata> {
    if meta.is_file() { Ok(meta) } else { Err(io::Error::other("it is no regular file")) }
}

fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // The type is checked again once it is open: it may have become a pipe meanwhile, and opening a pipe must not wait.
    const O_NONBLOCK: i32 = 0o4000;
    let file: File = fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let meta = regular(file.metadata()?)?;
    if meta.len() > bytes_max {
        return Err(io::Error::other(format!("it has {} bytes; at most {} MiB are read", meta.len(), bytes_max >> 20)));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is growing; at most {} MiB are read", bytes_max >> 20)));
    }
    Ok(bytes)
}
