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
