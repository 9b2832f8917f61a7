use std::sync::PoisonError;
use std::time::{Duration, Instant};

use outboxd_client::{NewMessage, publish};
use outboxd_core::MessageId;
use outboxd_store::OnDelivered;
use sqlx::Connection as _;

use crate::drain::Relays;
use crate::plugins::{Component, Noted};
use crate::report::{Report, percentile};
use crate::stage::{Outbox, PAYLOAD, Stage};

/// From the producer's commit to the handler and to the settled row, at a low rate and at a brisk one.
pub async fn measure(stage: &Stage, report: &mut Report, seconds: u64) {
    let component = Component::load().await;
    for (name, pause) in [("idle", Duration::from_millis(40)), ("500 a second", Duration::from_millis(2))] {
        let outbox = stage.postgres(OnDelivered::Delete).await;
        let noted = Noted::new(component.handlers());
        let relays = Relays::start(&outbox, std::sync::Arc::new(noted.clone()), 1).await;
        let published = publish_paced(&outbox, pause, Duration::from_secs(seconds)).await;
        relays.seen.delivered(published.len() as u64).await;

        let arrivals = noted.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let since = |then: Instant, now: Instant| now.saturating_duration_since(then).as_secs_f64() * 1000.0;
        let reached: Vec<f64> = published.iter().map(|(id, then)| since(*then, arrivals[id])).collect();
        let settled: Vec<f64> =
            published.iter().filter_map(|(id, then)| Some(since(*then, relays.seen.settled_at(*id)?))).collect();
        relays.stop().await;

        let targets = if name == "idle" { [Some("at most 3"), Some("at most 10")] } else { [None, None] };
        for (share, target) in [(0.5, targets[0]), (0.99, targets[1])] {
            let (line, value) =
                (format!("publish to handler, {name}, p{:.0}", share * 100.0), percentile(&reached, share));
            match target {
                Some(target) => report.add_with_target(line, value, "ms", target),
                None => report.add(line, value, "ms"),
            }
        }
        report.add(format!("publish to settled, {name}, p50"), percentile(&settled, 0.5), "ms");
        report.add(format!("publish to settled, {name}, p99"), percentile(&settled, 0.99), "ms");
    }
}

/// Publishes one message every `pause` and answers when each commit returned.
async fn publish_paced(outbox: &Outbox, pause: Duration, lasts: Duration) -> Vec<(MessageId, Instant)> {
    let mut connection = outbox.connection().await;
    let table = outboxd_client::Outbox::default();
    let mut pace = tokio::time::interval(pause);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut published, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < lasts {
        pace.tick().await;
        let mut transaction = connection.begin().await.expect("begins");
        let message = publish(&mut transaction, &table, NewMessage::from_json("t0", PAYLOAD)).await.expect("published");
        transaction.commit().await.expect("committed");
        published.push((MessageId(message.id), Instant::now()));
    }
    published
}
