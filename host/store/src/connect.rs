use std::sync::Arc;

use crate::memory::MemoryStore;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::{OutboxAdmin, OutboxStore, StoreError, StoreOptions};

/// One outbox, seen by a relay and by people.
#[derive(Clone)]
pub struct Store {
    pub outbox: Arc<dyn OutboxStore>,
    pub admin: Arc<dyn OutboxAdmin>,
}

impl Store {
    /// Opens nothing yet, so it succeeds while the database is down: errors come from the calls. Fails on a URL or a table
    /// name that cannot be. Must be called within a Tokio runtime: the listener is a task.
    pub fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        match kind(&options.url)? {
            Kind::Postgres => Ok(Self::over(Arc::new(Postgres::connect(options)?))),
            Kind::Sqlite => Ok(Self::over(Arc::new(Sqlite::connect(options)?))),
        }
    }

    /// An outbox in memory, for simulation and tests; see [`MemoryStore::put`].
    pub fn memory(store: Arc<MemoryStore>) -> Self {
        Self::over(store)
    }

    fn over<S: OutboxStore + OutboxAdmin + 'static>(store: Arc<S>) -> Self {
        Store { outbox: store.clone(), admin: store }
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
