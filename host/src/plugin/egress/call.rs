use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::connect::capture_connection;
use outboxd_core::{Outcome, Target};
use secrecy::ExposeSecret;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::body::{AnswerBody, RequestBody, ResponseBody, take};
use super::destination::Destination;
use super::error::EgressError;
use super::policy::{self, Piece};
use super::sender::{Egress, Noted, Transport};
use super::target::{self, Awaited, Sight};
use crate::plugin::limits::Limits;
use crate::plugin::redact::Redactor;

const CONNECT_MAX: Duration = Duration::from_secs(10);
const FIRST_BYTE_MAX: Duration = Duration::from_secs(10);
const BETWEEN_BYTES_MAX: Duration = Duration::from_secs(10);
const WAIT_MIN: Duration = Duration::from_millis(1);

/// How long one exchange may wait: the guest's wishes, clamped to what the host allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) connect: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) between_bytes: Duration,
}

impl Waits {
    pub(crate) fn clamp(
        connect: Option<Duration>,
        first_byte: Option<Duration>,
        between_bytes: Option<Duration>,
    ) -> Self {
        let clamp = |wish: Option<Duration>, max: Duration| wish.unwrap_or(max).clamp(WAIT_MIN, max);
        Waits {
            connect: clamp(connect, CONNECT_MAX),
            first_byte: clamp(first_byte, FIRST_BYTE_MAX),
            between_bytes: clamp(between_bytes, BETWEEN_BYTES_MAX),
        }
    }
}

/// The outgoing requests of one call: one guard and one budget, whichever interface the guest uses. Clones share them.
#[derive(Clone)]
pub(crate) struct CallEgress {
    pub(super) egress: Arc<Egress>,
    redactor: Redactor,
    /// Requests, TCP connections and look-ups for them.
    requests_left: Arc<AtomicU32>,
    under_way: Arc<Semaphore>,
    pub(crate) upload_left: Arc<AtomicU64>,
    pub(crate) download_left: Arc<AtomicU64>,
    /// Where the names lead that this call has looked up for TCP.
    pub(super) looked_up: Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>,
    refusal: Arc<Mutex<Option<String>>>,
    failure: Arc<Mutex<Option<String>>>,
    last_response: Arc<LastResponse>,
    pub(super) sight: Arc<Mutex<Sight>>,
}

/// A request that may be sent.
pub(crate) struct Ticket {
    destination: Destination,
    request: Request<()>,
    under_way: OwnedSemaphorePermit,
    noted: Option<Noted>,
}

impl CallEgress {
    pub(crate) fn new(egress: Arc<Egress>, limits: &Limits, redactor: Redactor) -> Self {
        CallEgress {
            egress,
            redactor,
            requests_left: Arc::new(AtomicU32::new(limits.requests)),
            under_way: Arc::new(Semaphore::new(limits.requests_at_once as usize)),
            upload_left: Arc::new(AtomicU64::new(limits.upload)),
            download_left: Arc::new(AtomicU64::new(limits.download)),
            looked_up: Arc::default(),
            refusal: Arc::default(),
            failure: Arc::default(),
            last_response: Arc::default(),
            sight: Arc::default(),
        }
    }

    /// Admits a request by what can be seen without asking anybody: grant, URI, headers, what is left of the budget.
    /// The last step fills in secrets.
    pub(crate) fn admit(&self, method: Method, uri: Uri, headers: HeaderMap) -> Result<Ticket, EgressError> {
        let noted = self.egress.exchanges.as_ref().map(|exchanges| exchanges.begin(&method, &uri));
        match self.try_admit(method, uri, headers) {
            Ok((destination, request, under_way)) => Ok(Ticket { destination, request, under_way, noted }),
            Err(error) => {
                self.note(&error);
                end(noted, &error);
                Err(error)
            }
        }
    }

