//! A disk that is soon full.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "obxdisk-";
const BALLAST: &str = "ballast";

/// A file system of so many megabytes, in memory. Unmounted when dropped.
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Nothing where this user may mount nothing: then one line says so, and in CI (`CI` is set) it is a failure.
    pub fn mount(megabytes: u32) -> Option<SmallDisk> {
        sweep();
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder to mount on");
        let options = format!("size={megabytes}m,mode=0777");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder).output();
        if mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk { folder });
        }
        let _ = fs::remove_dir(&folder);
        crate::skip(&format!("a small disk cannot be mounted, which takes root: {mounted:?}"));
        None
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes until no byte more fits.
    pub fn fill(&self) {
        let path = self.folder.join(BALLAST);
        let mut ballast = File::options().create(true).append(true).open(&path).expect("ballast");
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        // Large pieces first; the last bytes one by one would take long and change nothing.
        for size in [1 << 20, 1 << 12, 1 << 9] {
            let piece = vec![0; size];
            while ballast.write_all(&piece).is_ok() {}
        }
    }

    /// Gives the room back.
    pub fn clear(&self) {
        let _ = fs::remove_file(self.folder.join(BALLAST));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.folder);
    }
}

/// What earlier processes left when they were killed.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            unmount(&entry.path());
        }
    }
}

fn unmount(folder: &Path) {
    // Lazily: who still has a file open there keeps it to its end.
    let _ = Command::new("umount").arg("-l").arg(folder).output();
    let _ = fs::remove_dir(folder);
}
