use std::sync::Arc;
use std::time::Instant;

use outboxd::handler::Handlers;
use outboxd::metrics::{Metered, MeteredHandlers};
use outboxd::relay::{Relay, RelayOptions};
use outboxd_core::Jitter;
use outboxd_store::OnDelivered;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::observed::{Observed, Seen};
use crate::plugins::{Component, Native};
use crate::raw;
use crate::report::{Report, median};
use crate::stage::{Outbox, Stage};

/// Relays at work on one outbox.
pub struct Relays {
    pub seen: Arc<Seen>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Relays {
    /// Starts so many relays, each with connections of its own and with the metrics that `outboxd run` puts around them.
    pub async fn start(outbox: &Outbox, handlers: Arc<dyn Handlers>, relays: usize) -> Relays {
        let (seen, stop, mut tasks) = (Seen::new(), CancellationToken::new(), JoinSet::new());
        for _ in 0..relays {
            let metered = Arc::new(Metered::new(outbox.store().await.outbox, Arc::default()));
            let store = Observed::new(metered, seen.clone());
            let handlers = Arc::new(MeteredHandlers::new(handlers.clone()));
            let draw_jitter = Arc::new(|| Jitter::new(fastrand::f64()));
            let relay = Relay::new(store, handlers, draw_jitter, RelayOptions::default());
            let stop = stop.clone();
            tasks.spawn(async move {
                relay.run(stop).await;
            });
        }
        Relays { seen, stop, tasks }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.join_all().await;
    }
}

/// Messages a second, from the start of the relays until the last is delivered and settled.
pub async fn drain(outbox: &Outbox, handlers: Arc<dyn Handlers>, messages: u64, relays: usize) -> f64 {
    let begun = Instant::now();
    let relays = Relays::start(outbox, handlers, relays).await;
    relays.seen.delivered(messages).await;
    let seconds = begun.elapsed().as_secs_f64();
    let claimed = relays.seen.counts().claimed;
    relays.stop().await;
    assert_eq!(claimed, messages, "{} messages were claimed twice", claimed - messages);
    messages as f64 / seconds
}

/// Drains beside the raw loop and without the sandbox.
pub async fn measure(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    let (mut raw, mut deleted, mut native, mut kept) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        let outbox = stage.postgres(OnDelivered::Delete).await;
        outbox.fill(messages, 1).await;
        raw.push(raw::drain(&outbox, messages).await);
        let outbox = stage.postgres(OnDelivered::Delete).await;
        outbox.fill(messages, 1).await;
        deleted.push(drain(&outbox, component.handlers(), messages, 1).await);
        let outbox = stage.postgres(OnDelivered::Delete).await;
        outbox.fill(messages, 1).await;
        native.push(drain(&outbox, Arc::new(Native), messages, 1).await);
        let outbox = stage.postgres(OnDelivered::Keep).await;
        outbox.fill(messages, 1).await;
        kept.push(drain(&outbox, component.handlers(), messages, 1).await);
    }
    report.add("raw SQL loop, delete", median(&raw), "messages/s");
    report.add("drain, delete on success", median(&deleted), "messages/s");
    report.add_with_target("drain, over the raw loop", ratio(&deleted, &raw), "x", "at least 1.0");
    report.add("drain, native handler", median(&native), "messages/s");
    report.add_with_target("native handler, over the component", ratio(&native, &deleted), "x", "at most 1.5");
    report.add("the sandbox, a message", 1e6 / median(&deleted) - 1e6 / median(&native), "µs");
    report.add("drain, delivered are kept", median(&kept), "messages/s");
}

/// Several relays on one outbox. That none claims a message twice is asserted.
pub async fn relays(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    let mut rates = [vec![], vec![], vec![]];
    for _ in 0..rounds {
        for (rates, relays) in rates.iter_mut().zip([1, 2, 4]) {
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill(messages, 1).await;
            rates.push(drain(&outbox, component.handlers(), messages, relays).await);
        }
    }
    let [one, two, four] = rates;
    report.add("2 relays, over one", ratio(&two, &one), "x");
    report.add_with_target("4 relays, over one", ratio(&four, &one), "x", "at least 1.0");
}

pub async fn topics(stage: &Stage, report: &mut Report, messages: u64) {
    let component = Component::load().await;
    let outbox = stage.postgres(OnDelivered::Delete).await;
    outbox.fill(messages, 200).await;
    let rate = drain(&outbox, component.handlers(), messages, 1).await;
    report.add("drain, 200 topics", rate, "messages/s");
}

pub async fn sqlite(stage: &Stage, report: &mut Report, messages: u64) {
    let component = Component::load().await;
    let outbox = stage.sqlite(OnDelivered::Delete).await;
    outbox.fill(messages, 1).await;
    let rate = drain(&outbox, component.handlers(), messages, 1).await;
    report.add_with_target("SQLite drain, delete on success", rate, "messages/s", "at least 10000");
}

/// The median of the ratios of rounds that followed each other: what else the machine did hit both.
pub fn ratio(rates: &[f64], baseline: &[f64]) -> f64 {
    median(&rates.iter().zip(baseline).map(|(rate, baseline)| rate / baseline).collect::<Vec<_>>())
}
