use std::time::{Duration, Instant};

use outboxd_client::{NewMessage, publish_all};
use outboxd_store::OnDelivered;
use sqlx::Connection as _;

use crate::drain::Relays;
use crate::plugins::Component;
use crate::report::Report;
use crate::stage::{PAYLOAD, Stage};

/// Messages of one transaction of the producer.
const BATCH: usize = 100;

/// What one producer and one relay did beside each other. Messages a second.
pub struct Sustained {
    published: f64,
    pub delivered: f64,
}

pub async fn measure(stage: &Stage, report: &mut Report, seconds: u64) {
    let sustained = sustain(stage, &Component::load().await, seconds).await;
    report.add("published, with a relay at work", sustained.published, "messages/s");
    report.add("delivered meanwhile", sustained.delivered, "messages/s");
}

/// One producer publishes as fast as it can while one relay delivers.
pub async fn sustain(stage: &Stage, component: &Component, seconds: u64) -> Sustained {
    let outbox = stage.postgres(OnDelivered::Delete).await;
    let relays = Relays::start(&outbox, component.handlers(), 1).await;
    let mut connection = outbox.connection().await;
    let table = outboxd_client::Outbox::default();
    let messages = vec![NewMessage::from_json("t0", PAYLOAD); BATCH];

    let (mut published, begun) = (0_u64, Instant::now());
    while begun.elapsed() < Duration::from_secs(seconds) {
        let mut transaction = connection.begin().await.expect("begins");
        publish_all(&mut transaction, &table, &messages).await.expect("published");
        transaction.commit().await.expect("committed");
        published += BATCH as u64;
    }
    let lasted = begun.elapsed().as_secs_f64();
    let delivered = relays.seen.counts().delivered;
    relays.seen.delivered(published).await;
    relays.stop().await;
    Sustained { published: published as f64 / lasted, delivered: delivered as f64 / lasted }
}
