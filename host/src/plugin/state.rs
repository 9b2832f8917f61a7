use std::sync::Arc;
use std::time::{Duration, Instant};

use outboxd_core::safe_text;
use tokio_util::sync::CancellationToken;
use wasmtime::component::ResourceTable;
use wasmtime::{StoreContextMut, UpdateDeadline};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_config::WasiConfigVariables;
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::bindings::outboxd::plugin as wit;
use super::bindings::wasi::logging::logging;
use super::clock::{CoarseMonotonicClock, CoarseWallClock};
use super::cpu::CpuMeter;
use super::egress::{CallEgress, Egress, EgressError, EgressHooks};
use super::limits::{Limits, StoreLimiter};
use super::output::{CallFacts, GuestOutput, Level};
use super::redact::Redactor;
use super::secrets::{self, Secrets};
use super::sockets::CurrentCall;

/// Resources that a guest may hold at once, on either side.
pub(crate) const HANDLES_MAX: usize = 4096;
const RANDOM_BYTES_MAX: u64 = 64 << 10;
const FIELD_BYTES_MAX: usize = 64 << 10;
const SIGNATURES_MAX: u32 = 64;

/// What the host knows of one call: the data of its store.
pub(crate) struct CallState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    hooks: EgressHooks,
    pub(crate) limiter: StoreLimiter,
    pub(crate) settings: Arc<WasiConfigVariables>,
    pub(crate) bounds: CallBounds,
    pub(crate) interrupted: Option<Interrupt>,
    pub(crate) output: GuestOutput,
    pub(crate) egress: CallEgress,
    /// Where TCP is granted: what its sockets ask.
    pub(crate) current_call: Option<CurrentCall>,
    /// How many TCP sockets it holds.
    pub(crate) sockets: u32,
    secrets: GrantedSecrets,
    signatures_left: u32,
    context: CallContext,
    /// The wish of the guest that its message's key should rest.
    pub(crate) pause_key: Option<Duration>,
}

/// What ends a call from outside.
#[derive(Clone)]
pub(crate) struct CallBounds {
    pub(crate) cpu: Arc<CpuMeter>,
    pub(crate) deadline: Instant,
    pub(crate) stop: CancellationToken,
}

/// The host itself failed while a guest waited for it: never the guest's fault.
#[derive(Debug)]
pub(crate) struct HostFailed(String);

impl std::fmt::Display for HostFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HostFailed {}

/// Why the host interrupted a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Cpu,
    Deadline,
    Stop,
}

impl CallBounds {
    /// Asked at each tick while the guest computes.
    fn must_stop(&self) -> Option<Interrupt> {
        if self.stop.is_cancelled() {
            Some(Interrupt::Stop)
        } else if self.cpu.is_spent() {
            Some(Interrupt::Cpu)
        } else if Instant::now() >= self.deadline {
            Some(Interrupt::Deadline)
        } else {
            None
        }
    }
}

/// The secrets of the manifest's grant: signing asks by name and finds no other.
#[derive(Clone)]
pub(crate) struct GrantedSecrets {
    pub(crate) names: Arc<[String]>,
    pub(crate) all: Secrets,
}

/// What `outboxd:plugin/context` answers.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    pub(crate) max_attempts: u32,
    pub(crate) idempotency_key: String,
    pub(crate) traceparent: Option<String>,
}

