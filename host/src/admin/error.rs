//! What goes wrong with a request, and its status.

use axum::http::StatusCode;
use outboxd_store::StoreError;

/// Why a request is not carried out.
#[derive(Debug)]
pub enum Problem {
    /// The request says something that makes no sense; the text says what would.
    Asked(String),
    Missing(String),
    Store(StoreError),
}

impl Problem {
    pub fn status(&self) -> StatusCode {
        match self {
            Problem::Asked(_) => StatusCode::BAD_REQUEST,
            Problem::Missing(_) => StatusCode::NOT_FOUND,
            Problem::Store(StoreError::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Store(StoreError::Broken(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub fn text(&self) -> String {
        match self {
            Problem::Asked(text) | Problem::Missing(text) => text.clone(),
            Problem::Store(error) => error.to_string(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Problem::Store(error)
    }
}
