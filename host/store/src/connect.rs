use std::net::SocketAddr;
use std::sync::Arc;

use crate::memory::MemoryStore;
use crate::postgres::{self, Postgres};
use crate::sqlite::Sqlite;
use crate::{OutboxAdmin, OutboxStore, StoreError, StoreOptions};

/// One outbox, seen by a relay and by people.
#[derive(Clone)]
pub struct Store {
    pub outbox: Arc<dyn OutboxStore>,
    pub admin: Arc<dyn OutboxAdmin>,
    /// Where the database listens, as far as its name could be looked up: no plugin may go there.
    pub addresses: Arc<[SocketAddr]>,
}

impl Store {
    /// Opens nothing yet, so it succeeds while the database is down: errors come from the calls. Fails on a URL or a table
    /// name that cannot be. Must be called within a Tokio runtime: the listener is a task.
    pub async fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        match kind(&options.url)? {
            Kind::Postgres => {
                let addresses = postgres::addresses(options).await?;
                Ok(Store { addresses: addresses.into(), ..Self::over(Arc::new(Postgres::connect(options)?)) })
            }
            Kind::Sqlite => Ok(Self::over(Arc::new(Sqlite::connect(options)?))),
        }
    }

    /// An outbox in memory, for simulation and tests; see [`MemoryStore::put`].
    pub fn memory(store: Arc<MemoryStore>) -> Self {
        Self::over(store)
    }

    fn over<S: OutboxStore + OutboxAdmin + 'static>(store: Arc<S>) -> Self {
        Store { outbox: store.clone(), admin: store, addresses: Arc::new([]) }
    }
}

pub(crate) enum Kind {
    Postgres,
    Sqlite,
}

/// Which database a URL leads to.
pub(crate) fn kind(url: &str) -> Result<Kind, StoreError> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => Ok(Kind::Postgres),
        Some("sqlite") => Ok(Kind::Sqlite),
        _ => Err(StoreError::Broken("the database URL must begin with \"sqlite:\" or \"postgres://\"".into())),
    }
}
