use std::sync::{Arc, Mutex, PoisonError};
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

/// Claims that follow each other within this are a streak.
const STREAK_GAP: Duration = Duration::from_millis(5);

/// After a streak so long the relay is busy: it says that it is awake, so that producers need not notify it. One that is not
/// stays a sleeper while it claims: to say it for every message would cost two writes each, and a gap that nobody notifies in.
const BUSY_AFTER: Duration = Duration::from_millis(50);

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// LISTENs on a connection of its own, in a task of its own, and raises the signal. On the same connection it says whether
/// the relay sleeps. Opens a new connection after any loss; meanwhile the poll finds what is due.
pub(crate) struct Listener {
    asleep: watch::Sender<bool>,
    streak: Mutex<Option<Streak>>,
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
        Ok(Listener { asleep, streak: Mutex::default(), listens, task: tokio::spawn(work.listen()) })
    }

    pub(crate) fn state(&self) -> Listening {
        if *self.listens.borrow() { Listening::Yes } else { Listening::Lost }
    }

    /// The relay found nothing and is about to wait.
    pub(crate) fn asleep(&self) {
        self.say(true);
    }

    /// The relay claimed something, and looks again before it waits.
    pub(crate) fn claimed(&self) {
        let now = Instant::now();
        // Sound if a holder panicked: it is replaced whole.
        let mut streak = self.streak.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = Streak::with_claim(*streak, now);
        *streak = Some(lasting);
        if lasting.is_busy() {
            self.say(false);
        }
    }

    fn say(&self, asleep: bool) {
        self.asleep.send_if_modified(|said| std::mem::replace(said, asleep) != asleep);
    }
}

/// Claims that followed each other closely.
#[derive(Clone, Copy)]
struct Streak {
    first: Instant,
    last: Instant,
}

impl Streak {
    fn with_claim(streak: Option<Streak>, now: Instant) -> Streak {
        let goes_on = streak.filter(|streak| now.saturating_duration_since(streak.last) <= STREAK_GAP);
        Streak { first: goes_on.map_or(now, |streak| streak.first), last: now }
    }

    fn is_busy(&self) -> bool {
        self.last.saturating_duration_since(self.first) >= BUSY_AFTER
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
        loop {
            let now = Instant::now();
            let next = look.unwrap_or(now + PROBE_AFTER);
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
                    let said_at = Instant::now();
                    looks = if *self.asleep.borrow() { LOOK_AGAIN_AFTER_MS.iter() } else { [].iter() };
                    look = looks.next().map(|after| said_at + Duration::from_millis(*after));
                }
                () = sleep_until(next) => match look {
                    Some(looked) => {
                        self.signal.nudge();
                        look = looks.next().map(|after| looked + Duration::from_millis(*after));
                    }
                    None => if let Err(error) = self.say(listener).await {
                        return error;
                    },
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

    /// Whether the relay is busy after claims with these pauses between them.
    fn busy_after(gaps: &[Duration]) -> bool {
        let mut now = Instant::now();
        let mut streak = Streak::with_claim(None, now);
        for gap in gaps {
            now += *gap;
            streak = Streak::with_claim(Some(streak), now);
        }
        streak.is_busy()
    }

    #[test]
    fn a_relay_is_busy_once_its_claims_have_followed_each_other_for_a_while() {
        assert!(!busy_after(&[]));
        assert!(!busy_after(&[Duration::from_millis(5); 9]));
        assert!(busy_after(&[Duration::from_millis(5); 10]));
    }

    #[test]
    fn a_pause_between_claims_ends_the_streak() {
        assert!(!busy_after(&[Duration::from_millis(6); 100]));
        let mut gaps = [Duration::from_millis(5); 15];
        gaps[8] = Duration::from_millis(6);
        assert!(!busy_after(&gaps));
    }
}
