use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboxd_core::quoted;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use super::Statements;
use super::connect::{GIVE_UP_MARGIN, parse};
use crate::row::milliseconds;
use crate::table::Names;
use crate::wake::Signal;
use crate::{Listening, StoreError, StoreOptions};

/// A connection that has been silent so long is asked whether it is alive: a half-open one never tells. A sleeper says again
/// that it sleeps.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// A relay that says it sleeps is believed so long: one that died is notified in vain no longer.
const BELIEVED_FOR: Duration = Duration::from_secs(15);

/// A publish that looked for sleepers just before we said so, and commits just after, notifies nobody. So we look again, so
/// long after saying it; the poll finds what commits later.
/// Each time twice as long: what such a commit waits is never more than it took itself, or the first of these.
const LOOK_AGAIN_AFTER_MS: [u64; 8] = [4, 8, 16, 32, 64, 128, 256, 512];

/// A relay that looks again so soon needs no wake: of such a wait producers are not told.
const SHORT: Duration = Duration::from_millis(25);

/// A relay that waited no longer than this before a claim has not rested.
const REST: Duration = Duration::from_millis(5);

/// A relay that has claimed so long without a rest is busy: it says that it is awake, so that producers need not notify it. One
/// that is not stays a sleeper while it claims: to say it for every message would cost two writes each, and a gap that nobody
/// notifies in.
const BUSY_AFTER: Duration = Duration::from_millis(50);

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// LISTENs on a connection of its own, in a task of its own, and raises the signal. On the same connection it says whether
/// the relay sleeps. Opens a new connection after any loss; meanwhile the poll finds what is due.
pub(crate) struct Listener {
    asleep: watch::Sender<bool>,
    pace: Mutex<Pace>,
    listens: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn start(options: &StoreOptions, signal: Arc<Signal>) -> Result<Self, StoreError> {
        let (asleep, told) = watch::channel(false);
        let (up, listens) = watch::channel(false);
        let work = Work {
            options: parse(options.listen_url.as_deref().unwrap_or(&options.url))?.application_name("outboxd listener"),
            channel: options.table.channel(),
            sql: Statements::new(&Names::postgres(&options.table)),
            relay: Uuid::new_v4(),
            signal,
            asleep: told,
            up,
        };
        Ok(Listener { asleep, pace: Mutex::default(), listens, task: tokio::spawn(work.listen()) })
    }

    pub(crate) fn state(&self) -> Listening {
        if *self.listens.borrow() { Listening::Yes } else { Listening::Lost }
    }

    /// The relay found nothing and is about to wait.
    pub(crate) fn asleep(&self, at_most: Duration) {
        if at_most >= SHORT {
            self.pace().waits(Instant::now());
            if self.say(true) {
                // Said no more often than that, however short the waits are.
                self.pace().busy_since = None;
            }
        }
    }

    /// The relay claimed something, and looks again before it waits.
    pub(crate) fn claimed(&self) {
        if self.pace().claims(Instant::now()) >= BUSY_AFTER {
            self.say(false);
        }
    }

    // Sound if a holder panicked: what it lacks then is one step.
    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whether it is news.
    fn say(&self, asleep: bool) -> bool {
        self.asleep.send_if_modified(|said| std::mem::replace(said, asleep) != asleep)
    }
}

/// Since when a relay claims without a rest. It is not the time between its claims that counts: one whose slots are all used
/// claims seldom, and is not asleep.
#[derive(Default)]
struct Pace {
    busy_since: Option<Instant>,
    /// Of the first wait since the last claim.
    waits_since: Option<Instant>,
}

