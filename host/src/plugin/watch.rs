use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use outboxd_core::network_share;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::loader::{Again, Loader};

/// How long nothing may have happened before a scan.
const QUIET: Duration = Duration::from_millis(300);
/// A storm of events is not waited out for longer than this.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// After a look that saw something change.
const SOON: Duration = Duration::from_millis(500);
/// Events are hints; this is what finds everything in the end.
const PERIOD: Duration = Duration::from_secs(30);
/// Where no events come, not all of them do, or they are not wanted.
const PERIOD_WITHOUT_EVENTS: Duration = Duration::from_secs(2);

/// How changes in the folder are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// By events, and by looking every 30 s; every 2 s where events cannot be had, or tell only a part: on a network share.
    #[default]
    Auto,
    /// By looking every 2 s.
    Poll,
    /// Not at all: what is there at start serves until SIGHUP or the end.
    Off,
}

impl Loader {
    /// Scans whenever the folder may have changed, until `shutdown`.
    pub(crate) async fn watch(&self, mode: Watch, shutdown: CancellationToken) {
        if mode == Watch::Off {
            return;
        }
        let (hint, mut hints) = mpsc::channel(1);
        let mut watched = Watched::default();
        let mut again = Again::Soon;
        loop {
            // Before the look, so that no change after it is missed; again where the folder was replaced.
            if mode == Watch::Auto && watched.renew(&self.dir, &hint) {
                again = self.scan().await;
            }
            let wait = match again {
                Again::Soon => SOON,
                Again::No if watched.hears_all() => PERIOD,
                Again::No => PERIOD_WITHOUT_EVENTS,
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep_until(Instant::now() + wait) => {}
                _ = hints.recv() => quiet(&mut hints).await,
            }
            again = self.scan().await;
        }
    }
}

/// What the watcher listens to: the folder itself, not its name.
#[derive(Default)]
struct Watched {
    watcher: Option<RecommendedWatcher>,
    /// Device and inode.
    folder: Option<(u64, u64)>,
    /// What others change on a network share sends no events here.
    is_shared: bool,
    complained: bool,
}

impl Watched {
    fn hears_all(&self) -> bool {
        self.watcher.is_some() && !self.is_shared
    }

    /// Listens to the folder that has the name now. Answers whether it is listened to anew, or is another one than before:
    /// what changed until now was not heard.
    fn renew(&mut self, dir: &Path, hint: &mpsc::Sender<()>) -> bool {
        let folder = std::fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()));
        let is_other = folder != self.folder;
        if !is_other && self.watcher.is_some() {
            return false;
        }
        self.folder = folder;
        self.watcher = None;
        if folder.is_none() {
            return false;
        }
        let period = PERIOD_WITHOUT_EVENTS.as_secs();
        if is_other {
            self.is_shared = is_shared(dir);
            if self.is_shared {
                info!("the plugin folder {dir:?} is on a network share; it is looked at every {period} s");
            }
        }
        // Tried again at each look: what was missing, as one of the machine's watches, may be there by now.
        match watcher(dir, hint.clone()) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.complained = false;
                true
            }
            Err(error) => {
                if !self.complained {
                    warn!("the plugin folder {dir:?} cannot be watched: {error}; it is looked at every {period} s");
                    self.complained = true;
                }
                is_other
            }
        }
    }
}

fn is_shared(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    dir.canonicalize().is_ok_and(|dir| network_share(&mounts, &dir).is_some())
}

/// Whether changes in a folder can be noticed by events; the text says why not.
pub fn try_watching(dir: &Path) -> Result<(), String> {
    watcher(dir, mpsc::channel(1).0).map(drop).map_err(|error| error.to_string())
}

/// Waits until no hint has come for a while.
async fn quiet(hints: &mut mpsc::Receiver<()>) {
    let end = Instant::now() + QUIET_MAX;
    loop {
        let pause = sleep_until(end.min(Instant::now() + QUIET));
        tokio::select! {
            () = pause => return,
            _ = hints.recv() => if Instant::now() >= end { return },
        }
    }
}

/// Whether the folder may hold something else than before; what was not heard may have been anything.
fn may_have_changed(event: notify::Result<notify::Event>) -> bool {
    match event {
        Ok(event) if event.need_rescan() => warn!("events about the plugin folder were lost; it is looked at"),
        Ok(event) => return !event.kind.is_access(),
        Err(error) => warn!("watching the plugin folder: {error}; it is looked at"),
    }
    true
}

/// Watches the folder, never files: a file that is renamed over is another file. Where the folder is a link, what holds the
/// link is watched too: the link may come to point elsewhere.
fn watcher(dir: &Path, hint: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let on_event = move |event| {
        if may_have_changed(event) {
            // Full means that a scan is due anyway.
            hint.try_send(()).ok();
        }
    };
    let mut watcher = notify::recommended_watcher(on_event)?;
    watcher.watch(dir, RecursiveMode::NonRecursive)?;
    if dir.symlink_metadata().is_ok_and(|meta| meta.is_symlink())
        && let Some(parent) = dir.parent()
    {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        watcher.watch(parent, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, CreateKind, EventKind, Flag};
    use notify::{Error, Event};

    use super::*;

    #[test]
    fn whatever_may_be_a_change_has_the_folder_looked_at_and_events_that_were_lost_most_of_all() {
        let event = |kind| Event::new(kind);

        assert!(may_have_changed(Ok(event(EventKind::Create(CreateKind::File)))));
        assert!(may_have_changed(Ok(event(EventKind::Any))));
        assert!(may_have_changed(Ok(event(EventKind::Other).set_flag(Flag::Rescan))));
        assert!(may_have_changed(Err(Error::generic("the queue overflowed"))));
        assert!(!may_have_changed(Ok(event(EventKind::Access(AccessKind::Read)))));
    }
}
