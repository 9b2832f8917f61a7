use std::time::{Duration, Instant};

use outboxd_client::{NewMessage, publish};
use outboxd_store::OnDelivered;
use sqlx::Connection as _;

use crate::drain::ratio;
use crate::report::{Report, median};
use crate::stage::{Outbox, PAYLOAD, Stage};

/// Whether the producer's transaction publishes.
#[derive(Clone, Copy)]
enum Writes {
    OrderAlone,
    OrderAndMessage,
}

/// What an outbox costs its producer: transactions of one row, with and without a message.
pub async fn measure(stage: &Stage, report: &mut Report, seconds: u64, rounds: usize) {
    let outbox = stage.postgres(OnDelivered::Delete).await;
    outbox.sql("create table orders (id bigserial primary key, body text not null)").await;
    let lasts = Duration::from_secs(seconds);
    let (mut without, mut with) = (vec![], vec![]);
    for _ in 0..rounds {
        without.push(commits(&outbox, Writes::OrderAlone, lasts).await);
        with.push(commits(&outbox, Writes::OrderAndMessage, lasts).await);
    }
    report.add("commits, one row", median(&without), "1/s");
    report.add("commits, one row and a message", median(&with), "1/s");
    report.add("with a message, over without", ratio(&with, &without), "x");
}

/// Commits a second of one producer.
async fn commits(outbox: &Outbox, writes: Writes, lasts: Duration) -> f64 {
    let mut connection = outbox.connection().await;
    let table = outboxd_client::Outbox::default();
    let (mut commits, begun) = (0_u32, Instant::now());
    while begun.elapsed() < lasts {
        let mut transaction = connection.begin().await.expect("begins");
        let order = sqlx::query("insert into orders (body) values ($1)").bind(PAYLOAD);
        order.execute(&mut *transaction).await.expect("inserted");
        if let Writes::OrderAndMessage = writes {
            publish(&mut transaction, &table, NewMessage::from_json("t0", PAYLOAD)).await.expect("published");
        }
        transaction.commit().await.expect("committed");
        commits += 1;
    }
    f64::from(commits) / begun.elapsed().as_secs_f64()
}
