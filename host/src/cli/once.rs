//! `outboxd run --once`: to the end of what is due, and of what only the spacing of its key's calls holds back.

use outboxd_store::{OutboxAdmin, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::handler::Handlers;
use crate::relay::{Relay, Stopped};
use crate::unorder;

/// Delivers until nothing is due and nothing that is due waits for `per_key_rate`. A key that rests for another reason is not
/// waited for: its target or its plugin wants to be left alone. An error of the database ends it.
pub async fn deliver(
    relay: &Relay,
    handlers: &dyn Handlers,
    admin: &dyn OutboxAdmin,
    shutdown: &CancellationToken,
) -> Result<Stopped, StoreError> {
    // What is spaced is asked after a run, and may be due by then: only a run that found nothing once nothing was spaced is the last.
    let mut nothing_is_spaced = false;
    loop {
        // One look at very many lets go of a part.
        let let_go = unorder::unorder(admin, handlers, shutdown).await?;
        let run = relay.run_once(shutdown.clone()).await?;
        if shutdown.is_cancelled() || (nothing_is_spaced && let_go == 0 && !run.has_claimed) {
            return Ok(run.stopped);
        }
        let may_start = |topic: &str| handlers.route(topic).is_some_and(|route| !route.is_parked());
        let spaced = admin.spaced().await?.into_iter().filter(|spaced| may_start(&spaced.topic));
        let first = spaced.min_by_key(|spaced| spaced.wait);
        nothing_is_spaced = first.is_none();
        if let Some(first) = first {
            info!("waiting {:.1?} until a key of {:?} may be called again", first.wait, first.topic);
            shutdown.run_until_cancelled(sleep(first.wait)).await;
        }
    }
}
