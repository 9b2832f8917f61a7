//! An HTTP target for black-box tests: records what it gets, answers as told, can be killed and come back.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use tokio::runtime::Runtime;

/// The largest body it takes. Bytes.
const BODY_MAX: usize = 16 << 20;

/// A receiver on a port of 127.0.0.1. It runs on threads of its own, so a test may block, and stops with the value.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// One request, as it came in.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Instant,
}

/// What a request is answered with, and after how long.
#[derive(Clone, Debug)]
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    delay: Duration,
}

type Chooser = Box<dyn Fn(&Received) -> Answer + Send>;

struct Shared {
    seen: Mutex<Vec<Received>>,
    /// Answers for the next requests, in order; after them `otherwise` is asked.
    script: Mutex<VecDeque<Answer>>,
    otherwise: Mutex<Chooser>,
}

impl Receiver {
    /// Starts on a free port and answers 200 until told otherwise.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port of 127.0.0.1");
        let shared = Shared {
            seen: Mutex::default(),
            script: Mutex::default(),
            otherwise: Mutex::new(Box::new(|_| Answer::status(200))),
        };
        let address = listener.local_addr().expect("a bound listener has an address");
        let mut receiver = Receiver { address, shared: Arc::new(shared), runtime: None };
        receiver.serve(listener);
        receiver
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT` and the path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers the next requests so, one each; then goes on as before.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.shared.script).extend(answers);
    }

    /// Answers every request that no script covers by what `choose` says.
    pub fn answer(&self, choose: impl Fn(&Received) -> Answer + Send + 'static) {
        *lock(&self.shared.otherwise) = Box::new(choose);
    }

    /// Everything received so far, the first first. Survives `stop` and `restart`.
    pub fn received(&self) -> Vec<Received> {
        lock(&self.shared.seen).clone()
    }

    pub fn count(&self) -> usize {
        lock(&self.shared.seen).len()
    }

    /// Waits until `enough` likes what was received; panics after `at_most`, saying how much there was.
    pub async fn wait_until(&self, at_most: Duration, enough: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let deadline = Instant::now() + at_most;
        loop {
            let received = self.received();
            if enough(&received) {
                return received;
            }
            assert!(Instant::now() < deadline, "after {at_most:?} only {} requests came", received.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for `count` requests.
    pub async fn wait_for(&self, count: usize, at_most: Duration) -> Vec<Received> {
        self.wait_until(at_most, |received| received.len() >= count).await
    }

    /// Closes the port and every connection, as a killed process would. Requests that wait for an answer get none.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime may not be waited for from within another one.
            let closer = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            closer.join().expect("the receiver's runtime ends");
        }
    }

    /// Listens again on the same port.
    pub fn restart(&mut self) {
        self.stop();
        let listener = TcpListener::bind(self.address).expect("the receiver's port is still free");
        self.serve(listener);
    }

    /// The runtime is the receiver's own: ending it ends its connections too, which `axum::serve` alone would keep.
    fn serve(&mut self, listener: TcpListener) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("receiver")
            .enable_all()
            .build()
            .expect("a runtime for the receiver");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let app = Router::new().fallback(receive).with_state(self.shared.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener for the runtime");
            axum::serve(listener, app).await
        });
        self.runtime = Some(runtime);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let received = Received {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
        at: Instant::now(),
    };
    let scripted = lock(&shared.script).pop_front();
    let answer = scripted.unwrap_or_else(|| lock(&shared.otherwise)(&received));
    lock(&shared.seen).push(received);

    tokio::time::sleep(answer.delay).await;
    (answer.status, answer.headers, answer.body).into_response()
}

impl Received {
    /// The header's text, or nothing.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The message's id, from `webhook-id`.
    pub fn id(&self) -> &str {
        self.header("webhook-id").unwrap_or_default()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Checks the Standard Webhooks headers: the id is there, the time is at most five minutes off, the signature is
    /// `secret`'s. A secret written `whsec_…` is base64, any other one the key itself.
    pub fn verify(&self, secret: &str) -> Result<(), String> {
        let header = |name| self.header(name).ok_or_else(|| format!("header {name} is missing"));
        let (id, timestamp, signatures) =
            (header("webhook-id")?, header("webhook-timestamp")?, header("webhook-signature")?);
        let sent: u64 = timestamp.parse().map_err(|_| format!("webhook-timestamp {timestamp:?} is no number"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if now.abs_diff(sent) > 300 {
            return Err(format!("webhook-timestamp {sent} is more than five minutes off"));
        }
        let key = match secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).map_err(|error| format!("the secret is no base64: {error}"))?,
            None => secret.as_bytes().to_vec(),
        };
        let mac = Hmac::<sha2::Sha256>::new_from_slice(&key).map_err(|error| error.to_string())?;
        let mac = mac.chain_update(format!("{id}.{timestamp}.")).chain_update(&self.body);
        let given = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
        let mut given = given.filter_map(|encoded| STANDARD.decode(encoded).ok());
        match given.any(|signature| mac.clone().verify_slice(&signature).is_ok()) {
            true => Ok(()),
            false => Err(format!("webhook-signature {signatures:?} is not this body's")),
        }
    }
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Answer {
            status: StatusCode::from_u16(status).expect("an HTTP status"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            delay: Duration::ZERO,
        }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a header's value");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Answers only after `delay`: long enough is never.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// What a bare client gets back, or nothing where it finds no one or is cut off.
    fn post(address: SocketAddr, headers: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(address).ok()?;
        let length = body.len();
        write!(
            stream,
            "POST /x HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        (!answer.is_empty()).then_some(answer)
    }

    #[test]
    fn it_records_what_comes_and_answers_by_the_script() {
        let receiver = Receiver::start();
        receiver.script([Answer::status(503).header("retry-after", "2").body("busy")]);

        let first = post(receiver.address(), "", "one").unwrap();
        let second = post(receiver.address(), "", "two").unwrap();

        assert!(first.starts_with("HTTP/1.1 503") && first.contains("retry-after: 2") && first.ends_with("busy"));
        assert!(second.starts_with("HTTP/1.1 200"));
        let bodies: Vec<_> = receiver.received().into_iter().map(|received| received.body).collect();
        assert_eq!(bodies, ["one", "two"]);
    }

    #[test]
    fn a_stopped_receiver_is_gone_and_comes_back_on_the_same_port() {
        let mut receiver = Receiver::start();
        receiver.answer(|_| Answer::status(200).after(Duration::from_secs(60)));
        let address = receiver.address();
        let waiting = std::thread::spawn(move || post(address, "", "cut off"));
        let deadline = Instant::now() + Duration::from_secs(10);
        while receiver.count() == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }

        receiver.stop();
        let while_stopped = post(address, "", "nobody");
        receiver.answer(|_| Answer::status(204));
        receiver.restart();

        assert_eq!(waiting.join().unwrap(), None);
        assert_eq!(while_stopped, None);
        assert!(post(address, "", "again").unwrap().starts_with("HTTP/1.1 204"));
    }

    #[test]
    fn a_signature_is_verified_against_id_time_and_body() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap().chain_update(format!("m1.{now}.body"));
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let headers = format!("webhook-id: m1\r\nwebhook-timestamp: {now}\r\nwebhook-signature: v1,{signature}\r\n");
        let receiver = Receiver::start();

        post(receiver.address(), &headers, "body").unwrap();
        post(receiver.address(), &headers, "forged").unwrap();

        let received = receiver.received();
        assert_eq!(received[0].verify(secret), Ok(()));
        assert!(received[0].verify("another").is_err());
        assert!(received[1].verify(secret).is_err());
    }
}
