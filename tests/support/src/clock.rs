//! A wall clock that can be set while the process that believes it runs, by libfaketime.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::postgres::new_folder;

pub struct FakeClock {
    library: PathBuf,
    folder: PathBuf,
}

impl FakeClock {
    /// A clock that is right. Nothing where libfaketime is missing: then one line says so, and in CI (`CI` is set) it is a
    /// failure.
    pub fn new() -> Option<FakeClock> {
        let Some(library) = library() else {
            crate::skip("libfaketime is missing; on Debian, apt-get install libfaketime");
            return None;
        };
        let clock = FakeClock { library, folder: new_folder(&std::env::temp_dir()) };
        clock.set(0);
        Some(clock)
    }

    /// Sets it to be so many seconds ahead of the machine's, or behind.
    pub fn set(&self, ahead_s: i64) {
        let (offset, aside) = (self.offset(), self.folder.join("new"));
        // Whole at any moment, since it is read at each look at the clock, and by the user who runs the server.
        fs::write(&aside, format!("{ahead_s:+}s"))
            .and_then(|()| fs::set_permissions(&aside, Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&aside, offset))
            .expect("the offset of a clock");
    }

    /// What makes a process believe in it. What counts the time that passes (CLOCK_MONOTONIC) never jumps, and does not here.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.offset())),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ]
    }

    fn offset(&self) -> PathBuf {
        self.folder.join("offset")
    }
}

impl Drop for FakeClock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let library = |folder: PathBuf| folder.join("faketime/libfaketimeMT.so.1");
    folders.filter_map(|folder| Some(library(folder.ok()?.path()))).find(|library| library.exists())
}
