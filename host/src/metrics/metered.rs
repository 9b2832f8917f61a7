use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use metrics::{Histogram, counter, histogram};
use outboxd_core::{
    Claim, Held, Lane, LeaseId, LeaseStatus, Reason, RestCause, Settlement, Transition, one_line, planted,
};
use outboxd_store::{DueTopic, Hold, OutboxStore, StoreError, Wake};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::{Failure, Recent, TOPICS_MAX};
use crate::handler::{CallControl, Handled, Handler, Handlers, Route};

/// An [`OutboxStore`] that counts what its statements changed, by the rows they returned.
pub struct Metered {
    inner: Arc<dyn OutboxStore>,
    topics: TopicLabels,
    claimed: Mutex<HashMap<LeaseId, Claimed>>,
    recent: Arc<Recent>,
}

/// What a settlement does not say of its message.
struct Claimed {
    topic: Arc<str>,
    created_at_ms: u64,
    /// When it was claimed or renewed last.
    seen: Instant,
}

/// A claim that was not renewed for so many leases is settled by nobody any more.
const FORGOTTEN_AFTER_LEASES: u32 = 10;

/// An error among the latest failures is cut to so many characters; the message's history keeps more.
const ERROR_CHARS_MAX: usize = 500;

impl Metered {
    /// `recent` is told each attempt that was settled.
    pub fn new(inner: Arc<dyn OutboxStore>, recent: Arc<Recent>) -> Self {
        Metered { inner, topics: TopicLabels::default(), claimed: Mutex::default(), recent }
    }

    /// Forgets the claims whose lease was lost: no settle will ever name them.
    fn note_renewal(&self, held: &[Held], lease: Duration) {
        let now = Instant::now();
        let mut claimed = locked(&self.claimed);
        for held in held {
            if let Some(claimed) = claimed.get_mut(&held.lease_id) {
                claimed.seen = now;
            }
        }
        claimed.retain(|_, claimed| now - claimed.seen < lease.saturating_mul(FORGOTTEN_AFTER_LEASES));
    }

    fn note(&self, settlements: &[Settlement], statuses: &[LeaseStatus]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Looked up once: that costs more than counting.
        let mut settled: HashMap<(Arc<str>, &'static str), u64> = HashMap::new();
        let mut since_publish: HashMap<Arc<str>, Histogram> = HashMap::new();
        let mut claimed_all = locked(&self.claimed);
        for (settlement, status) in settlements.iter().zip(statuses) {
            let Some(claimed) = claimed_all.remove(&settlement.lease_id) else { continue };
            if planted!(25, LeaseStatus::Held, *status) == LeaseStatus::Lost {
                continue;
            }
            let topic = self.topics.label(&claimed.topic);
            *settled.entry((topic.clone(), settlement.transition.result())).or_default() += 1;
            // What is given back is written without a rest; calls that are spaced are no news.
            let rests = !matches!(settlement.transition, Transition::Released { .. });
            if let Some(cause) = settlement.rest.cause.filter(|cause| rests && *cause != RestCause::Rate) {
                counter!("outboxd_key_rests_total", "topic" => topic.to_string(), "cause" => cause.as_str())
                    .increment(1);
            }
            if let Some((reason, error)) = settlement.transition.cause() {
                let failure = Failure {
                    at_ms: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
                    id: settlement.id.to_string(),
                    topic: claimed.topic.to_string(),
                    reason: reason.as_str().into(),
                    error: one_line(error, ERROR_CHARS_MAX),
                };
                self.recent.failed(&claimed.topic, failure);
                counter!("outboxd_failures_total", "topic" => topic.to_string(), "reason" => reason.as_str())
                    .increment(1);
                if reason == Reason::Interrupted {
                    counter!("outboxd_calls_interrupted_total").increment(1);
                }
            }
            if settlement.transition == Transition::Delivered {
                self.recent.delivered(&claimed.topic);
                let since = now.saturating_sub(Duration::from_millis(claimed.created_at_ms));
                let histogram = since_publish
                    .entry(topic)
                    .or_insert_with_key(|topic| histogram!("outboxd_delivery_seconds", "topic" => topic.to_string()));
                histogram.record(since.as_secs_f64());
            }
        }
        drop(claimed_all);
        for ((topic, result), count) in settled {
            counter!("outboxd_settled_total", "topic" => topic.to_string(), "result" => result).increment(count);
        }
    }
}

#[async_trait]
impl OutboxStore for Metered {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        self.inner.due_topics().await
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        self.inner.arrange(lanes, hold).await
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        let claims = self.inner.claim(lanes, lease, lapses_max).await?;
        let mut counts: HashMap<Arc<str>, u64> = HashMap::new();
        let (mut claimed, seen) = (locked(&self.claimed), Instant::now());
        for claim in &claims {
            *counts.entry(self.topics.label(&claim.message.topic)).or_default() += 1;
            if claim.lapsed {
                counter!("outboxd_leases_lapsed_total").increment(1);
            }
            let topic = claim.message.topic.as_str().into();
            claimed.insert(claim.lease_id, Claimed { topic, created_at_ms: claim.message.created_at_ms, seen });
        }
        drop(claimed);
        for (topic, count) in counts {
            counter!("outboxd_claimed_total", "topic" => topic.to_string()).increment(count);
        }
        Ok(claims)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        self.note_renewal(held, lease);
        self.inner.renew(held, lease).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let statuses = self.inner.settle(settlements).await?;
        self.note(settlements, &statuses);
        Ok(statuses)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let statuses = self.inner.release(released).await?;
        self.note(released, &statuses);
        Ok(statuses)
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        let wake = self.inner.wait_for_work(at_most).await;
        let source = match wake {
            Wake::Notify => "notify",
            Wake::Poll => "poll",
        };
        counter!("outboxd_wakes_total", "source" => source).increment(1);
        wake
    }
}