impl Pace {
    fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Answers how long it has claimed without a rest.
    fn claims(&mut self, now: Instant) -> Duration {
        if self.waits_since.take().is_some_and(|since| now.saturating_duration_since(since) > REST) {
            self.busy_since = None;
        }
        now.saturating_duration_since(*self.busy_since.get_or_insert(now))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the task owns.
struct Work {
    options: PgConnectOptions,
    channel: String,
    sql: Statements,
    relay: Uuid,
    signal: Arc<Signal>,
    asleep: watch::Receiver<bool>,
    up: watch::Sender<bool>,
}

impl Work {
    async fn listen(mut self) {
        let mut backoff = BACKOFF_MIN;
        let mut told = false;
        loop {
            let lost = match self.open().await {
                Ok(mut listener) => {
                    if told {
                        info!("listening again on channel {}", quoted(&self.channel));
                        told = false;
                    }
                    // What was published while nobody listened.
                    self.signal.raise();
                    backoff = BACKOFF_MIN;
                    self.up.send_replace(true);
                    let lost = self.receive(&mut listener).await;
                    self.up.send_replace(false);
                    lost
                }
                Err(error) => error,
            };
            // Once a loss, not once a try.
            if !told {
                told = true;
                warn!("not listening on channel {}: {lost}; the poll finds what is due", quoted(&self.channel));
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn open(&self) -> Result<PgListener, StoreError> {
        let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let pool = pool.connect_lazy_with(self.options.clone());
        let opening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            listener.listen(&self.channel).await?;
            Ok(listener)
        };
        timeout(PROBE_AFTER, opening).await.unwrap_or_else(|_| Err(StoreError::late(PROBE_AFTER)))
    }

    /// Raises the signal for each notification and keeps the sleeper's row, until the connection is lost; answers how.
    async fn receive(&mut self, listener: &mut PgListener) -> StoreError {
        // A new connection knows nothing of what was said on the old one.
        self.asleep.mark_changed();
        let mut looks = [].iter();
        let mut look = None;
        let mut said_at = Instant::now();
        loop {
            // From when it was last said: what is received does not put it off, or a sleeper with much to hear would not be
            // believed any more.
            let next = look.unwrap_or(said_at + PROBE_AFTER);
            tokio::select! {
                // Receiving may be dropped: it takes a message whole or not at all.
                received = listener.try_recv() => match received {
                    Ok(Some(_)) => self.signal.raise(),
                    Ok(None) => return StoreError::Unavailable("the connection was closed".into()),
                    Err(error) => return error.into(),
                },
                said = self.asleep.changed() => {
                    if said.is_err() {
                        return StoreError::Unavailable("the store is gone".into());
                    }
                    if let Err(error) = self.say(listener).await {
                        return error;
                    }
                    said_at = Instant::now();
                    looks = if *self.asleep.borrow() { LOOK_AGAIN_AFTER_MS.iter() } else { [].iter() };
                    look = looks.next().map(|after| said_at + Duration::from_millis(*after));
                }
                () = sleep_until(next) => match look {
                    Some(looked) => {
                        self.signal.nudge();
                        look = looks.next().map(|after| looked + Duration::from_millis(*after));
                    }
                    None => {
                        if let Err(error) = self.say(listener).await {
                            return error;
                        }
                        said_at = Instant::now();
                    }
                },
            }
        }
    }

    /// Writes or deletes the sleeper's row; at the same time the probe whether the connection is alive.
    async fn say(&self, listener: &mut PgListener) -> Result<(), StoreError> {
        let query = if *self.asleep.borrow() {
            sqlx::query(AssertSqlSafe(self.sql.sleep.clone())).bind(self.relay).bind(milliseconds(BELIEVED_FOR))
        } else {
            sqlx::query(AssertSqlSafe(self.sql.awake.clone())).bind(self.relay)
        };
        // Behind nothing, but a listener's URL may lead to a pooler by mistake: prepare nothing.
        let saying = query.persistent(false).execute(listener);
        match timeout(GIVE_UP_MARGIN, saying).await {
            Ok(result) => Ok(result.map(|_| ())?),
            Err(_) => Err(StoreError::late(GIVE_UP_MARGIN)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_relay_that_claims_without_a_rest_is_busy_however_seldom_it_claims() {
        let (mut pace, start) = (Pace::default(), Instant::now());

        assert_eq!(pace.claims(start), Duration::ZERO);
        assert_eq!(pace.claims(start + 20 * MS), 20 * MS);
        assert_eq!(pace.claims(start + 520 * MS), 520 * MS);
    }

    #[test]
    fn a_short_wait_is_no_rest_and_a_long_one_is() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.claims(start);

        pace.waits(start + 10 * MS);
        assert_eq!(pace.claims(start + 15 * MS), 15 * MS);
        pace.waits(start + 20 * MS);
        assert_eq!(pace.claims(start + 26 * MS), Duration::ZERO);
    }

    #[test]
    fn waits_that_end_without_a_claim_are_one() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.claims(start);

        pace.waits(start + 10 * MS);
        pace.waits(start + 14 * MS);
        assert_eq!(pace.claims(start + 16 * MS), Duration::ZERO);
    }
}
