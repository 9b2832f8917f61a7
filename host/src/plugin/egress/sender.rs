use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;

use super::body::RequestBody;
use super::connector::Connector;
use super::policy::EgressPolicy;
use crate::plugin::golden::Script;
use crate::plugin::secrets::Secrets;

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_PER_HOST_MAX: usize = 32;
const RESPONSE_HEADERS_MAX: usize = 128;
const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;

/// What the plugins of one version send through: one policy and one pool of connections for each grant, since a pooled
/// connection skips the checks that opened it.
#[derive(Clone)]
pub(crate) struct Egress {
    pub(crate) policy: EgressPolicy,
    pub(crate) secrets: Secrets,
    pub(crate) transport: Transport,
    /// What raw TCP connections are checked by.
    pub(super) connector: Connector,
    /// Where exchanges are written down, where somebody wants to see them.
    pub(crate) exchanges: Option<Arc<Exchanges>>,
}

/// More exchanges than these are not written down.
const EXCHANGES_MAX: usize = 100;

/// The exchanges of one call, in their order.
#[derive(Default)]
pub(crate) struct Exchanges(Mutex<Vec<Exchange>>);

/// One request of a plugin and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Exchange {
    pub method: String,
    pub url: String,
    /// The status, or why nothing came back.
    pub answer: String,
    /// Until the answer's head was there, or nobody waited for it any more.
    pub ms: u64,
}

impl Exchanges {
    /// Writes a request down before it goes out: the call may end before an answer comes.
    pub(crate) fn begin(self: &Arc<Self>, method: &Method, uri: &Uri) -> Noted {
        let mut noted = self.lock();
        let place = noted.len();
        if place < EXCHANGES_MAX {
            let (method, url) = (method.to_string(), uri.to_string());
            noted.push(Exchange { method, url, answer: "no answer".into(), ms: 0 });
        }
        Noted { exchanges: self.clone(), place, started: Instant::now(), answer: None }
    }

    pub(crate) fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is written down. Dropped without an answer, it had none.
pub(crate) struct Noted {
    exchanges: Arc<Exchanges>,
    place: usize,
    started: Instant,
    answer: Option<String>,
}

impl Noted {
    pub(crate) fn end(mut self, answer: impl ToString) {
        self.answer = Some(answer.to_string());
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // Nothing is there beyond the first hundred, and once they were taken.
        if let Some(exchange) = self.exchanges.lock().get_mut(self.place) {
            exchange.ms = self.started.elapsed().as_millis() as u64;
            if let Some(answer) = self.answer.take() {
                exchange.answer = answer;
            }
        }
    }
}

/// What carries requests to their targets.
#[derive(Clone)]
pub(crate) enum Transport {
    Network(Client<Connector, RequestBody>),
    /// A golden message plays the targets.
    Script(Arc<Script>),
}

impl Egress {
    /// HTTP/1.1 only; nothing is followed, and nothing is retried but what was never sent.
    pub(crate) fn new(policy: EgressPolicy, secrets: Secrets, connector: Connector) -> Arc<Self> {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http1_max_headers(RESPONSE_HEADERS_MAX)
            .http1_max_buf_size(RESPONSE_HEAD_BYTES_MAX)
            .set_host(true)
            .build(connector.clone());
        Arc::new(Egress { policy, secrets, transport: Transport::Network(client), connector, exchanges: None })
    }

    /// The same grant with targets that answer from a script. Secrets stay placeholders.
    pub(crate) fn rehearsal(&self, script: Arc<Script>) -> Arc<Self> {
        Arc::new(Egress { transport: Transport::Script(script), exchanges: None, ..self.clone() })
    }

    /// The same grant, with every exchange written down.
    pub(crate) fn watched(&self, exchanges: Arc<Exchanges>) -> Arc<Self> {
        Arc::new(Egress { exchanges: Some(exchanges), ..self.clone() })
    }
}