/// [`Handlers`] whose calls are timed.
pub struct MeteredHandlers {
    inner: Arc<dyn Handlers>,
    times: Arc<CallTimes>,
}

impl MeteredHandlers {
    pub fn new(inner: Arc<dyn Handlers>) -> Self {
        MeteredHandlers { inner, times: Arc::default() }
    }
}

impl Handlers for MeteredHandlers {
    fn route(&self, topic: &str) -> Option<Route> {
        let route = self.inner.route(topic)?;
        let handler = MeteredHandler { inner: route.handler, plugin: route.plugin.clone(), times: self.times.clone() };
        Some(Route { handler: Arc::new(handler), ..route })
    }

    fn plugins(&self) -> usize {
        self.inner.plugins()
    }
}

struct MeteredHandler {
    inner: Arc<dyn Handler>,
    plugin: Arc<str>,
    times: Arc<CallTimes>,
}

#[async_trait]
impl Handler for MeteredHandler {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        let started = Instant::now();
        let handled = self.inner.handle(claim, call).await;
        self.times.of(&claim.message.topic, &self.plugin).record(started.elapsed().as_secs_f64());
        handled
    }

    fn threads(&self) -> Option<Handle> {
        self.inner.threads()
    }
}

/// Where calls are timed, by plugin and topic. Kept, since to find one by its labels costs more than to record a time.
#[derive(Default)]
struct CallTimes {
    topics: TopicLabels,
    histograms: Mutex<HashMap<Arc<str>, ByTopic>>,
}

type ByTopic = HashMap<Arc<str>, Histogram>;

impl CallTimes {
    fn of(&self, topic: &str, plugin: &Arc<str>) -> Histogram {
        let topic = self.topics.label(topic);
        let mut histograms = locked(&self.histograms);
        if let Some(histogram) = histograms.get(plugin).and_then(|topics| topics.get(&topic)) {
            return histogram.clone();
        }
        let histogram =
            histogram!("outboxd_call_seconds", "topic" => topic.to_string(), "plugin" => plugin.to_string());
        histograms.entry(plugin.clone()).or_default().insert(topic, histogram.clone());
        histogram
    }
}

/// The topics that have a label of their own: the first [`TOPICS_MAX`] that were seen.
#[derive(Default)]
pub(super) struct TopicLabels(Mutex<HashSet<Arc<str>>>);

impl TopicLabels {
    pub(super) fn label(&self, topic: &str) -> Arc<str> {
        let mut known = locked(&self.0);
        if let Some(label) = known.get(topic) {
            return label.clone();
        }
        if known.len() >= TOPICS_MAX {
            return "other".into();
        }
        let label: Arc<str> = topic.into();
        known.insert(label.clone());
        label
    }
}

