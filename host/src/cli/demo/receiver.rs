//! The target: a small HTTP server as a customer of the shop might run one, with a bad day.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::stage::Stage;

/// How long it thinks about a message, so that some are always under way.
const WORK: Duration = Duration::from_millis(10);
/// Every so many-th first try is answered 500.
const REFUSE_EVERY: usize = 20;

/// What the receiver wrote down, always before it answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries {
    /// How often each message was accepted. More than once is a duplicate, told by its `webhook-id`.
    pub(super) accepted: BTreeMap<Uuid, usize>,
    /// When each was accepted for the first time.
    pub(super) arrivals: Vec<Instant>,
    /// Requests whose signature, or id, was not right.
    pub(super) forged: usize,
}

pub(super) struct Receiver {
    address: SocketAddr,
    book: Arc<Book>,
    runtime: Option<Runtime>,
}

struct Book {
    key: Vec<u8>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    deliveries: Deliveries,
    /// Messages of which a first try was seen.
    tried: BTreeSet<Uuid>,
}

impl Receiver {
    pub(super) fn new(stage: &Stage) -> Self {
        Receiver {
            address: ([127, 0, 0, 1], stage.receiver_port).into(),
            book: Arc::new(Book { key: stage.key.clone(), pages: Mutex::default() }),
            runtime: None,
        }
    }

    /// Listens, on the same port each time. A runtime of its own, since ending that ends the open connections too.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address).with_context(|| format!("{} is taken", self.address))?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("receiver")
            .enable_all()
            .build()?;
        let app = Router::new().route("/orders", post(receive)).with_state(self.book.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, app).await
        });
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Closes port and connections at once, answered or not, as if the process had been killed. What it wrote down stays.
    pub(super) async fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for a runtime blocks. It fails only if that thread panics, and then the runtime is gone as well.
            let _ = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(2))).await;
        }
    }

    /// How many distinct messages were accepted.
    pub(super) fn delivered(&self) -> usize {
        self.book.pages().deliveries.accepted.len()
    }

    pub(super) fn ledger(&self) -> Deliveries {
        self.book.pages().deliveries.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn receive(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    tokio::time::sleep(WORK).await;
    let Some(id) = verified_id(&book.key, &headers, &body) else {
        book.pages().deliveries.forged += 1;
        return StatusCode::UNAUTHORIZED;
    };
    book.pages().enter(id)
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn enter(&mut self, id: Uuid) -> StatusCode {
        if self.tried.insert(id) && self.tried.len().is_multiple_of(REFUSE_EVERY) {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        let times = self.deliveries.accepted.entry(id).or_default();
        *times += 1;
        // A repetition is answered as the first time, and has no effect: `docs/idempotency.md`.
        if *times == 1 {
            self.deliveries.arrivals.push(Instant::now());
        }
        StatusCode::NO_CONTENT
    }
}

/// The message's id, if the request is signed with `key` as Standard Webhooks asks.
fn verified_id(key: &[u8], headers: &HeaderMap, body: &[u8]) -> Option<Uuid> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let (id, timestamp) = (header("webhook-id")?, header("webhook-timestamp")?);
    let signature = STANDARD.decode(header("webhook-signature")?.strip_prefix("v1,")?).ok()?;
    let mac = Hmac::<sha2::Sha256>::new_from_slice(key).ok()?;
    mac.chain_update(format!("{id}.{timestamp}.")).chain_update(body).verify_slice(&signature).ok()?;
    Uuid::parse_str(id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_twentieth_first_try_is_refused_and_its_second_accepted() {
        let mut pages = Pages::default();
        let ids: Vec<Uuid> = (0..100).map(Uuid::from_u128).collect();

        let refused: Vec<Uuid> = ids.iter().copied().filter(|id| pages.enter(*id).is_server_error()).collect();
        let again: Vec<StatusCode> = refused.iter().map(|id| pages.enter(*id)).collect();

        assert_eq!(refused.len(), 5);
        assert!(again.iter().all(StatusCode::is_success));
        assert_eq!(pages.deliveries.accepted.len(), 100);
    }

    #[test]
    fn a_message_accepted_twice_is_counted_twice() {
        let mut pages = Pages::default();
        pages.enter(Uuid::from_u128(1));
        pages.enter(Uuid::from_u128(1));

        assert_eq!(pages.deliveries.accepted[&Uuid::from_u128(1)], 2);
    }

    #[test]
    fn only_a_request_signed_with_the_key_is_believed() {
        // The example of the Standard Webhooks libraries, its id replaced by one of ours.
        let (key, id, body) = (b"key", "0190a5b0-0000-7000-8000-000000000001", b"{\"order\":1}");
        let mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
        let mac = mac.chain_update(format!("{id}.1700000000.")).chain_update(body).finalize().into_bytes();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", "1700000000".parse().unwrap());
        headers.insert("webhook-signature", format!("v1,{}", STANDARD.encode(mac)).parse().unwrap());

        assert_eq!(verified_id(key, &headers, body), Uuid::parse_str(id).ok());
        assert_eq!(verified_id(key, &headers, b"{\"order\":2}"), None);
        assert_eq!(verified_id(b"another", &headers, body), None);
        headers.remove("webhook-timestamp");
        assert_eq!(verified_id(key, &headers, body), None);
    }
}
