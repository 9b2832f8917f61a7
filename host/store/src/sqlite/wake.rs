use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::{info, warn};

use crate::wake::Signal;

/// How long after a write to look again, and again. The kernel tells of the write at once, but others see a commit only when
/// the file is synced and its index updated, of which the kernel tells nobody. A busy disk takes seconds to sync.
const LOOK_AGAIN: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(30),
    Duration::from_millis(150),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Raises the signal when any process writes into the database's WAL file. The kernel tells: nothing is polled.
///
/// Our own writes raise it too; that costs one look that finds nothing.
pub(crate) struct WalWatch {
    folder: PathBuf,
    wal: OsString,
    signal: Arc<Signal>,
    /// How many looks have followed the last write.
    looks: Arc<AtomicUsize>,
    state: Mutex<State>,
}

enum State {
    NotYet,
    Told,
    Watching(#[allow(dead_code, reason = "it watches for as long as it is held")] RecommendedWatcher),
}

impl WalWatch {
    pub(crate) fn new(file: &Path, signal: Arc<Signal>) -> Self {
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut wal = file.file_name().unwrap_or_default().to_os_string();
        wal.push("-wal");
        let watch = WalWatch { folder, wal, signal, looks: Arc::default(), state: Mutex::new(State::NotYet) };
        watch.ensure();
        watch
    }

    /// Starts the watch, if it has not started: the folder may have come into being since.
    pub(crate) fn ensure(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Watching(_)) {
            return;
        }
        match self.start() {
            Ok(watcher) => {
                if matches!(*state, State::Told) {
                    info!("watching {:?} again", self.folder);
                }
                *state = State::Watching(watcher);
                self.signal.raise();
            }
            Err(error) => {
                if matches!(*state, State::NotYet) {
                    warn!("cannot watch {:?}: {error}; the poll finds what is due", self.folder);
                }
                *state = State::Told;
            }
        }
    }

    /// How long to wait for the next write at most, where the last one is so fresh that its commit may still come.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let next = |looks| (looks < LOOK_AGAIN.len()).then_some(looks + 1);
        let looks = self.looks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        looks.ok().map(|looks| LOOK_AGAIN[looks])
    }

    /// Watches the folder: the WAL file itself comes and goes with the connections.
    fn start(&self) -> notify::Result<RecommendedWatcher> {
        let (wal, signal, looks) = (self.wal.clone(), self.signal.clone(), self.looks.clone());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| {
                is_write(&event.kind) && event.paths.iter().any(|path| path.file_name() == Some(&wal))
            }) {
                looks.store(0, Ordering::Relaxed);
                signal.raise();
            }
        })?;
        watcher.watch(&self.folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

fn is_write(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Modify(_) | EventKind::Create(_) | EventKind::Any)
}
