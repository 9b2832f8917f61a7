use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::{Cache, hex, write_aside};
use crate::plugin::folder::Content;

/// What stands before the parts of a kept plugin: the length of its manifest and of its signature, in bytes.
const HEAD: usize = 16;
/// The length of what is not there: no manifest is told from an empty one.
const ABSENT: u64 = u64::MAX;

impl Cache {
    /// Keeps a plugin that was found good, so that it can serve when the file in `folder` is bad at the next start.
    pub(crate) fn keep_good(&self, folder: &Path, name: &str, content: &Content) -> io::Result<()> {
        if self.is_good(folder, name, content) {
            return Ok(());
        }
        let path = self.good(folder, name);
        let code = self.mac_of_content(&path, content).finalize().into_bytes();
        let Content { component, manifest, signature, .. } = content;
        let texts = [manifest, signature].map(|text| text.as_deref().unwrap_or_default().as_bytes());
        write_aside(&path, &[&code[..], &head(content), texts[0], texts[1], component].concat())
    }

    /// Whether this content was good last.
    pub(crate) fn is_good(&self, folder: &Path, name: &str, content: &Content) -> bool {
        let path = self.good(folder, name);
        let mut code = [0; 32];
        let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut code));
        read.is_ok() && self.mac_of_content(&path, content).verify_slice(&code).is_ok()
    }

    /// The plugin of that name that was good last, if it was kept and nobody touched it.
    pub(crate) fn last_good(&self, folder: &Path, name: &str) -> Option<Content> {
        let path = self.good(folder, name);
        let bytes = Bytes::from(fs::read(&path).ok()?);
        let (code, content) = (bytes.get(..32)?, parse(bytes.slice(32..))?);
        self.mac_of_content(&path, &content).verify_slice(code).ok()?;
        Some(content)
    }

    /// A plugin that is gone is not to come back.
    pub(crate) fn forget_good(&self, folder: &Path, name: &str) {
        fs::remove_file(self.good(folder, name)).ok();
    }

    /// Forgets the plugins of a folder that are not `there` any more.
    pub(crate) fn forget_all_good_but(&self, folder: &Path, there: impl Fn(&str) -> bool) {
        let suffix = format!("-{}.good", place(folder));
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(&suffix));
            if name.is_some_and(|name| !there(name)) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    /// Remembers that a version was sent back, so that a restart does not begin with it.
    pub(crate) fn mark_bad(&self, folder: &Path, name: &str, digest: &str) -> io::Result<()> {
        write_aside(&self.good(folder, name).with_extension("bad"), digest.as_bytes())
    }

    pub(crate) fn is_bad(&self, folder: &Path, name: &str, digest: &str) -> bool {
        fs::read(self.good(folder, name).with_extension("bad")).is_ok_and(|marked| marked == digest.as_bytes())
    }

    fn good(&self, folder: &Path, name: &str) -> PathBuf {
        self.dir.join(format!("{name}-{}.good", place(folder)))
    }

    /// Over the component's digest, which is known, rather than its megabytes.
    fn mac_of_content(&self, path: &Path, content: &Content) -> Hmac<Sha256> {
        self.mac(path)
            .chain_update(head(content))
            .chain_update(content.manifest.as_deref().unwrap_or_default())
            .chain_update(content.signature.as_deref().unwrap_or_default())
            .chain_update(content.component_sha256)
    }
}

/// Folders may share a cache, and names are only unique in one folder. By its own path: where it is a link, it stays the same
/// folder when the link comes to point elsewhere.
fn place(folder: &Path) -> String {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes())[..8])
}

fn head(content: &Content) -> [u8; HEAD] {
    let length = |text: &Option<String>| text.as_ref().map_or(ABSENT, |text| text.len() as u64).to_le_bytes();
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&length(&content.manifest));
    head[8..].copy_from_slice(&length(&content.signature));
    head
}

/// What was kept, from its head to its end. Not to be trusted before its code is found right.
fn parse(mut kept: Bytes) -> Option<Content> {
    let head = (kept.len() >= HEAD).then(|| kept.split_to(HEAD))?;
    let mut text = |length: &[u8]| {
        let length = u64::from_le_bytes(length.try_into().ok()?);
        if length == ABSENT {
            return Some(None);
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= kept.len())?;
        Some(Some(String::from_utf8(kept.split_to(length).into()).ok()?))
    };
    let (manifest, signature) = (text(&head[..8])?, text(&head[8..])?);
    Some(Content::new(kept, manifest).signed(signature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::compiler::Compiler;

    #[test]
    fn the_last_good_plugin_comes_back_as_it_was_and_only_from_its_own_folder() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        let (here, elsewhere) = (Path::new("/here"), Path::new("/elsewhere"));
        for manifest in [None, Some(String::new()), Some("topics = [\"a\"]".to_string())] {
            for signature in [None, Some("signed".to_string())] {
                let content = Content::new("component".into(), manifest.clone()).signed(signature);
                cache.keep_good(here, "shop", &content).unwrap();

                assert_eq!(cache.last_good(here, "shop"), Some(content));
                assert_eq!(cache.last_good(elsewhere, "shop"), None);
            }
        }
    }

    #[test]
    fn a_kept_plugin_that_was_touched_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Compiler::InProcess).unwrap();
        let folder = Path::new("/here");
        let content = Content::new("component".into(), Some("topics = []".into())).signed(Some("signed".into()));
        cache.keep_good(folder, "shop", &content).unwrap();
        let path = cache.good(folder, "shop");
        let whole = fs::read(&path).unwrap();

        for at in 0..whole.len() {
            let mut touched = whole.clone();
            touched[at] ^= 1;
            fs::write(&path, touched).unwrap();
            assert_eq!(cache.last_good(folder, "shop"), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.last_good(folder, "shop"), None, "the first {at} bytes");
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(cache.last_good(folder, "shop"), Some(content));
    }
}
