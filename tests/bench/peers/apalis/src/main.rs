//! apalis on PostgreSQL: jobs fetched 500 at a time, each in a task of its own, results written in batches and jobs not
//! locked one by one, as its example does it. The finished stay in its table: it has no setting that deletes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage, queries};
use tokio::sync::Notify;

const BATCH: usize = 500;
const QUEUE: &str = "noop";

/// How many jobs were done, and who waits for the last one.
#[derive(Clone, Default)]
struct Done(Arc<(AtomicUsize, Notify)>);

async fn noop(_job: serde_json::Value, done: Data<Done>, count: Data<usize>) {
    let Done(done) = &*done;
    if done.0.fetch_add(1, Ordering::Relaxed) + 1 == *count {
        done.1.notify_one();
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (Some(url), Some(count)) = (std::env::args().nth(1), std::env::args().nth(2)) else {
        return Err("usage: apalis-drain URL COUNT".into());
    };
    let count: usize = count.parse()?;
    let pool = PgPool::connect(&url).await?;
    PostgresStorage::setup(&pool).await?;
    for from in (0..count).step_by(1000) {
        let job = || TaskBuilder::new(br#"{"order":1}"#.to_vec()).build();
        let jobs = (from..count.min(from + 1000)).map(|_| job()).collect();
        queries::push_tasks(&mut *pool.acquire().await?, QUEUE, jobs).await?;
    }
    sqlx::raw_sql("vacuum analyze").execute(&pool).await?;
    sqlx::raw_sql("checkpoint").execute(&pool).await?;

    let config = Config::default().queue(QUEUE).batch_size(BATCH).lock_tasks(false);
    let storage = PostgresStorage::<serde_json::Value>::new(&pool).with_config(config);
    let done = Done::default();
    let worker = WorkerBuilder::new("drain")
        .backend(storage)
        .data(done.clone())
        .data(count)
        .parallelize(tokio::spawn)
        .build(noop);
    let begun = Instant::now();
    let worker = tokio::spawn(worker.run());
    done.0.1.notified().await;
    while waiting(&pool).await? > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("{}", serde_json::json!({ "per_second": count as f64 / begun.elapsed().as_secs_f64() }));
    worker.abort();
    Ok(())
}

/// Jobs whose end is not written yet.
async fn waiting(pool: &PgPool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select count(*) from apalis.jobs where status <> 'Done'").fetch_one(pool).await
}
