use std::time::Duration;

use outboxd_core::{Blame, ERROR_BYTES_MAX, Outcome, Reason, safe_text};
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace, WasmtimeBug};
use wasmtime_wasi::I32Exit;

use super::bindings::outboxd::plugin::messages::Failure;
use super::limits::{Limits, Shortage};
use super::state::{HostFailed, Interrupt};

/// How a call ended, before anybody judged it.
pub(crate) enum Ended {
    Answered(Result<(), Failure>),
    Failed(wasmtime::Error),
    /// The wall deadline passed while the guest waited for the host.
    TimedOut,
    /// The lease is lost, or the relay leaves.
    Stopped,
    /// The host panicked: our bug.
    Panicked(String),
}

/// What the host saw during the call, beside how it ended.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) interrupted: Option<Interrupt>,
    pub(crate) shortage: Option<Shortage>,
    /// The last thing that the host refused.
    pub(crate) refusal: Option<String>,
    /// How the last request failed on its way.
    pub(crate) failure: Option<String>,
    /// The last lines of stderr.
    pub(crate) tail: String,
    /// How long the call was allowed to take.
    pub(crate) allowed: Duration,
}

/// What a call says about the version that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Success,
    /// It failed by itself.
    Fault,
    /// Nothing: the target, the host or the relay may be to blame.
    None,
}

/// An outcome whose blame, where the evidence is a fault, is still to be decided by the version's health.
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    pub(crate) evidence: Evidence,
}

/// From what was seen to an outcome. The host names the reason; nothing a guest says can.
pub(crate) fn judge(ended: Ended, seen: &Seen, limits: &Limits) -> Verdict {
    match ended {
        Ended::Answered(Ok(())) => Verdict { outcome: Outcome::Success, evidence: Evidence::Success },
        Ended::Answered(Err(Failure::Retry(retry))) => {
            let after = retry.after_ms.map(Duration::from_millis);
            answer(Outcome::Retry { error: seen.explain(&retry.reason), after })
        }
        Ended::Answered(Err(Failure::Cancel(reason))) => answer(Outcome::Cancel { error: seen.explain(&reason) }),
        Ended::TimedOut => deadline(seen),
        Ended::Stopped => interrupted(),
        Ended::Panicked(what) => {
            host(Reason::Panic, format!("outboxd itself panicked during the call, please report it: {what}"))
        }
        Ended::Failed(error) => failed(&error, seen, limits),
    }
}

fn failed(error: &wasmtime::Error, seen: &Seen, limits: &Limits) -> Verdict {
    if seen.shortage == Some(Shortage::HostMemory) {
        return host(Reason::Overload, "the guests together hold all the memory they may".into());
    }
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::Interrupt) {
        return match seen.interrupted {
            Some(Interrupt::Stop) => interrupted(),
            Some(Interrupt::Deadline) => deadline(seen),
            Some(Interrupt::Cpu) | None => fault(
                Reason::Cpu,
                seen,
                format!("spent its CPU budget of {} (limits.cpu){}", human(limits.cpu), place(error)),
            ),
        };
    }
    if let Some(error) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        return host(Reason::Overload, format!("no room for another call: {error}"));
    }
    if let Some(failed) = error.downcast_ref::<HostFailed>() {
        return host(Reason::Panic, format!("outboxd itself failed during the call, please report it: {failed}"));
    }
    if let Some(bug) = error.downcast_ref::<WasmtimeBug>() {
        return host(Reason::Panic, format!("the sandbox has a bug, please report it: {bug}"));
    }
    let what = match (trap, error.downcast_ref::<I32Exit>()) {
        (_, Some(I32Exit(code))) => format!("called exit({code}) before answering"),
        (Some(trap), _) => format!("{trap}{}", place(error)),
        _ => format!("{}{}", error.root_cause(), place(error)),
    };
    match seen.shortage {
        Some(Shortage::Memory) => {
            let limit = limits.memory >> 20;
            fault(
                Reason::Memory,
                seen,
                format!("asked for more than its {limit} MiB of memory (limits.memory); {what}"),
            )
        }
        Some(Shortage::Table) => {
            fault(Reason::Memory, seen, format!("asked for larger tables than any plugin may have; {what}"))
        }
        Some(Shortage::HostMemory) => host(Reason::Overload, what),
        None if seen.refusal.is_some() => fault(Reason::Denied, seen, what),
        None => fault(Reason::Trap, seen, what),
    }
}

impl Seen {
    /// The guest's own words, then what the host knows and the guest may have left out.
    fn explain(&self, words: &str) -> String {
        let mut text = words.to_string();
        for fact in [&self.refusal, &self.failure].into_iter().flatten() {
            // A guest that passes the host's words on need not be corrected by them.
            let known = fact.strip_prefix("denied: ").unwrap_or(fact);
            if !text.contains(known) {
                text = format!("{text} [{fact}]");
            }
        }
        safe_text(&text, ERROR_BYTES_MAX)
    }
}

fn answer(outcome: Outcome) -> Verdict {
    Verdict { outcome, evidence: Evidence::None }
}

