//! Signals: the first asks for a stop, the second leaves at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that SIGTERM or SIGINT cancels. A second one ends the process with 1: leases lapse, other relays take over.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        info!("{name}: stopping; once more to leave at once");
        crate::service::stopping();
        cancelled.cancel();
        let name = next().await;
        warn!("{name} again: leaving at once; what was under way is delivered again when its lease lapses");
        crate::logging::flush();
        std::process::exit(1);
    });
    Ok(token)
}
