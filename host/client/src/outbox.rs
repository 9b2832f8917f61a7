use std::sync::Arc;

use outboxd_core::{PAYLOAD_BYTES_MAX_DEFAULT, TableName, quoted};

use crate::PublishError;

/// Which table messages go to, and how large they may be. Cheap to clone; make one and keep it.
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(crate) table: TableName,
    pub(crate) payload_max: u64,
    pub(crate) prepared: bool,
    pub(crate) postgres: Statements,
    pub(crate) sqlite: Statements,
}

#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) publish: Arc<str>,
    pub(crate) duplicate_of: Arc<str>,
}

impl Default for Outbox {
    /// The table `outbox`.
    fn default() -> Self {
        Outbox::of(TableName::default())
    }
}

impl Outbox {
    /// The table by its name, as in outboxd's configuration: `outbox`, `billing.outbox`, `"Odd name"`.
    pub fn new(table: &str) -> Result<Self, PublishError> {
        TableName::parse(table).map(Outbox::of).map_err(PublishError::Invalid)
    }

    /// The table by its parsed name.
    pub fn of(table: TableName) -> Self {
        let postgres = format!("{}.{}", quoted(table.schema_or_default()), quoted(table.table()));
        let sqlite = format!("main.{}", quoted(table.table()));
        Outbox {
            payload_max: PAYLOAD_BYTES_MAX_DEFAULT,
            prepared: true,
            postgres: Statements {
                publish: written(include_str!("sql/postgres/publish.sql"), &postgres),
                duplicate_of: written(include_str!("sql/postgres/duplicate_of.sql"), &postgres),
            },
            sqlite: Statements {
                publish: written(include_str!("sql/sqlite/publish.sql"), &sqlite),
                duplicate_of: written(include_str!("sql/sqlite/duplicate_of.sql"), &sqlite),
            },
            table,
        }
    }

    /// Payloads above it are refused; the relay's `payload_max` should be the same. Bytes. Default 1 MiB.
    pub fn payload_max(mut self, bytes: u64) -> Self {
        self.payload_max = bytes;
        self
    }

    /// For connections that lead through a pooler in transaction mode: statements are not prepared by name, at the price of a
    /// round trip each. Leave `extra_float_digits` out of the connection's options too. PostgreSQL only.
    pub fn behind_pooler(mut self) -> Self {
        self.prepared = false;
        self
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.table
    }
}

fn written(statement: &str, table: &str) -> Arc<str> {
    statement.replace("{table}", table).into()
}
