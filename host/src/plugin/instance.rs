use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use outboxd_core::{Attempt, Claim, Outcome, Target, planted};
use tokio_util::sync::CancellationToken;
use wasmtime::Store;

use super::bindings::outboxd::plugin::messages::{Failure, Message};
use super::component::one_line;
use super::cpu::CpuMeter;
use super::egress::Egress;
use super::outcome::{Ended, Seen, Verdict, judge, panic_text};
use super::output::CallFacts;
use super::reuse::Instance;
use super::sandbox::Sandbox;
use super::state::{CallBounds, CallContext, CallState};
use super::version::Version;
use crate::handler::CallControl;

/// What one call came to, and what is worth keeping of it.
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) http_status: Option<u16>,
    pub(crate) response_excerpt: Option<String>,
    pub(crate) pause_key: Option<Duration>,
    pub(crate) target: Target,
    pub(crate) cpu: Duration,
    /// The most memory it held. Bytes.
    pub(crate) memory: usize,
}

/// Hands one message to an instance of `version`: a fresh one, or, where the manifest asks for reuse, one that has served
/// before. Runs on the guests' threads; `cpu` measures it. Where requests go elsewhere than out, as `egress` says, the
/// instance is never used again.
pub(crate) async fn call(
    sandbox: &Sandbox,
    version: &Version,
    claim: &Claim,
    control: CallControl,
    cpu: Arc<CpuMeter>,
    egress: Option<Arc<Egress>>,
) -> Report {
    let limits = &version.manifest.limits;
    let started = Instant::now();
    let deadline = started + limits.deadline;
    let bounds = CallBounds { cpu, deadline, stop: control.stop };
    let facts = CallFacts {
        plugin: version.name.clone(),
        topic: claim.message.topic.clone(),
        message_id: claim.message.id.to_string(),
        attempt: claim.attempt.0,
    };
    let context = CallContext {
        max_attempts: version.manifest.retry.max_attempts,
        idempotency_key: claim.message.id.to_string(),
        traceparent: traceparent(claim),
    };
    let message = to_wit(claim);
    let is_rehearsal = egress.is_some();
    let mut instance = match egress {
        Some(egress) => Instance::new(sandbox, version, egress, facts, bounds.clone(), context),
        None => version.idle.take(version, sandbox, facts, bounds.clone(), context),
    };
    let ended = {
        let work = async {
            let (store, plugin) = instance.start(&version.pre).await?;
            plugin.outboxd_plugin_handler().call_handle(store, &message).await
        };
        run(work, &bounds).await
    };
    let allowed = deadline.saturating_duration_since(started);
    let answered = planted!(33, true, matches!(ended, Ended::Answered(_)));
    let report = report(&instance.store, ended, &bounds, version, allowed);
    // One that was refused something is not trusted with the next message.
    let is_trusted = answered && !is_rehearsal && instance.store.data().egress.refusal().is_none();
    let rest = if is_trusted { version.idle.put_back(instance, version, sandbox) } else { Some(instance) };
    if let Some(instance) = rest {
        dispose(instance);
    }
    report
}

/// Starts an instance within the limits of a call.
pub(crate) async fn try_out(sandbox: &Sandbox, version: &Version, cpu: Arc<CpuMeter>) -> Result<(), String> {
    let limits = &version.manifest.limits;
    let deadline = Instant::now() + limits.deadline;
    let bounds = CallBounds { cpu, deadline, stop: CancellationToken::new() };
    let facts = CallFacts {
        plugin: version.name.clone(),
        topic: String::new(),
        message_id: "trial".into(),
        attempt: Attempt(0).0,
    };
    let context = CallContext { max_attempts: 1, idempotency_key: String::new(), traceparent: None };
    let mut instance = Instance::new(sandbox, version, version.egress.clone(), facts, bounds.clone(), context);
    let ended = run(async { instance.start(&version.pre).await.map(|_| Ok(())) }, &bounds).await;
    let report = report(&instance.store, ended, &bounds, version, limits.deadline);
    dispose(instance);
    match report.verdict.outcome {
        Outcome::Fault { error, .. } => Err(format!("it cannot be started: {error}")),
        _ => Ok(()),
    }
}

/// Runs guest code until it ends, its time is up or it is stopped. What is dropped half-way here is dropped before its
/// store is, which nobody uses again.
async fn run(work: impl Future<Output = wasmtime::Result<Result<(), Failure>>>, bounds: &CallBounds) -> Ended {
    let work = AssertUnwindSafe(bounds.cpu.measure(work)).catch_unwind();
    tokio::select! {
        // The guest first: where it computes, its own interrupt comes before it is dropped.
        biased;
        done = tokio::time::timeout_at(bounds.deadline.into(), work) => match done {
            Err(_elapsed) => Ended::TimedOut,
            Ok(Ok(Ok(answer))) => Ended::Answered(answer),
            Ok(Ok(Err(error))) => Ended::Failed(error),
            Ok(Err(panic)) => Ended::Panicked(panic_text(panic.as_ref())),
        },
        () = bounds.stop.cancelled() => Ended::Stopped,
    }
}

