//! Vacuums the messages' table, and that of their keys, when the work of this process has made enough of it dead. Autovacuum
//! looks once a minute as a server comes, and until then nothing is used again of what a busy queue leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::Statements;
use super::connect::{GIVE_UP_MARGIN, Purpose, direct_url, parse, settings};
use crate::connections::Connections;
use crate::table::Names;
use crate::{StoreError, StoreOptions};

/// Fewer dead rows are not worth a vacuum. What 5,000 messages leave: some MB, as long as their payloads are small.
const DEAD_MIN: u64 = 10_000;

/// Nor are fewer for each page of the table. A vacuum visits a page at most once, so no dead row costs more than half a visit
/// (what PostgreSQL stores apart is not counted, which `REST` bounds):
/// not where many messages wait beside few that pass, and not where somebody's snapshot keeps the dead and the table grows.
///
/// For the table not to grow without end by itself, a page must have room for more rows than that: it has for 3, since
/// PostgreSQL stores apart what is larger, and mostly for 10 to 20. With 10 the table takes 10 / (10 - 2) of what its live
/// rows need; with 3, three times that.
const DEAD_PER_PAGE: u64 = 2;

/// A vacuum is followed by a rest of so many times as long: none takes more than a tenth of the time, whatever it costs. While
/// one runs, autovacuum passes the table over.
const REST: u32 = 9;
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How many rows must have died since the last vacuum for another to be worth it, in a table of so many pages.
fn enough(pages: u64) -> u64 {
    DEAD_MIN.max(pages.saturating_mul(DEAD_PER_PAGE))
}

/// One vacuum at a time, on a connection of its own. It waits for no lock, moves no row and is in no message's way; but who alters
/// the table waits for it, so it ends like any other statement after the statement timeout. A table too large for that is
/// autovacuum's: what dies in a minute is little beside it.
pub(super) struct Vacuum {
    connections: Connections<PgConnection>,
    pages: Arc<str>,
    vacuum: Arc<str>,
    /// Rows that died since the last vacuum, as far as this process knows.
    dead: AtomicU64,
    /// At so many it is looked again whether a vacuum is worth it.
    enough: AtomicU64,
    /// Whether it was said that this role may not.
    refused: AtomicBool,
    turn: Arc<Semaphore>,
}

impl Vacuum {
    /// None where only a pooler leads to the server: a vacuum is no part of a transaction, so nothing would limit its time.
    pub(super) fn new(options: &StoreOptions) -> Result<Option<Arc<Self>>, StoreError> {
        let Some(url) = direct_url(options) else { return Ok(None) };
        let connect = parse(url)?.application_name("outboxd vacuum").options(settings(options, Purpose::Vacuum));
        // That a vacuum is slow is no news.
        let connect = connect.disable_statement_logging();
        let sql = Statements::new(&Names::postgres(&options.table));
        Ok(Some(Arc::new(Vacuum {
            connections: Connections::new(connect, 1, options.statement_timeout + GIVE_UP_MARGIN),
            pages: sql.vacuum_pages,
            vacuum: sql.vacuum,
            dead: AtomicU64::new(0),
            enough: AtomicU64::new(DEAD_MIN),
            refused: AtomicBool::new(false),
            turn: Arc::new(Semaphore::new(1)),
        })))
    }

    /// Counts rows that were updated or deleted. When they are enough it starts a task, and waits for nothing.
    pub(super) fn made_dead(self: &Arc<Self>, rows: u64) {
        self.dead.fetch_add(rows, Relaxed);
        if !self.is_enough() {
            return;
        }
        let Ok(turn) = self.turn.clone().try_acquire_owned() else { return };
        // Whoever had the turn may have vacuumed since. Only its holder subtracts.
        if !self.is_enough() {
            return;
        }
        let this = self.clone();
        // Nobody waits for it at the end: a server that has begun a vacuum ends it, also when its client is gone.
        tokio::spawn(async move {
            let begun = Instant::now();
            let rest = match this.look().await {
                Ok(()) => begun.elapsed() * REST,
                Err(error) => {
                    info!("the outbox was not vacuumed: {error}");
                    (begun.elapsed() * REST).max(REST_AFTER_FAILURE)
                }
            };
            sleep(rest).await;
            drop(turn);
            // What died meanwhile.
            this.made_dead(0);
        });
    }

    fn is_enough(&self) -> bool {
        self.dead.load(Relaxed) >= self.enough.load(Relaxed)
    }

    /// Vacuums if what is dead is enough for the table as it is now. A failure and a refusal count as a vacuum: the next try is as
    /// far off.
    async fn look(&self) -> Result<(), StoreError> {
        let dead = self.dead.load(Relaxed);
        let (pages, vacuum) = (AssertSqlSafe(self.pages.clone()), AssertSqlSafe(self.vacuum.clone()));
        let looked = self.connections.run(move |connection| {
            Box::pin(async move {
                let pages = sqlx::query_as(pages).persistent(false).fetch_one(&mut *connection);
                let (pages, allowed): (i64, bool) = pages.await?;
                let enough = enough(pages.unsigned_abs());
                if dead >= enough && allowed {
                    sqlx::query(vacuum).persistent(false).execute(&mut *connection).await?;
                }
                Ok((enough, allowed))
            })
        });
        let looked = looked.await;
        if let Ok((enough, allowed)) = looked {
            self.enough.store(enough, Relaxed);
            if !self.refused.swap(!allowed, Relaxed) && !allowed {
                info!("vacuuming the outbox is left to autovacuum: this role may not vacuum the table");
            }
        }
        // Not what has died since.
        if looked.as_ref().map_or(true, |(enough, _)| dead >= *enough) {
            self.dead.fetch_sub(dead, Relaxed);
        }
        looked.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a table, and how many of them all vacuums visited, when so many rows have died in it.
    fn churned(live: u64, rows_a_page: u64, deaths: u64, snapshot: Snapshot) -> (u64, u64) {
        const AT_ONCE: u64 = 100;
        let (mut pages, mut visited, mut dead, mut since) = (live.div_ceil(rows_a_page), 0, 0, 0);
        for _ in 0..deaths / AT_ONCE {
            (dead, since) = (dead + AT_ONCE, since + AT_ONCE);
            pages = pages.max((live + dead).div_ceil(rows_a_page));
            if since >= enough(pages) {
                (visited, since) = (visited + pages, 0);
                if snapshot == Snapshot::None {
                    dead = 0;
                }
            }
        }
        (pages, visited)
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Snapshot {
        None,
        Held,
    }

    #[test]
    fn a_table_grows_to_three_times_its_live_rows_at_most_or_by_what_makes_a_vacuum_worth_it() {
        for (rows_a_page, times) in [(3, 3.0), (4, 2.0), (10, 1.25), (16, 1.15)] {
            for live in [0, 10_000, 300_000] {
                let (pages, _) = churned(live, rows_a_page, 20_000_000, Snapshot::None);

                let rows = (pages * rows_a_page) as f64;
                let most = (live as f64 * times).max((live + DEAD_MIN) as f64);
                assert!(rows <= most + 200.0, "{live} live rows, {rows_a_page} a page: room for {rows}");
            }
        }
    }

    #[test]
    fn no_dead_row_costs_more_than_half_a_visit_to_a_page_though_a_snapshot_is_held() {
        for (live, snapshot) in [(0, Snapshot::Held), (300_000, Snapshot::Held), (300_000, Snapshot::None)] {
            let (_, visited) = churned(live, 10, 20_000_000, snapshot);

            assert!(visited > 0 && 2 * visited <= 20_000_000, "{visited} pages visited");
        }
    }
}
