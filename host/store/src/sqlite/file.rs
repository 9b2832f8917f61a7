use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::StoreError;

/// File systems over a network: SQLite's locks and its shared memory do not work there, whatever they promise.
const SHARED: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"];

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

/// Refuses a file on a file system that is shared over a network.
pub(crate) fn refuse_network_share(path: &Path) -> Result<(), StoreError> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    match file_system(&mounts, &folder) {
        Some(kind) if SHARED.contains(&kind) => Err(StoreError::Broken(format!(
            "the database file {path:?} is on a network share ({kind}), where SQLite loses data; use a local disk, or PostgreSQL"
        ))),
        _ => Ok(()),
    }
}

/// The kind of file system that a folder is on, by the longest mount point above it. Of two on one point the later counts.
fn file_system<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let Some(point) = fields.nth(4) else { continue };
        let point = point.replace("\\040", " ");
        let Some(kind) = fields.skip_while(|field| *field != "-").nth(1) else { continue };
        if folder.starts_with(&point) && found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), kind));
        }
    }
    found.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:50 / /srv/share rw,relatime shared:1 - nfs4 host:/export rw
31 22 0:51 / /srv/share/local\\040disk rw,relatime - xfs /dev/vdb rw
32 22 0:52 / /srv/share2 rw - tmpfs tmpfs rw
";

    #[test]
    fn the_longest_mount_point_above_tells_the_file_system() {
        for (folder, kind) in [
            ("/", "ext4"),
            ("/srv", "ext4"),
            ("/srv/share", "nfs4"),
            ("/srv/share/shop", "nfs4"),
            ("/srv/share/local disk/shop", "xfs"),
            ("/srv/share2", "tmpfs"),
            ("/srv/shared", "ext4"),
        ] {
            assert_eq!(file_system(MOUNTS, Path::new(folder)), Some(kind), "{folder}");
        }
        assert_eq!(file_system("", Path::new("/")), None);
    }
}
