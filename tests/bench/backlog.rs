use outboxd_store::OnDelivered;

use crate::drain::Relays;
use crate::plugins::Component;
use crate::report::{Report, percentile};
use crate::stage::Stage;

/// A relay that comes back to a great many waiting messages: do claims get slower as dead rows pile up before the live ones?
pub async fn measure(stage: &Stage, report: &mut Report, waiting: u64, drained: u64) {
    let component = Component::load().await;
    let outbox = stage.postgres(OnDelivered::Delete).await;
    outbox.fill(waiting, 1).await;
    let relays = Relays::start(&outbox, component.handlers(), 1).await;
    relays.seen.delivered(drained).await;
    let claims = relays.seen.claims();
    relays.stop().await;

    let tenth = claims.len().div_ceil(10);
    let p99 = |claims: &[f64]| percentile(claims, 0.99) * 1000.0;
    let (start, end) = (p99(&claims[..tenth]), p99(&claims[claims.len() - tenth..]));
    report.add(format!("claim with {waiting} waiting, p99 at the start"), start, "ms");
    report.add(format!("claim after {drained} of them, p99"), end, "ms");
    report.add_with_target("end over start", end / start, "x", "at most 1.5");
}
