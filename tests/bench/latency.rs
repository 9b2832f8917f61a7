use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use outboxd_client::{NewMessage, publish_all};
use outboxd_core::MessageId;
use outboxd_store::OnDelivered;
use sqlx::Connection as _;

use crate::drain::Relays;
use crate::plugins::{Component, Noted};
use crate::report::{Report, percentile};
use crate::stage::{Outbox, PAYLOAD, Stage};
use crate::sustained::sustain;

/// What a producer does: so many messages in a transaction, and a transaction every `pause`.
struct Pace {
    name: &'static str,
    batch: usize,
    pause: Duration,
    /// What publish to handler should take, p50 and p99.
    targets: [Option<&'static str>; 2],
}

/// From the producer's commit to the handler and to the settled row, where hardly anything is published, at a brisk rate, and
/// at half of what a relay delivers beside a producer that never rests.
pub async fn measure(stage: &Stage, report: &mut Report, seconds: u64) {
    let component = Component::load().await;
    let half = sustain(stage, &component, seconds).await.delivered / 2.0;
    let pause = Duration::from_millis(10);
    let batch = (half * pause.as_secs_f64()).ceil() as usize;
    for pace in [
        Pace {
            name: "idle",
            batch: 1,
            pause: Duration::from_millis(40),
            targets: [Some("at most 3"), Some("at most 10")],
        },
        Pace { name: "500 a second", batch: 1, pause: Duration::from_millis(2), targets: [None; 2] },
        Pace { name: "half of the maximum", batch, pause, targets: [None; 2] },
    ] {
        let outbox = stage.postgres(OnDelivered::Delete).await;
        let noted = Noted::new(component.handlers());
        let relays = Relays::start(&outbox, Arc::new(noted.clone()), 1).await;
        let begun = Instant::now();
        let published = publish_paced(&outbox, &pace, Duration::from_secs(seconds)).await;
        let rate = published.len() as f64 / begun.elapsed().as_secs_f64();
        relays.seen.delivered(published.len() as u64).await;

        let arrivals = noted.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let since = |then: Instant, now: Instant| now.saturating_duration_since(then).as_secs_f64() * 1000.0;
        let reached: Vec<f64> = published.iter().map(|(id, then)| since(*then, arrivals[id])).collect();
        let settled: Vec<f64> =
            published.iter().filter_map(|(id, then)| Some(since(*then, relays.seen.settled_at(*id)?))).collect();
        relays.stop().await;

        let Pace { name, targets, .. } = pace;
        report.add(format!("latency, {name}: published"), rate, "messages/s");
        for (share, target) in [0.5, 0.99].into_iter().zip(targets) {
            let what = format!("publish to handler, {name}, p{:.0}", share * 100.0);
            report.add_with_target(what, percentile(&reached, share), "ms", target);
        }
        report.add(format!("publish to settled, {name}, p50"), percentile(&settled, 0.5), "ms");
        report.add(format!("publish to settled, {name}, p99"), percentile(&settled, 0.99), "ms");
    }
}

/// Publishes at this pace and answers when the commit of each message returned.
async fn publish_paced(outbox: &Outbox, pace: &Pace, lasts: Duration) -> Vec<(MessageId, Instant)> {
    let mut connection = outbox.connection().await;
    let table = outboxd_client::Outbox::default();
    let messages = vec![NewMessage::from_json("t0", PAYLOAD); pace.batch];
    let mut ticks = tokio::time::interval(pace.pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut published, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < lasts {
        ticks.tick().await;
        let mut transaction = connection.begin().await.expect("begins");
        let batch = publish_all(&mut transaction, &table, &messages).await.expect("published");
        transaction.commit().await.expect("committed");
        let committed = Instant::now();
        published.extend(batch.into_iter().map(|message| (MessageId(message.id), committed)));
    }
    published
}
