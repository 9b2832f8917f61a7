use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::{ConnectOptions, Connection};
use tokio::sync::Semaphore;

use crate::StoreError;

/// What a statement does with its connection.
pub(crate) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// A few connections for one purpose, opened when needed.
///
/// Each statement runs in a task that owns its connection, so a caller that goes away leaves no statement half-way. A
/// statement that has not answered in time is given up with its connection, which is never used again: that is what notices
/// a frozen server, since a stopped process still acknowledges TCP. After any error the connection is closed too.
pub(crate) struct Connections<C: Connection> {
    options: C::Options,
    idle: Arc<Mutex<Vec<C>>>,
    permits: Arc<Semaphore>,
    give_up_after: Duration,
}

impl<C: Connection + 'static> Connections<C> {
    pub(crate) fn new(options: C::Options, connections_max: usize, give_up_after: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max.max(1)));
        Connections { options, idle: Arc::default(), permits, give_up_after }
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close(&self) {
        lock(&self.idle).clear();
    }

    /// Does `work` on a connection of its own. Waiting for a free connection and opening one count as time of the work.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut C) -> Work<'c, T> + Send + 'static,
    {
        let (options, idle, permits) = (self.options.clone(), self.idle.clone(), self.permits.clone());
        let task = tokio::spawn(async move {
            let _permit = permits.acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
            let kept = take(&idle);
            let mut connection = match kept {
                Some(connection) => connection,
                None => options.connect().await?,
            };
            let result = work(&mut connection).await;
            match &result {
                Ok(_) => lock(&idle).push(connection),
                // What broke this one has probably broken the idle ones: the next statement opens a new one.
                Err(_) => lock(&idle).clear(),
            }
            result
        });
        let abort = task.abort_handle();
        match tokio::time::timeout(self.give_up_after, task).await {
            Ok(Ok(result)) => result.map_err(StoreError::from),
            Ok(Err(panic)) => Err(StoreError::Unavailable(format!("the statement's task ended: {panic}"))),
            Err(_) => {
                abort.abort();
                lock(&self.idle).clear();
                Err(StoreError::late(self.give_up_after))
            }
        }
    }
}

fn take<C>(idle: &Mutex<Vec<C>>) -> Option<C> {
    lock(idle).pop()
}

fn lock<C>(idle: &Mutex<Vec<C>>) -> std::sync::MutexGuard<'_, Vec<C>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