fn report(store: &Store<CallState>, ended: Ended, bounds: &CallBounds, version: &Version, allowed: Duration) -> Report {
    let state = store.data();
    state.output.finish();
    let seen = Seen {
        interrupted: state.interrupted,
        shortage: state.limiter.shortage,
        refusal: state.egress.refusal(),
        failure: state.egress.failure(),
        tail: state.output.tail(),
        allowed,
    };
    if let Ended::Failed(error) = &ended {
        version.tell_once(error);
        tracing::debug!("a call failed: {}", one_line(error));
    }
    let (http_status, response_excerpt) = state.egress.last_response();
    let mut verdict = judge(ended, &seen, &version.manifest.limits);
    state.egress.strike_out(&mut verdict.outcome);
    let memory = state.limiter.memory_high_water();
    let (pause_key, target) = (state.pause_key, state.egress.target());
    Report { verdict, http_status, response_excerpt, pause_key, target, cpu: bounds.cpu.spent(), memory }
}

/// Dropping a store runs code of the host on what a guest has left: a panic there costs nothing but a log line.
fn dispose(instance: Instance) {
    if catch_unwind(AssertUnwindSafe(|| drop(instance))).is_err() {
        tracing::error!("outboxd panicked while it cleaned up after a call, please report it");
    }
}

fn to_wit(claim: &Claim) -> Message {
    let message = &claim.message;
    Message {
        id: message.id.to_string(),
        topic: message.topic.clone(),
        key: message.key.clone(),
        payload: message.payload.as_bytes().to_vec(),
        headers: message.headers.clone(),
        attempt: claim.attempt.0,
        created_at_ms: message.created_at_ms,
    }
}

/// The producer's trace, from its headers.
fn traceparent(claim: &Claim) -> Option<String> {
    let header = claim.message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("traceparent"));
    header.map(|(_, value)| value.clone()).filter(|value| value.len() <= 64)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use outboxd_core::{Attempt, LeaseId, Message as CoreMessage, MessageId, Payload, RetryPolicy};
    use wasmtime::component::Component;

    use super::*;
    use crate::plugin::engine::Pooling;
    use crate::plugin::grants::Ceiling;
    use crate::plugin::guest;
    use crate::plugin::manifest::Manifest;
    use crate::plugin::sandbox::SandboxOptions;

    /// Enough for every wait of most guests, and bounded for those that yield for ever.
    const POLLS_MAX: usize = 24;

    fn claim() -> Claim {
        let message = CoreMessage {
            id: MessageId(uuid::Uuid::now_v7()),
            topic: "guest".into(),
            key: None,
            payload: Payload::Bytes(b"{}".to_vec()),
            headers: vec![],
            created_at_ms: 0,
        };
        Claim {
            message,
            lease_id: LeaseId(uuid::Uuid::new_v4()),
            attempt: Attempt(1),
            lapses: 0,
            lapsed: false,
            order: outboxd_core::Order::None,
            key_failures: 0,
            expired: false,
        }
    }

    /// Polls `future` at most `polls` times, then drops it. Answers whether it came to its end.
    async fn poll_then_drop(future: impl Future<Output = Report>, polls: usize) -> bool {
        let mut future = pin!(future);
        let mut left = polls;
        std::future::poll_fn(move |cx| {
            let done = future.as_mut().poll(cx).is_ready();
            left -= 1;
            if done || left == 0 { Poll::Ready(done) } else { Poll::Pending }
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_may_be_dropped_at_every_await_and_leaves_nothing_behind() {
        let options = SandboxOptions {
            slots: 4,
            pooling: Pooling::On,
            memory_total_max: Some(1 << 40),
            ..SandboxOptions::default()
        };
        let sandbox = Sandbox::new(options).unwrap();
        let manifest = "[limits]\ncpu = \"25ms\"\ndeadline = \"100ms\"\n[grants]\nhosts = [\"https://example.com\"]";
        let manifest =
            Manifest::parse("guest.toml", manifest, "guest", &Ceiling::default(), &RetryPolicy::default()).unwrap();
        let dir = outboxd_test_support::repository().join("tests/guests/wat");
        let (mut guests, mut drops) = (0, 0);

        for entry in std::fs::read_dir(dir).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let component = Component::from_binary(&sandbox.engine, &guest::build(&text));
            let version = component
                .map_err(|error| error.to_string())
                .and_then(|component| Version::link(&sandbox, &component, "guest", "0", manifest.clone()));
            let Ok(version) = version else { continue };
            guests += 1;
            for polls in 1..=POLLS_MAX {
                let control = CallControl { stop: CancellationToken::new() };
                let claim = claim();
                let call = call(&sandbox, &version, &claim, control, version.meter(), None);
                if poll_then_drop(call, polls).await {
                    break;
                }
                drops += 1;
            }
        }

        assert!(guests >= 60 && drops >= guests, "{guests} guests, {drops} drops");
        assert_eq!(sandbox.budget.left(), 1 << 40);
        let pool = sandbox.engine.pooling_allocator_metrics().unwrap();
        assert_eq!((pool.component_instances(), pool.memories(), pool.stacks()), (0, 0, 0));
    }
}
