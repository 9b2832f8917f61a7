//! `outboxd purge`: deletes finished messages, in batches.

use outboxd_store::Finished;

use super::args::{Global, PurgeArgs};
use super::output;
use super::progress::Progress;
use super::settings::{WrongSettings, connect};

/// Rows in one statement, at most.
const BATCH: u32 = 1000;

pub async fn purge(global: &Global, args: PurgeArgs) -> anyhow::Result<()> {
    let state = match args.state.as_str() {
        "delivered" => Finished::Delivered,
        "dead" => Finished::Dead,
        other => return Err(WrongSettings::one(format!("state {other:?} cannot be purged; delivered and dead can"))),
    };
    let store = connect(global).await?;
    let progress = Progress::new("deleting");
    let mut total = 0;
    loop {
        let purged = store.admin.purge(state, args.older_than, BATCH).await?;
        total += purged;
        progress.at(total);
        if purged < u64::from(BATCH) {
            break;
        }
    }
    drop(progress);
    output::line(format!("{total} {} messages are deleted", args.state));
    Ok(())
}
