/// Why a message was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The message cannot be: which field, and why. Nothing was written.
    #[error("{0}")]
    Invalid(String),
    /// The database said no; PostgreSQL then lets nothing else be done in the transaction but to roll it back.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// The row that held the dedup key was deleted each time just before it was looked up.
    #[error("dedup key {0:?} is taken and freed too fast")]
    DedupKeyUnsettled(String),
}
