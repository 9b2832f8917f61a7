use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use outboxd_core::network_share;

use crate::StoreError;

/// The database's file, and which one it was.
pub(crate) struct DatabaseFile {
    path: PathBuf,
    seen: Mutex<Option<Identity>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl DatabaseFile {
    pub(crate) fn new(path: &Path) -> Self {
        DatabaseFile { path: path.to_path_buf(), seen: Mutex::new(None) }
    }

    /// An error, once, where another file stands at the path than before: what we have open is no longer what producers write.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        // That it is missing altogether is for SQLite to say, unless we have it open.
        let found = fs::metadata(&self.path).ok().map(|file| Identity { device: file.dev(), inode: file.ino() });
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, found);
        match (before, found) {
            (Some(_), None) => Err(StoreError::Unavailable(format!("the database file {:?} was removed", self.path))),
            (Some(before), Some(now)) if before != now => {
                Err(StoreError::Unavailable(format!("the database file {:?} was replaced by another", self.path)))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a file on a file system that is shared over a network: SQLite's locks and its shared memory do not work there,
/// whatever it promises.
pub(crate) fn refuse_network_share(path: &Path) -> Result<(), StoreError> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    match network_share(&mounts, &folder) {
        Some(kind) => Err(StoreError::Broken(format!(
            "the database file {path:?} is on a network share ({kind}), where SQLite loses data; use a local disk, or PostgreSQL"
        ))),
        None => Ok(()),
    }
}
