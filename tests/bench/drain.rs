use std::sync::Arc;
use std::time::{Duration, Instant};

use outboxd::handler::Handlers;
use outboxd::metrics::{Metered, MeteredHandlers};
use outboxd::relay::{Relay, RelayOptions};
use outboxd_core::Jitter;
use outboxd_store::{OnDelivered, SqliteSynchronous};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cpu::{self, micros};
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

/// What a drain came to.
#[derive(Clone, Copy)]
pub struct Drained {
    /// Messages a second.
    pub rate: f64,
    /// What this process computed for a message. Microseconds.
    pub own_cpu: f64,
    /// What the server computed for one. Microseconds.
    pub server_cpu: f64,
}

impl Drained {
    /// Of so many messages since `begun`, when this process had computed for `own`; the connections are still open.
    pub async fn of(outbox: &Outbox, messages: u64, begun: Instant, own: Duration) -> Drained {
        let (took, own, messages) = (begun.elapsed(), cpu::own() - own, messages as f64);
        let (own_cpu, server_cpu) = (micros(own) / messages, micros(cpu::of_server(outbox).await) / messages);
        Drained { rate: messages / took.as_secs_f64(), own_cpu, server_cpu }
    }
}

/// From the start of the relays until the last message is delivered and settled.
pub async fn drain(outbox: &Outbox, handlers: Arc<dyn Handlers>, messages: u64, relays: usize) -> Drained {
    let (begun, own) = (Instant::now(), cpu::own());
    let relays = Relays::start(outbox, handlers, relays).await;
    relays.seen.delivered(messages).await;
    let drained = Drained::of(outbox, messages, begun, own).await;
    let claimed = relays.seen.counts().claimed;
    relays.stop().await;
    assert_eq!(claimed, messages, "{} messages were claimed twice", claimed - messages);
    drained
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
    for (what, drained) in [
        ("raw SQL loop, delete", &raw),
        ("drain, delete on success", &deleted),
        ("drain, native handler", &native),
        ("drain, delivered are kept", &kept),
    ] {
        report.add(what, median(&rates(drained)), "messages/s");
        report.add(format!("{what}: here, a message"), median_of(drained, |drained| drained.own_cpu), "µs of a core");
        let server = median_of(drained, |drained| drained.server_cpu);
        report.add(format!("{what}: the server, a message"), server, "µs of a core");
    }
    let (raw, deleted, native) = (rates(&raw), rates(&deleted), rates(&native));
    report.add_with_target("drain, over the raw loop", ratio(&deleted, &raw), "x", "at least 1.0");
    report.add("drain, native handler, over the raw loop", ratio(&native, &raw), "x");
    report.add_with_target("native handler, over the component", ratio(&native, &deleted), "x", "at most 1.5");
}

fn rates(drained: &[Drained]) -> Vec<f64> {
    drained.iter().map(|drained| drained.rate).collect()
}

fn median_of(drained: &[Drained], value: impl Fn(&Drained) -> f64) -> f64 {
    median(&drained.iter().map(value).collect::<Vec<_>>())
}

/// Several relays on one outbox. That none claims a message twice is asserted.
pub async fn relays(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    let mut rates = [vec![], vec![], vec![]];
    for _ in 0..rounds {
        for (rates, relays) in rates.iter_mut().zip([1, 2, 4]) {
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill(messages, 1).await;
            rates.push(drain(&outbox, component.handlers(), messages, relays).await.rate);
        }
    }
    let [one, two, four] = rates;
    report.add("drain, 1 relay", median(&one), "messages/s");
    report.add("2 relays, over one", ratio(&two, &one), "x");
    report.add_with_target("4 relays, over one", ratio(&four, &one), "x", "at least 1.0");
}

/// Messages of as many topics as a large system has, beside those of one.
pub async fn topics(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    let (mut one, mut many) = (vec![], vec![]);
    for _ in 0..rounds {
        for (rates, topics) in [(&mut one, 1), (&mut many, 200)] {
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill(messages, topics).await;
            rates.push(drain(&outbox, component.handlers(), messages, 1).await.rate);
        }
    }
    report.add("drain, 200 topics", median(&many), "messages/s");
    report.add("200 topics, over one", ratio(&many, &one), "x");
}

pub async fn sqlite(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    let (mut full, mut normal) = (vec![], vec![]);
    for _ in 0..rounds {
        for (drained, synchronous) in [(&mut full, SqliteSynchronous::Full), (&mut normal, SqliteSynchronous::Normal)] {
            let outbox = stage.sqlite(synchronous).await;
            outbox.fill(messages, 1).await;
            drained.push(drain(&outbox, component.handlers(), messages, 1).await);
        }
    }
    report.add("SQLite drain, synchronous full", median(&rates(&full)), "messages/s");
    report.add_with_target("SQLite drain, synchronous normal", median(&rates(&normal)), "messages/s", "at least 10000");
    report.add("SQLite drain, normal: here, a message", median_of(&normal, |drained| drained.own_cpu), "µs of a core");
}

/// The median of the ratios of rounds that followed each other: what else the machine did hit both.
pub fn ratio(rates: &[f64], baseline: &[f64]) -> f64 {
    median(&rates.iter().zip(baseline).map(|(rate, baseline)| rate / baseline).collect::<Vec<_>>())
}