// These collections stay sound if a holder panicked: every change is a single step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use outboxd_core::{AttemptRecord, Order, Rest};
    use outboxd_store::{MemoryMessage, MemoryStore};

    use super::*;

    #[test]
    fn a_lost_lease_is_counted_once_by_the_claim_that_takes_the_message_over() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        metrics::with_local_recorder(&recorder, || runtime.block_on(lose_a_lease_and_release_twice()));

        let rendered = recorder.handle().render();
        assert!(rendered.contains("outboxd_leases_lapsed_total 1\n"), "{rendered}");
        assert!(rendered.contains("outboxd_claimed_total{topic=\"a\"} 4\n"), "{rendered}");
    }

    async fn lose_a_lease_and_release_twice() {
        const LEASE: Duration = Duration::from_secs(30);
        let memory = Arc::new(MemoryStore::default());
        memory.put(MemoryMessage { topic: "a".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
        let store = Metered::new(memory.clone(), Arc::default());
        let claim = async || {
            let lanes = [Lane { topic: "a".into(), slots: 1, order: Order::None }];
            store.claim(&lanes, LEASE, u32::MAX).await.unwrap().remove(0)
        };
        claim().await;
        memory.advance(LEASE);
        for _ in 0..2 {
            let claim = claim().await;
            let transition =
                Transition::Released { after: Duration::ZERO, reason: Reason::Overload, error: "later".into() };
            store.release(&[settlement(&claim, transition)]).await.unwrap();
        }
        assert_eq!(claim().await.lapses, 1);
    }

    #[tokio::test]
    async fn a_failure_names_its_topic_whatever_its_label() {
        let memory = Arc::new(MemoryStore::default());
        let recent = Arc::new(Recent::default());
        let store = Metered::new(memory.clone(), recent.clone());
        for n in 0..TOPICS_MAX {
            store.topics.label(&format!("topic-{n}"));
        }
        memory.put(MemoryMessage { topic: "one-more".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
        let lanes = [Lane { topic: "one-more".into(), slots: 1, order: Order::None }];
        let claim = store.claim(&lanes, Duration::from_secs(30), u32::MAX).await.unwrap().remove(0);

        let transition = Transition::Dead { reason: Reason::Cancelled, error: "gone".into() };
        store.settle(&[settlement(&claim, transition)]).await.unwrap();

        assert_eq!(recent.failures()[0].topic, "one-more");
        assert_eq!(recent.series("one-more").unwrap().failed.iter().sum::<u64>(), 1);
    }

    fn settlement(claim: &Claim, transition: Transition) -> Settlement {
        Settlement::of(claim, transition)
    }

    #[test]
    fn a_settle_under_a_lost_lease_is_not_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        metrics::with_local_recorder(&recorder, || runtime.block_on(settle_under_a_lost_lease_and_under_the_next()));

        let rendered = recorder.handle().render();
        let settled: Vec<_> = rendered.lines().filter(|line| line.starts_with("outboxd_settled_total{")).collect();
        assert_eq!(settled, ["outboxd_settled_total{topic=\"a\",result=\"delivered\"} 1"], "{rendered}");
    }

    async fn settle_under_a_lost_lease_and_under_the_next() {
        const LEASE: Duration = Duration::from_secs(30);
        let memory = Arc::new(MemoryStore::default());
        memory.put(MemoryMessage { topic: "a".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
        let store = Metered::new(memory.clone(), Arc::default());
        let lanes = [Lane { topic: "a".into(), slots: 1, order: Order::None }];
        let stale = store.claim(&lanes, LEASE, u32::MAX).await.unwrap().remove(0);
        memory.advance(LEASE);
        let fresh = store.claim(&lanes, LEASE, u32::MAX).await.unwrap().remove(0);
        let failed = Transition::Dead { reason: Reason::Cancelled, error: "late".into() };
        for (claim, transition) in [(stale, failed), (fresh, Transition::Delivered)] {
            let (took, http_status, response_excerpt, digest) = (Duration::ZERO, None, None, None);
            let record = AttemptRecord { attempt: claim.attempt, took, http_status, response_excerpt, digest };
            let settlement = Settlement {
                id: claim.message.id,
                lease_id: claim.lease_id,
                transition,
                order: Order::None,
                rest: Default::default(),
                record,
            };
            store.settle(&[settlement]).await.unwrap();
        }
    }

    #[test]
    fn rests_are_counted_by_their_cause_but_neither_spacing_nor_what_is_given_back() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        metrics::with_local_recorder(&recorder, || runtime.block_on(settle_with_each_cause_of_rest()));

        let rendered = recorder.handle().render();
        let rests: Vec<_> = rendered.lines().filter(|line| line.starts_with("outboxd_key_rests_total{")).collect();
        assert_eq!(rests.len(), 3, "{rendered}");
        for cause in ["failures", "plugin", "retry-after"] {
            let counted = format!("outboxd_key_rests_total{{topic=\"a\",cause=\"{cause}\"}} 1");
            assert!(rests.contains(&counted.as_str()), "{counted} is not in {rendered}");
        }
    }

    async fn settle_with_each_cause_of_rest() {
        let memory = Arc::new(MemoryStore::default());
        let store = Metered::new(memory.clone(), Arc::default());
        let lanes = [Lane { topic: "a".into(), slots: 1, order: Order::None }];
        let claim = async |cause| {
            memory.put(MemoryMessage { topic: "a".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
            let claim = store.claim(&lanes, Duration::from_secs(30), u32::MAX).await.unwrap().remove(0);
            let rest = Rest { time: Duration::from_secs(1), cause: Some(cause), failures: None };
            Settlement { rest, ..settlement(&claim, Transition::Delivered) }
        };
        for cause in [RestCause::Plugin, RestCause::RetryAfter, RestCause::Failures, RestCause::Rate] {
            store.settle(&[claim(cause).await]).await.unwrap();
        }
        let transition =
            Transition::Released { after: Duration::ZERO, reason: Reason::Overload, error: "later".into() };
        store.release(&[Settlement { transition, ..claim(RestCause::Plugin).await }]).await.unwrap();
    }

    #[test]
    fn topics_past_the_limit_share_one_label() {
        let labels = TopicLabels::default();
        for n in 0..TOPICS_MAX {
            assert_eq!(&*labels.label(&format!("topic-{n}")), format!("topic-{n}"));
        }

        assert_eq!(&*labels.label("one-more"), "other");
        assert_eq!(&*labels.label("topic-0"), "topic-0");
    }
}