/// The plugin failed by itself. What it printed last comes first: that is where a panic says what went wrong.
fn fault(reason: Reason, seen: &Seen, what: String) -> Verdict {
    let text = if seen.tail.is_empty() { what } else { format!("{}\n{what}", seen.tail) };
    let outcome = Outcome::Fault { reason, error: seen.explain(&text), blame: Blame::Message };
    Verdict { outcome, evidence: Evidence::Fault }
}

fn deadline(seen: &Seen) -> Verdict {
    let error = seen.explain(&format!("did not answer within {} (limits.deadline)", human(seen.allowed)));
    answer(Outcome::Fault { reason: Reason::Deadline, error, blame: Blame::Message })
}

fn interrupted() -> Verdict {
    host(Reason::Interrupted, "the relay stopped the call: it is leaving, or lost the message's lease".into())
}

fn host(reason: Reason, error: String) -> Verdict {
    answer(Outcome::Fault { reason, error: safe_text(&error, ERROR_BYTES_MAX), blame: Blame::Host })
}

/// The function that failed: the first of the backtrace that is not the language's own panic machinery.
fn place(error: &wasmtime::Error) -> String {
    const MACHINERY: [&str; 9] = [
        "panic",
        "abort",
        "rust_begin_unwind",
        "__rust",
        "__cxa",
        "_exit",
        "unwrap_failed",
        "expect_failed",
        "lang_start",
    ];
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let shown = backtrace.to_string();
    let names: Vec<&str> =
        shown.lines().filter_map(|line| line.split_once(" - ").map(|(_, name)| name.trim())).collect();
    let mut named = names.iter().filter(|name| !name.contains("<unknown>") && !name.contains("<wasm function"));
    let first = named.clone().next();
    let telling = named.find(|name| !MACHINERY.iter().any(|word| name.contains(word)));
    match telling.or(first) {
        Some(name) => format!(" in {}", safe_text(name.rsplit_once('!').map_or(name, |(_, function)| function), 200)),
        None => String::new(),
    }
}

/// What a panic of the host said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    safe_text(&text.unwrap_or_else(|| "no message".into()), 1 << 10)
}

fn human(duration: Duration) -> String {
    // Whole milliseconds: what is left of a deadline has odd nanoseconds.
    humantime::format_duration(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::bindings::outboxd::plugin::messages::Retry;

    fn judged(ended: Ended, seen: &Seen) -> (Reason, String, Evidence) {
        let verdict = judge(ended, seen, &Limits::default());
        match verdict.outcome {
            Outcome::Fault { reason, error, .. } => (reason, error, verdict.evidence),
            other => panic!("{other:?}"),
        }
    }

    fn trapped(trap: Trap) -> Ended {
        Ended::Failed(trap.into())
    }

    #[test]
    fn an_interrupt_is_what_the_host_meant_by_it() {
        for (interrupt, reason, evidence) in [
            (Interrupt::Cpu, Reason::Cpu, Evidence::Fault),
            (Interrupt::Deadline, Reason::Deadline, Evidence::None),
            (Interrupt::Stop, Reason::Interrupted, Evidence::None),
        ] {
            let seen = Seen { interrupted: Some(interrupt), ..Seen::default() };
            let (seen_reason, _, seen_evidence) = judged(trapped(Trap::Interrupt), &seen);
            assert_eq!((seen_reason, seen_evidence), (reason, evidence));
        }
    }

    #[test]
    fn a_trap_after_a_refused_growth_is_memory_and_after_a_refused_request_denied() {
        let grown = Seen { shortage: Some(Shortage::Memory), ..Seen::default() };
        let refused = Seen { refusal: Some("denied: no".into()), ..Seen::default() };

        assert_eq!(judged(trapped(Trap::UnreachableCodeReached), &grown).0, Reason::Memory);
        assert_eq!(judged(trapped(Trap::UnreachableCodeReached), &refused).0, Reason::Denied);
        assert_eq!(judged(trapped(Trap::UnreachableCodeReached), &Seen::default()).0, Reason::Trap);
    }

    #[test]
    fn exit_is_never_a_success() {
        let (reason, error, _) = judged(Ended::Failed(I32Exit(0).into()), &Seen::default());

        assert_eq!(reason, Reason::Trap);
        assert_eq!(error, "called exit(0) before answering");
    }

    #[test]
    fn the_panic_message_comes_first() {
        let seen = Seen { tail: "thread 'x' panicked at src/lib.rs:3:5:\nboom".into(), ..Seen::default() };

        let (_, error, _) = judged(trapped(Trap::UnreachableCodeReached), &seen);

        assert!(error.starts_with("thread 'x' panicked at src/lib.rs:3:5:\nboom\nwasm trap: "), "{error}");
    }

    #[test]
    fn what_the_host_refused_is_added_to_the_guests_words_once() {
        let seen = Seen { refusal: Some("denied: https://a is not granted".into()), ..Seen::default() };
        let retry =
            |reason: &str| Ended::Answered(Err(Failure::Retry(Retry { reason: reason.into(), after_ms: None })));
        let error = |ended| match judge(ended, &seen, &Limits::default()).outcome {
            Outcome::Retry { error, .. } => error,
            other => panic!("{other:?}"),
        };

        assert_eq!(error(retry("send failed")), "send failed [denied: https://a is not granted]");
        assert_eq!(error(retry("oh: https://a is not granted")), "oh: https://a is not granted");
    }
}
