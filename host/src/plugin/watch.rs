use std::path::Path;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::loader::{Again, Loader};

/// How long nothing may have happened before a scan.
const QUIET: Duration = Duration::from_millis(300);
/// A storm of events is not waited out for longer than this.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// After a look that saw something change.
const SOON: Duration = Duration::from_millis(500);
/// Events are hints; this is what finds everything in the end.
const PERIOD: Duration = Duration::from_secs(30);
/// Where the file system sends no events, or they are not wanted.
const PERIOD_WITHOUT_EVENTS: Duration = Duration::from_secs(2);

/// How changes in the folder are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// By events where there are any, and by looking every 30 s.
    #[default]
    Auto,
    /// By looking every 2 s.
    Poll,
    /// Not at all: what is there at start serves until the end.
    Off,
}

impl Loader {
    /// Scans whenever the folder may have changed, until `shutdown`.
    pub(crate) async fn watch(&self, mode: Watch, shutdown: CancellationToken) {
        if mode == Watch::Off {
            return;
        }
        let (hint, mut hints) = mpsc::channel(1);
        let watcher = if mode == Watch::Auto { watcher(&self.dir, hint.clone()) } else { None };
        let period = if watcher.is_some() { PERIOD } else { PERIOD_WITHOUT_EVENTS };
        // Once the watcher listens: a change before that would be missed.
        let mut again = self.scan().await;
        loop {
            let wait = if again == Again::Soon { SOON } else { period };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep_until(Instant::now() + wait) => {}
                _ = hints.recv() => quiet(&mut hints).await,
            }
            again = self.scan().await;
        }
    }
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

/// Watches the folder, never files: a file that is renamed over is another file. Nothing where that cannot be done.
fn watcher(dir: &Path, hint: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        match event {
            Ok(event) if event.kind.is_access() => return,
            Ok(event) if event.need_rescan() => debug!("events about the plugin folder were lost; it is scanned"),
            Ok(_) => {}
            Err(error) => warn!("watching the plugin folder: {error}; it is scanned"),
        }
        // Full means that a scan is due anyway.
        hint.try_send(()).ok();
    };
    let watching = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!(
                "the plugin folder {dir:?} cannot be watched: {error}; it is looked at every {} s",
                PERIOD_WITHOUT_EVENTS.as_secs()
            );
            None
        }
    }
}