impl CallState {
    pub(crate) fn new(
        limiter: StoreLimiter,
        settings: Arc<WasiConfigVariables>,
        bounds: CallBounds,
        output: GuestOutput,
        egress: CallEgress,
        secrets: GrantedSecrets,
        context: CallContext,
    ) -> Self {
        // Deny by data: no preopened folder, no variable, no argument, no name look-up, no socket unless TCP is granted.
        let mut wasi = WasiCtx::builder();
        wasi.stdout(output.stdout())
            .stderr(output.stderr())
            .max_random_size(RANDOM_BYTES_MAX)
            .wall_clock(CoarseWallClock)
            .monotonic_clock(CoarseMonotonicClock(Instant::now()))
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .allow_blocking_current_thread(false);
        let current_call = egress.grants_tcp().then(|| CurrentCall::new(egress.clone()));
        if let Some(call) = current_call.clone() {
            wasi.allow_tcp(true);
            wasi.socket_addr_check(move |address, what| Box::pin(std::future::ready(call.admits(address, what))));
        }
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELD_BYTES_MAX);
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES_MAX);
        CallState {
            wasi: wasi.build(),
            http,
            table,
            hooks: EgressHooks::new(egress.clone()),
            limiter,
            settings,
            bounds,
            interrupted: None,
            output,
            egress,
            current_call,
            sockets: 0,
            secrets,
            signatures_left: SIGNATURES_MAX,
            context,
            pause_key: None,
        }
    }

    /// Prepares for the next message of a reused instance: only what the guest itself keeps goes on.
    pub(crate) fn renew(
        &mut self,
        limits: &Limits,
        egress: Arc<Egress>,
        facts: CallFacts,
        bounds: CallBounds,
        context: CallContext,
    ) {
        let redactor = Redactor::default();
        self.output.renew(Arc::new(facts), limits, redactor.clone());
        self.egress = CallEgress::new(egress, limits, redactor);
        self.hooks = EgressHooks::new(self.egress.clone());
        if let Some(call) = &self.current_call {
            call.set(self.egress.clone());
        }
        self.limiter.shortage = None;
        self.bounds = bounds;
        self.interrupted = None;
        self.signatures_left = SIGNATURES_MAX;
        self.context = context;
        self.pause_key = None;
    }

    /// Ends what the call left running.
    pub(crate) fn rest(&mut self) {
        self.hooks = EgressHooks::new(self.egress.clone());
    }

    /// The answer to each tick of the epoch.
    pub(crate) fn on_tick(mut store: StoreContextMut<'_, CallState>) -> wasmtime::Result<UpdateDeadline> {
        let state = store.data_mut();
        state.interrupted = state.bounds.must_stop();
        Ok(match state.interrupted {
            Some(_) => UpdateDeadline::Interrupt,
            None => UpdateDeadline::Yield(1),
        })
    }

    fn sign<const N: usize>(
        &mut self,
        name: &str,
        data: &[u8],
        sign: fn(&secrecy::SecretString, &[u8]) -> Result<[u8; N], secrets::WrongKind>,
    ) -> wasmtime::Result<Result<Vec<u8>, wit::secrets::SignError>> {
        use wit::secrets::SignError;
        self.signatures_left = match self.signatures_left.checked_sub(1) {
            Some(left) => left,
            None => wasmtime::bail!("more than {SIGNATURES_MAX} signatures in one call"),
        };
        let granted = self.secrets.names.iter().any(|granted| granted == name);
        let Some(secret) = self.secrets.all.get(name).filter(|_| granted) else {
            let why = format!("secret {:?} is not granted, or there is none of that name", safe_text(name, 64));
            self.egress.note(&EgressError::Denied(why));
            return Ok(Err(SignError::Unavailable));
        };
        Ok(sign(&secret, data).map(|signature| signature.to_vec()).map_err(|secrets::WrongKind| SignError::WrongKind))
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for CallState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

impl wit::messages::Host for CallState {}

impl wit::context::Host for CallState {
    fn max_attempts(&mut self) -> wasmtime::Result<Option<u32>> {
        Ok(Some(self.context.max_attempts).filter(|max| *max != u32::MAX))
    }

    fn deadline_ms(&mut self) -> wasmtime::Result<u64> {
        let left = self.bounds.deadline.saturating_duration_since(Instant::now());
        Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }

    fn idempotency_key(&mut self) -> wasmtime::Result<String> {
        Ok(self.context.idempotency_key.clone())
    }

    fn traceparent(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(self.context.traceparent.clone())
    }

    fn pause_key(&mut self, for_ms: u64) -> wasmtime::Result<()> {
        self.pause_key = Some(Duration::from_millis(for_ms));
        Ok(())
    }
}

impl wit::secrets::Host for CallState {
    fn hmac_sha256(
        &mut self,
        secret: String,
        data: Vec<u8>,
    ) -> wasmtime::Result<Result<Vec<u8>, wit::secrets::SignError>> {
        self.sign(&secret, &data, secrets::hmac_sha256)
    }

    fn ed25519(&mut self, secret: String, data: Vec<u8>) -> wasmtime::Result<Result<Vec<u8>, wit::secrets::SignError>> {
        self.sign(&secret, &data, secrets::ed25519)
    }
}

impl logging::Host for CallState {
    fn log(&mut self, level: logging::Level, context: String, message: String) -> wasmtime::Result<()> {
        let level = match level {
            logging::Level::Trace => Level::Trace,
            logging::Level::Debug => Level::Debug,
            logging::Level::Info => Level::Info,
            logging::Level::Warn => Level::Warn,
            logging::Level::Error | logging::Level::Critical => Level::Error,
        };
        self.output.log(level, &context, &message);
        Ok(())
    }
}

impl wit::http::Host for CallState {
    async fn send(
        &mut self,
        request: wit::http::Request,
    ) -> wasmtime::Result<Result<wit::http::Response, wit::http::HttpError>> {
        let egress = self.egress.clone();
        // In a task of its own: a TLS handshake needs more stack than host code on a guest's fiber has. It ends with the call.
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { send(egress, request).await });
        match task.join_next().await {
            Some(Ok(answer)) => Ok(answer.map_err(|error| to_wit(&error))),
            Some(Err(error)) => Err(HostFailed(format!("the sender: {error}")).into()),
            None => Err(HostFailed("the sender was never started".into()).into()),
        }
    }
}

