use std::time::Duration;

/// Why a statement did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, busy or slow. The statement may have been carried out: its fate is unknown. Try again.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// Trying again will not help: the table is missing, a privilege is, the schema is of another version.
    #[error("{0}")]
    Broken(String),
}

impl StoreError {
    /// No answer came in time.
    pub(crate) fn late(after: Duration) -> Self {
        StoreError::Unavailable(format!("no answer within {:.1} s; the connection was closed", after.as_secs_f64()))
    }
}

/// A driver's error never holds the URL, so no password either.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                if database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
                    postgres_error(&code, database.message())
                } else {
                    sqlite_error(&code, database.message())
                }
            }
            sqlx::Error::Configuration(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::TypeNotFound { .. } => StoreError::Broken(error.to_string()),
            sqlx::Error::Io(io) => StoreError::Unavailable(io.to_string()),
            _ => StoreError::Unavailable(error.to_string()),
        }
    }
}

/// Sorts PostgreSQL's SQLSTATE classes into what passes and what stays.
fn postgres_error(code: &str, message: &str) -> StoreError {
    let class = code.get(..2).unwrap_or_default();
    match (class, code) {
        // Connection trouble, transaction rollbacks, resources, an operator's intervention, the system itself.
        ("08" | "40" | "53" | "57" | "58" | "XX", _) => StoreError::Unavailable(format!("{message} ({code})")),
        // Lock not available; read-only transaction, as after a failover; a cached plan that a migration made stale.
        (_, "55P03" | "25006" | "0A000") => StoreError::Unavailable(format!("{message} ({code})")),
        (_, "42P01" | "42703" | "3F000") => StoreError::Broken(format!("{message}; run \"outboxd migrate\"")),
        _ => StoreError::Broken(format!("{message} ({code})")),
    }
}

/// Sorts SQLite's result codes (the low byte is the primary one).
fn sqlite_error(code: &str, message: &str) -> StoreError {
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(5 | 6) => StoreError::Unavailable(format!("the database file stayed locked by another process ({message})")),
        Ok(13) => StoreError::Unavailable(format!("the disk is full ({message})")),
        Ok(10) => StoreError::Unavailable(format!(
            "the database file cannot be read or written; the disk may be full or failing ({message})"
        )),
        Ok(7 | 9 | 15 | 17) => StoreError::Unavailable(message.into()),
        Ok(8) => StoreError::Broken(format!("the database file or its folder is read-only ({message})")),
        Ok(14) => StoreError::Broken(format!(
            "the database file cannot be opened ({message}); check its folder, or create it with \"outboxd migrate\""
        )),
        Ok(1) if message.starts_with("no such table") || message.starts_with("no such column") => {
            StoreError::Broken(format!("{message}; run \"outboxd migrate\""))
        }
        _ => StoreError::Broken(message.into()),
    }
}
