//! What `outboxd doctor` learns from the database: each finding says what was seen and what to do about it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::connect::{Kind, kind};
use crate::{StoreError, StoreOptions, postgres, sqlite};

/// One line of the examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word or two: stable, for programs.
    pub check: &'static str,
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// What to do; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works; something weakens it or will break it.
    Warn,
    /// A promise does not hold, or the relay does not work.
    Fail,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Examines the database and the outbox in it. Changes nothing. A database that is away is a finding, not an error; only a URL
/// that cannot be is. `snapshot_max` is how long somebody may hold a snapshot without a warning.
pub async fn examine(options: &StoreOptions, snapshot_max: Duration) -> Result<Vec<Finding>, StoreError> {
    match kind(&options.url)? {
        Kind::Postgres => Ok(postgres::examine(options, snapshot_max).await),
        Kind::Sqlite => Ok(sqlite::examine(options).await),
    }
}

/// What the schema's version says.
pub(crate) fn schema(answer: Result<crate::Migrated, StoreError>) -> Finding {
    const CHECK: &str = "schema";
    match answer {
        Ok(migrated) if migrated.from == migrated.to => Finding::ok(CHECK, format!("version {}", migrated.to)),
        Ok(migrated) => Finding::fail(
            CHECK,
            format!("version {}, this binary needs {}", migrated.from, migrated.to),
            "run \"outboxd migrate\"",
        ),
        Err(error @ StoreError::Unavailable(_)) => Finding::fail(CHECK, error.to_string(), "try again"),
        Err(error @ StoreError::Broken(_)) => {
            let error = error.to_string();
            let advice = match error.ends_with(PRIVILEGE_LACKING) {
                true => GRANTS,
                false => "run the outboxd that made this schema, or a newer one",
            };
            Finding::fail(CHECK, error, advice)
        }
    }
}

/// How PostgreSQL's refusal for want of a privilege ends.
const PRIVILEGE_LACKING: &str = "(42501)";

/// What to do where a privilege is missing.
pub(crate) const GRANTS: &str = "grant it to the relay's role, as docs/operations.md shows";

/// What a missing index costs. The claim cannot do without its own.
pub(crate) fn indexes(missing: &[String]) -> Finding {
    const CHECK: &str = "indexes";
    if missing.is_empty() {
        return Finding::ok(CHECK, "all there");
    }
    let found = format!("missing or invalid: {}", missing.join(", "));
    let advice = "create them as \"outboxd migrate --print\" shows, with \"create index concurrently\" on a busy table";
    match missing.iter().any(|name| name.ends_with("_due")) {
        true => Finding::fail(CHECK, found, advice),
        false => Finding::warn(CHECK, found, advice),
    }
}

/// How far this host's clock is from the database's. Hosts agree by the database's clock alone, so only what people read is off.
pub(crate) fn clock(database_ms: i64, asked: SystemTime, answered: SystemTime) -> Finding {
    const CHECK: &str = "clock";
    const APART_MAX_MS: i64 = 2000;
    let ms = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let (asked, answered) = (ms(asked), ms(answered));
    // Somewhere between the question and the answer.
    let apart = (database_ms - answered).max(asked - database_ms).max(0);
    if apart <= APART_MAX_MS {
        return Finding::ok(CHECK, "this host's and the database's agree");
    }
    let which = if database_ms > answered { "ahead of" } else { "behind" };
    Finding::warn(
        CHECK,
        format!("the database's is {:.1} s {which} this host's", apart as f64 / 1000.0),
        "let both follow NTP; deliveries go by the database's clock, but ages and logs that people read are off",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_by_what_the_round_trip_does_not_explain() {
        let now = SystemTime::now();
        let now_ms = now.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let later = now + Duration::from_secs(5);

        assert_eq!(clock(now_ms + 4000, now, later).verdict, Verdict::Ok);
        let ahead = clock(now_ms + 10_000, now, later);
        assert_eq!(
            (ahead.verdict, ahead.found.as_str()),
            (Verdict::Warn, "the database's is 5.0 s ahead of this host's")
        );
        let behind = clock(now_ms - 7_200_000, now, later);
        assert!(behind.found.contains("7200.0 s behind"), "{behind:?}");
    }

    #[test]
    fn a_schema_that_cannot_be_read_is_answered_by_its_cause() {
        let advice = |error| schema(Err(error)).advice.unwrap_or_default();

        assert_eq!(advice(StoreError::late(Duration::from_secs(5))), "try again");
        let denied = "permission denied for table outbox_versions (42501)";
        assert_eq!(advice(StoreError::Broken(denied.into())), GRANTS);
        assert!(advice(StoreError::Broken("version 7; use a newer outboxd".into())).contains("newer"));
        let behind = schema(Ok(crate::Migrated { from: 0, to: 1 }));
        assert_eq!(behind.advice.as_deref(), Some("run \"outboxd migrate\""));
    }

    #[test]
    fn only_the_claims_index_is_a_failure_when_it_is_missing() {
        assert_eq!(indexes(&[]).verdict, Verdict::Ok);
        assert_eq!(indexes(&["outbox_dead".into()]).verdict, Verdict::Warn);
        assert_eq!(indexes(&["outbox_due".into()]).verdict, Verdict::Fail);
    }
}
