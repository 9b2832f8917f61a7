use std::sync::Arc;
use std::time::Duration;

use outboxd_core::quoted;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::connect::{GIVE_UP_MARGIN, parse};
use crate::wake::Signal;
use crate::{StoreError, StoreOptions};

/// A connection that has been silent so long is asked whether it is alive: a half-open one never tells.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// LISTENs on a connection of its own, in a task of its own, and raises the signal. Opens a new connection after any loss;
/// meanwhile the poll finds what is due.
pub(crate) struct Listener(JoinHandle<()>);

impl Listener {
    pub(crate) fn start(options: &StoreOptions, signal: Arc<Signal>) -> Result<Self, StoreError> {
        let url = parse(options.listen_url.as_deref().unwrap_or(&options.url))?;
        let channel = options.table.channel();
        Ok(Listener(tokio::spawn(listen(url, channel, signal))))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn listen(options: PgConnectOptions, channel: String, signal: Arc<Signal>) {
    let mut backoff = BACKOFF_MIN;
    let mut told = false;
    loop {
        match open(&options, &channel).await {
            Ok(mut listener) => {
                if told {
                    info!("listening again on channel {}", quoted(&channel));
                    told = false;
                }
                // What was published while nobody listened.
                signal.raise();
                backoff = BACKOFF_MIN;
                receive(&mut listener, &signal).await;
            }
            // Once a loss, not once a try.
            Err(error) if !told => {
                told = true;
                warn!("not listening on channel {}: {error}; the poll finds what is due", quoted(&channel));
            }
            Err(_) => {}
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn open(options: &PgConnectOptions, channel: &str) -> Result<PgListener, StoreError> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options.clone());
    let opening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        Ok(listener)
    };
    timeout(PROBE_AFTER, opening).await.unwrap_or_else(|_| Err(StoreError::late(PROBE_AFTER)))
}

/// Raises the signal for each notification, until the connection is lost.
async fn receive(listener: &mut PgListener, signal: &Signal) {
    loop {
        match timeout(PROBE_AFTER, listener.try_recv()).await {
            Ok(Ok(Some(_))) => signal.raise(),
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let probe = sqlx::query("select 1").execute(&mut *listener);
                if !matches!(timeout(GIVE_UP_MARGIN, probe).await, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}
