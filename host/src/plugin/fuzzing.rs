//! What `tests/fuzz` reaches of the inside. Nobody else should.

use std::time::Duration;

use http::{Method, Uri};
use outboxd_core::Outcome;
use wasmtime::Trap;

use super::bindings::outboxd::plugin::messages::{Failure, Retry};
use super::egress::{Destination, EgressPolicy, HostPattern};
use super::limits::Limits;
use super::outcome::{Ended, Seen, judge};

/// What is said of a plugin's file before wasmtime sees it.
pub fn component_kind(bytes: &[u8]) -> Result<(), String> {
    super::component::check_kind(bytes)
}

/// Whether a plugin that was granted `hosts` may send a request there.
pub fn admitted(hosts: &[HostPattern], method: &Method, uri: &Uri) -> Result<Destination, String> {
    let policy = EgressPolicy { hosts: hosts.to_vec(), ..EgressPolicy::default() };
    policy.admit(method, uri).map_err(|error| error.to_string())
}

/// How a guest's call ends: by an answer, or by a trap of that code.
pub enum Answer<'a> {
    Success,
    Retry(&'a str, Option<u64>),
    Cancel(&'a str),
    Trap(u8),
}

/// The outcome of a call that ended so, where the host had seen those things.
pub fn judged(answer: Answer<'_>, refusal: Option<String>, failure: Option<String>, stderr: String) -> Outcome {
    let seen = Seen { refusal, failure, tail: stderr, allowed: Duration::from_secs(1), ..Seen::default() };
    let ended = match answer {
        Answer::Success => Ended::Answered(Ok(())),
        Answer::Retry(reason, after_ms) => {
            Ended::Answered(Err(Failure::Retry(Retry { reason: reason.into(), after_ms })))
        }
        Answer::Cancel(reason) => Ended::Answered(Err(Failure::Cancel(reason.into()))),
        Answer::Trap(code) => Ended::Failed(Trap::from_u8(code).unwrap_or(Trap::UnreachableCodeReached).into()),
    };
    judge(ended, &seen, &Limits::default()).outcome
}