async fn send(egress: CallEgress, request: wit::http::Request) -> Result<wit::http::Response, EgressError> {
    let refused = |error: EgressError| {
        egress.note(&error);
        error
    };
    let malformed = |what: String| refused(EgressError::Malformed(what));
    if request.url.len() > 16 << 10 {
        return Err(refused(EgressError::UrlTooLong));
    }
    let url = safe_text(&request.url, 200);
    // Some parsers read a backslash as a slash, or skip blanks: what two read differently is not sent.
    let odd = request.url.bytes().any(|byte| byte == b'\\' || byte.is_ascii_control() || byte == b' ' || byte >= 0x80);
    let uri = if odd { None } else { request.url.parse::<http::Uri>().ok() };
    let uri = uri.ok_or_else(|| refused(EgressError::Denied(format!("{url:?} is no URL"))))?;
    let method = http::Method::from_bytes(request.method.as_bytes())
        .map_err(|_| malformed(format!("{:?} is no method", safe_text(&request.method, 40))))?;
    if request.headers.len() > 1000 {
        return Err(refused(EgressError::HeadersTooLarge));
    }
    let mut headers = http::HeaderMap::with_capacity(request.headers.len());
    for (name, value) in &request.headers {
        let shown = safe_text(name, 80);
        let name = http::HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| malformed(format!("{shown:?} is no header name")))?;
        let value = http::HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| malformed(format!("the value of header {shown:?} has line breaks or control characters")))?;
        headers.append(name, value);
    }
    let ticket = egress.admit(method, uri, headers)?;
    let total = request.timeout_ms.map(Duration::from_millis);
    let (status, headers, body) = egress.send_whole(ticket, request.body.into(), total).await?;
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = headers.iter().map(|(name, value)| (name.as_str().to_string(), text(value))).collect();
    Ok(wit::http::Response { status, headers, body: body.to_vec() })
}

fn to_wit(error: &EgressError) -> wit::http::HttpError {
    use wit::http::HttpError;
    match error {
        EgressError::Denied(why) => HttpError::Denied(why.clone()),
        EgressError::RequestsSpent | EgressError::UrlTooLong | EgressError::HeadersTooLarge => {
            HttpError::Denied(error.to_string())
        }
        EgressError::Dns(_) => HttpError::Dns,
        EgressError::Connect(_) | EgressError::ConnectTimeout => HttpError::Connect,
        EgressError::Tls(_) | EgressError::Certificate(_) => HttpError::Tls,
        EgressError::FirstByteTimeout | EgressError::BetweenBytesTimeout | EgressError::Timeout => HttpError::Timeout,
        EgressError::DownloadSpent | EgressError::UploadSpent => HttpError::TooLarge,
        EgressError::BodyLength | EgressError::Malformed(_) | EgressError::Protocol(_) => {
            HttpError::Protocol(error.to_string())
        }
    }
}