    fn try_admit(
        &self,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
    ) -> Result<(Destination, Request<()>, OwnedSemaphorePermit), EgressError> {
        let destination = self.egress.policy.admit(&method, &uri)?;
        let mut headers = policy::strip(headers)?;
        self.spend()?;
        let under_way = self.under_way.clone().try_acquire_owned().map_err(|_| EgressError::RequestsSpent)?;
        for value in headers.values_mut() {
            if let Some(filled) = self.fill_in(value, &destination)? {
                *value = filled;
            }
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((destination, request, under_way))
    }

    /// Pays for one request, TCP connection or look-up.
    pub(super) fn spend(&self) -> Result<(), EgressError> {
        let spent = |left: u32| left.checked_sub(1);
        let left = self.requests_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, spent);
        left.map(|_| ()).map_err(|_| EgressError::RequestsSpent)
    }

    /// The value with its secrets filled in, or nothing where it has no placeholder.
    fn fill_in(&self, value: &HeaderValue, destination: &Destination) -> Result<Option<HeaderValue>, EgressError> {
        let Some(pieces) = policy::placeholders(value) else { return Ok(None) };
        let mut filled = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Secret(name) => {
                    let shown: String = name.chars().take(64).collect();
                    if !self.egress.policy.may_carry(name, destination) {
                        return Err(EgressError::Denied(format!("secret {shown:?} is not granted for {destination}")));
                    }
                    let secret = self.egress.secrets.get(name);
                    let secret = secret.ok_or_else(|| EgressError::Denied(format!("there is no secret {shown:?}")))?;
                    if let Transport::Script(_) = self.egress.transport {
                        return Ok(None);
                    }
                    self.redactor.watch(&secret);
                    filled.push_str(secret.expose_secret());
                }
            }
        }
        let mut filled = HeaderValue::from_str(&filled).map_err(|_| {
            EgressError::Denied("a secret with line breaks or control characters fits in no header".into())
        })?;
        filled.set_sensitive(true);
        Ok(Some(filled))
    }

    /// Sends an admitted request and waits for the head of the answer.
    pub(crate) async fn send(
        &self,
        ticket: Ticket,
        body: RequestBody,
        waits: Waits,
    ) -> Result<Response<ResponseBody>, EgressError> {
        let Ticket { destination, request, under_way, noted } = ticket;
        let started = Instant::now();
        let method = request.method().clone();
        let awaited = Awaited::new(&self.sight);
        let sent = self.exchange(request.map(|()| body), waits).await;
        match &sent {
            Ok(response) => {
                let status = response.status().as_u16();
                awaited.end(target::of(response.status(), response.headers(), SystemTime::now()));
                end(noted, response.status());
                debug!(%method, %destination, status, ms = started.elapsed().as_millis() as u64, "{method} {destination} answered {status}");
            }
            Err(error) => {
                self.note(error);
                // A refusal says nothing of this target, and takes back nothing that was seen of another.
                awaited.end(Target::Unseen);
                end(noted, error);
                debug!(%method, %destination, "{method} {destination} brought no answer: {error}");
            }
        }
        let response = sent?;
        self.last_response.begin(response.status().as_u16());
        let (left, record, sight) = (self.download_left.clone(), self.last_response.clone(), self.sight.clone());
        Ok(response.map(|body| ResponseBody::new(body, left, record, sight, waits.between_bytes, under_way)))
    }

    async fn exchange(
        &self,
        mut request: Request<RequestBody>,
        waits: Waits,
    ) -> Result<Response<AnswerBody>, EgressError> {
        let client = match &self.egress.transport {
            Transport::Network(client) => client,
            Transport::Script(script) => return script.answer(request).await,
        };
        let mut connection = capture_connection(&mut request);
        let mut response = std::pin::pin!(client.request(request));
        let connected = async { connection.wait_for_connection_metadata().await.is_some() };
        let early = tokio::select! {
            response = &mut response => Some(response),
            connected = timeout(waits.connect, connected) => match connected {
                Ok(_) => None,
                Err(_) => return Err(EgressError::ConnectTimeout),
            },
        };
        let response = match early {
            Some(response) => response,
            None => timeout(waits.first_byte, response).await.map_err(|_| EgressError::FirstByteTimeout)?,
        };
        let broken = |error: hyper::Error| EgressError::Protocol(format!("the answer broke off: {error}"));
        Ok(response.map_err(|error| cause(&error))?.map(|body| body.map_err(broken).boxed_unsync()))
    }

    /// The whole of one exchange with a body in memory: what the contract's `http.send` is.
    pub(crate) async fn send_whole(
        &self,
        ticket: Ticket,
        body: Bytes,
        total: Option<Duration>,
    ) -> Result<(u16, HeaderMap, Bytes), EgressError> {
        if !take(&self.upload_left, body.len()) {
            let error = EgressError::UploadSpent;
            self.note(&error);
            end(ticket.noted, &error);
            return Err(error);
        }
        let download_max = usize::try_from(self.download_left.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        let exchange = async {
            let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
            let response = self.send(ticket, body, Waits::clamp(None, None, None)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, download_max.saturating_add(1)).collect().await;
            let body = body.map_err(|error| match error.downcast::<EgressError>() {
                Ok(error) => *error,
                Err(_) => EgressError::DownloadSpent,
            });
            let body = body.inspect_err(|error| self.note(error))?;
            Ok((head.status.as_u16(), head.headers, body.to_bytes()))
        };
        let Some(total) = total else { return exchange.await };
        timeout(total.max(WAIT_MIN), exchange).await.unwrap_or_else(|_| {
            self.note(&EgressError::Timeout);
            Err(EgressError::Timeout)
        })
    }

    /// Notes that a request failed.
    pub(crate) fn note(&self, error: &EgressError) {
        lock(&self.sight).note(error);
        self.remember(error);
    }

    /// Why something failed belongs into the error text, whatever the guest makes of it.
    pub(super) fn remember(&self, error: &EgressError) {
        let place = if error.is_refusal() { &self.refusal } else { &self.failure };
        *lock(place) = Some(error.to_string());
    }

    /// What the host refused in this call, if it did.
    pub(crate) fn refusal(&self) -> Option<String> {
        lock(&self.refusal).clone()
    }

    /// How the last request that failed on its way failed.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// What the call's requests saw of their targets.
    pub(crate) fn target(&self) -> Target {
        lock(&self.sight).target()
    }

    /// Strikes the secrets that this call sent out of what it came to.
    pub(crate) fn strike_out(&self, outcome: &mut Outcome) {
        match outcome {
            Outcome::Success => {}
            Outcome::Retry { error, .. }
            | Outcome::Cancel { error }
            | Outcome::Fault { error, .. }
            | Outcome::Refused { error, .. } => *error = self.redactor.strike_out(error),
        }
    }

    /// Status and start of the last answer, secrets struck out.
    pub(crate) fn last_response(&self) -> (Option<u16>, Option<String>) {
        let kept = lock(&self.last_response.kept);
        let (status, excerpt) = kept.clone();
        let text = String::from_utf8_lossy(&excerpt);
        let text = outboxd_core::safe_text(&self.redactor.strike_out(&text), EXCERPT_BYTES_MAX);
        (status, Some(text).filter(|text| !text.is_empty()))
    }
}

/// How much of an answer's start the record keeps. Bytes.
const EXCERPT_BYTES_MAX: usize = 1 << 10;

/// What the target said last.
#[derive(Default)]
pub(crate) struct LastResponse {
    kept: Mutex<(Option<u16>, Vec<u8>)>,
}

impl LastResponse {
    fn begin(&self, status: u16) {
        *lock(&self.kept) = (Some(status), vec![]);
    }

    pub(crate) fn keep(&self, data: &[u8]) {
        let mut kept = lock(&self.kept);
        let room = EXCERPT_BYTES_MAX.saturating_sub(kept.1.len());
        kept.1.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// Completes a request that was written down, where somebody wants to see them.
fn end(noted: Option<Noted>, answer: impl ToString) {
    if let Some(noted) = noted {
        noted.end(answer);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds our own error in what the client wraps around it.
fn cause(error: &(dyn std::error::Error + 'static)) -> EgressError {
    let mut next = Some(error);
    let mut last = error.to_string();
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<EgressError>() {
            return ours.clone();
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large) {
            return EgressError::Protocol("the head of the answer is too large".into());
        }
        last = error.to_string();
        next = error.source();
    }
    EgressError::Protocol(last)
}
