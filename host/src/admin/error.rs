//! What goes wrong with a request, and its status.

use axum::extract::rejection::{FormRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use outboxd_store::StoreError;

use crate::bulk::Broken;

/// Why a request is not carried out, or not to its end.
#[derive(Debug)]
pub enum Problem {
    /// The request says something that makes no sense; the text says what would.
    Asked(String),
    Missing(String),
    Store(Broken),
}

impl Problem {
    pub fn status(&self) -> StatusCode {
        match self {
            Problem::Asked(_) => StatusCode::BAD_REQUEST,
            Problem::Missing(_) => StatusCode::NOT_FOUND,
            Problem::Store(Broken { error: StoreError::Unavailable(_), .. }) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Store(Broken { error: StoreError::Broken(_), .. }) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub fn text(&self) -> String {
        match self {
            Problem::Asked(text) | Problem::Missing(text) => text.clone(),
            Problem::Store(broken) => broken.to_string(),
        }
    }

    /// How many messages were changed before it went wrong.
    pub fn changed(&self) -> u64 {
        match self {
            Problem::Asked(_) | Problem::Missing(_) => 0,
            Problem::Store(broken) => broken.changed,
        }
    }
}

impl From<Broken> for Problem {
    fn from(broken: Broken) -> Self {
        Problem::Store(broken)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Problem::Store(Broken { changed: 0, error })
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Problem::Missing(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Problem::Asked(rejection.body_text())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Problem::Asked(rejection.body_text())
    }
}

impl From<FormRejection> for Problem {
    fn from(rejection: FormRejection) -> Self {
        Problem::Asked(rejection.body_text())
    }
}
