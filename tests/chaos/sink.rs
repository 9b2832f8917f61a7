//! The target: it writes down every delivery and syncs it to disk before it answers. What it has not kept, it has not seen.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use fastrand::Rng;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::faults::milliseconds;
use crate::stage::lease;

/// Requests that are told to come again, of a hundred.
const REFUSED_PERCENT: u64 = 2;
/// One request of so many takes longer than a lease.
const SLOW_EVERY: u64 = 50;

/// One request.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: Uuid,
    /// The process that sent it.
    pub incarnation: u32,
    pub at: SystemTime,
    /// When it was answered; nothing where the sender was gone by then.
    pub answered: Option<SystemTime>,
    /// Whether the answer was, or would have been, that it is taken.
    pub taken: bool,
}

/// Called with message and sender before a delivery is written down. Poison answers by killing the sender.
pub type Hook = Box<dyn Fn(Uuid, u32) -> Reaction + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    Take,
    /// Nothing is written down and no answer given.
    Hang,
}

/// Runs on threads of its own until it is dropped.
pub struct Sink {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    seen: Mutex<Seen>,
    writer: mpsc::UnboundedSender<(String, oneshot::Sender<()>)>,
    /// The longest it takes to answer.
    think_max: Duration,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct Seen {
    deliveries: Vec<Delivery>,
    taken: HashSet<Uuid>,
    /// How often each came.
    times: HashMap<Uuid, u64>,
}

impl Sink {
    /// Keeps its records in `file` and takes up to `think_max` to answer.
    pub fn start(file: &Path, think_max: Duration) -> Sink {
        let file = File::create(file).expect("the sink's file");
        let (writer, received) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("sink writes".into()).spawn(move || write(file, received)).expect("a thread");
        let shared = Arc::new(Shared { seen: Mutex::default(), writer, think_max, hook: Mutex::new(None) });

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sink")
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port of 127.0.0.1");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().route("/{incarnation}", post(receive)).with_state(shared.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, app).await
        });
        Sink { address, shared, runtime: Some(runtime) }
    }

    /// Where the process of that number delivers to.
    pub fn url(&self, incarnation: u32) -> String {
        format!("http://{}/{incarnation}", self.address)
    }

    pub fn hook(&self, hook: Hook) {
        *lock(&self.shared.hook) = Some(hook);
    }

    pub fn deliveries(&self) -> Vec<Delivery> {
        lock(&self.shared.seen).deliveries.clone()
    }

    /// The messages that a process has sent and got no answer for.
    pub fn unanswered(&self, incarnation: u32) -> Vec<Uuid> {
        let is_open = |delivery: &&Delivery| delivery.incarnation == incarnation && delivery.answered.is_none();
        lock(&self.shared.seen).deliveries.iter().filter(is_open).map(|delivery| delivery.id).collect()
    }

    /// The first delivery since `since` that `matches`.
    pub fn first_since(&self, since: SystemTime, matches: impl Fn(&Delivery) -> bool) -> Option<SystemTime> {
        let seen = lock(&self.shared.seen);
        seen.deliveries
            .iter()
            .filter(|delivery| delivery.at >= since && matches(delivery))
            .map(|delivery| delivery.at)
            .min()
    }

    pub fn taken_counter(&self) -> TakenCounter {
        TakenCounter(self.shared.clone())
    }
}

/// How many different messages were taken.
pub struct TakenCounter(Arc<Shared>);

impl TakenCounter {
    pub fn count(&self) -> usize {
        lock(&self.0.seen).taken.len()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    UrlPath(incarnation): UrlPath<u32>,
    headers: HeaderMap,
) -> StatusCode {
    let at = SystemTime::now();
    let id = headers.get("webhook-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let Some(id): Option<Uuid> = id else { return StatusCode::BAD_REQUEST };
    let reaction = lock(&shared.hook).as_ref().map_or(Reaction::Take, |hook| hook(id, incarnation));
    if reaction == Reaction::Hang {
        std::future::pending::<()>().await;
    }
    let (index, taken, drawn) = {
        let mut seen = lock(&shared.seen);
        let earlier = seen.times.entry(id).or_default();
        *earlier += 1;
        // The last bytes of an id are random; each time it comes it is drawn for anew.
        let drawn = Rng::with_seed(id.as_u128() as u64 ^ *earlier).u64(..);
        let taken = drawn % 100 >= REFUSED_PERCENT;
        seen.deliveries.push(Delivery { id, incarnation, at, answered: None, taken });
        if taken {
            seen.taken.insert(id);
        }
        (seen.deliveries.len() - 1, taken, drawn)
    };
    let (written, is_written) = oneshot::channel();
    let _ = shared.writer.send((format!("{},{id},{incarnation},{taken}\n", milliseconds(at)), written));
    let _ = is_written.await;
    tokio::time::sleep(think(drawn / 100, shared.think_max)).await;
    lock(&shared.seen).deliveries[index].answered = Some(SystemTime::now());
    if taken { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// How long it takes to answer: mostly up to `think_max`, now and then longer than a lease, so that leases are renewed.
fn think(drawn: u64, think_max: Duration) -> Duration {
    if drawn.is_multiple_of(SLOW_EVERY) {
        return lease().mul_f64(1.5);
    }
    let think_ms = u64::try_from(think_max.as_millis()).unwrap_or(1).max(1);
    Duration::from_millis(drawn / SLOW_EVERY % think_ms)
}

/// Writes what has come, and syncs once for all of it.
fn write(mut file: File, mut received: mpsc::UnboundedReceiver<(String, oneshot::Sender<()>)>) {
    while let Some((line, written)) = received.blocking_recv() {
        let (mut text, mut waiting) = (line, vec![written]);
        while let Ok((line, written)) = received.try_recv() {
            text.push_str(&line);
            waiting.push(written);
        }
        file.write_all(text.as_bytes()).expect("the sink's file is written");
        file.sync_data().expect("the sink's file is synced");
        for written in waiting {
            let _ = written.send(());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
