//! `wasi:sockets` for manifests that grant TCP. The crate's own implementation does the work; five of its functions are
//! replaced here, where the guard and the call's budget come in: a socket is made, a name is looked up (three), a connection
//! is there. The address itself is checked by [`CurrentCall::admits`], which the crate asks before it connects.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::vec;

use async_trait::async_trait;
use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::tcp::HostTcpSocket;
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket::Host as _;
use wasmtime_wasi::p2::pipe::{ClosedInputStream, ClosedOutputStream};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, InputStream, Network, OutputStream, Pollable, SocketResult,
    StreamError, StreamResult, TcpSocket, subscribe,
};
use wasmtime_wasi::sockets::{SocketAddrUse, WasiSocketsView as _};

use super::egress::{CallEgress, EgressError, LookUp, take};
use super::state::CallState;

/// An instance holds so many sockets at once. Each is a file descriptor of the relay's.
const SOCKETS_MAX: u32 = 16;

/// The call that an instance is in: what its sockets are checked against and counted for, also those that outlive a call.
#[derive(Clone)]
pub(crate) struct CurrentCall(Arc<Mutex<CallEgress>>);

impl CurrentCall {
    pub(crate) fn new(call: CallEgress) -> Self {
        CurrentCall(Arc::new(Mutex::new(call)))
    }

    pub(crate) fn set(&self, call: CallEgress) {
        *self.lock() = call;
    }

    /// Whether a socket may be used so. Nothing listens, nothing is bound to a port, and connections go where they may.
    pub(crate) fn admits(&self, address: SocketAddr, what: SocketAddrUse) -> bool {
        match what {
            SocketAddrUse::TcpConnect => self.lock().admit_connection(address).is_ok(),
            // Before it connects, a socket is bound to nothing in particular.
            SocketAddrUse::TcpBind => address.ip().is_unspecified() && address.port() == 0,
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CallEgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces those functions in a linker that has all of WASI.
pub(crate) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut sockets = linker.instance("wasi:sockets/tcp-create-socket@0.2.12")?;
    sockets.func_wrap("create-tcp-socket", |mut store: Store<'_>, (family,): (IpAddressFamily,)| {
        Ok((store.data_mut().create_socket(family)?,))
    })?;

    let mut tcp = linker.instance("wasi:sockets/tcp@0.2.12")?;
    tcp.resource("tcp-socket", ResourceType::host::<TcpSocket>(), |mut store, rep| {
        let state: &mut CallState = store.data_mut();
        state.sockets = state.sockets.saturating_sub(1);
        HostTcpSocket::drop(&mut state.sockets(), Resource::new_own(rep))
    })?;
    tcp.func_wrap("[method]tcp-socket.finish-connect", |mut store: Store<'_>, (socket,): (Resource<TcpSocket>,)| {
        Ok((store.data_mut().finish_connect(socket)?,))
    })?;

    let mut names = linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?;
    names.resource("resolve-address-stream", ResourceType::host::<Addresses>(), |mut store, rep| {
        let state: &mut CallState = store.data_mut();
        state.sockets().table.delete(Resource::<Addresses>::new_own(rep))?;
        Ok(())
    })?;
    names.func_wrap("resolve-addresses", |mut store: Store<'_>, (_network, name): (Resource<Network>, String)| {
        let state = store.data_mut();
        let addresses = match state.egress.look_up(&name) {
            Ok(look_up) => Ok(state.sockets().table.push(Addresses::Coming(look_up))?),
            Err(error) => Err(in_wasi(&error)),
        };
        Ok((addresses,))
    })?;
    names.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store: Store<'_>, (addresses,): (Resource<Addresses>,)| {
            Ok((store.data_mut().sockets().table.get_mut(&addresses)?.next(),))
        },
    )?;
    names.func_wrap(
        "[method]resolve-address-stream.subscribe",
        |mut store: Store<'_>, (addresses,): (Resource<Addresses>,)| -> wasmtime::Result<(Resource<DynPollable>,)> {
            Ok((subscribe(store.data_mut().sockets().table, addresses)?,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

type Store<'a> = StoreContextMut<'a, CallState>;

type Streams = (Resource<DynInputStream>, Resource<DynOutputStream>);

impl CallState {
    fn create_socket(&mut self, family: IpAddressFamily) -> wasmtime::Result<Result<Resource<TcpSocket>, ErrorCode>> {
        if let Err(error) = self.egress.admit_socket() {
            return Ok(Err(in_wasi(&error)));
        }
        if self.sockets >= SOCKETS_MAX {
            self.egress.note(&EgressError::Denied(format!("an instance holds at most {SOCKETS_MAX} sockets at once")));
            return Ok(Err(ErrorCode::NewSocketLimit));
        }
        let socket = answered(self.sockets().create_tcp_socket(family))?;
        self.sockets += u32::from(socket.is_ok());
        Ok(socket)
    }

    fn finish_connect(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<Result<Streams, ErrorCode>> {
        let connected = match answered(self.sockets().finish_connect(socket))? {
            Ok(connected) => connected,
            Err(code) => {
                // What the network said; what the guest did wrong is its own affair.
                if matches!(
                    code,
                    ErrorCode::ConnectionRefused
                        | ErrorCode::ConnectionReset
                        | ErrorCode::ConnectionAborted
                        | ErrorCode::RemoteUnreachable
                        | ErrorCode::Timeout
                ) {
                    let why = format!("TCP: {}", code.name().replace('-', " "));
                    self.egress.note_connection(Err(&EgressError::Connect(why)));
                }
                return Ok(Err(code));
            }
        };
        self.egress.note_connection(Ok(()));
        let call = self.current_call.get_or_insert_with(|| CurrentCall::new(self.egress.clone())).clone();
        let table = self.sockets().table;
        let input = table.get_mut(&connected.0)?;
        let inner = std::mem::replace(input, Box::new(ClosedInputStream));
        *input = Box::new(Counted { inner, call: call.clone() });
        let output = table.get_mut(&connected.1)?;
        let inner = std::mem::replace(output, Box::new(ClosedOutputStream));
        *output = Box::new(Counted { inner, call });
        Ok(Ok(connected))
    }
}

/// What the crate answered, apart from what traps.
fn answered<T>(result: SocketResult<T>) -> wasmtime::Result<Result<T, ErrorCode>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => Ok(Err(error.downcast()?)),
    }
}

fn in_wasi(error: &EgressError) -> ErrorCode {
    match error {
        EgressError::Dns(_) => ErrorCode::NameUnresolvable,
        _ => ErrorCode::AccessDenied,
    }
}

/// What a look-up has found, one address after the other.
enum Addresses {
    Coming(LookUp),
    There(vec::IntoIter<IpAddr>),
    Refused(ErrorCode),
}

impl Addresses {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Addresses::Coming(look_up) = self else { return Poll::Ready(()) };
        let Poll::Ready(ended) = std::pin::pin!(look_up).poll(cx) else { return Poll::Pending };
        *self = match ended {
            Ok(Ok(ips)) => Addresses::There(ips.into_iter()),
            Ok(Err(error)) => Addresses::Refused(in_wasi(&error)),
            Err(_) => Addresses::Refused(ErrorCode::Unknown),
        };
        Poll::Ready(())
    }

    fn next(&mut self) -> Result<Option<IpAddress>, ErrorCode> {
        let _ = self.poll(&mut Context::from_waker(Waker::noop()));
        match self {
            Addresses::Coming(_) => Err(ErrorCode::WouldBlock),
            Addresses::There(ips) => Ok(ips.next().map(IpAddress::from)),
            Addresses::Refused(code) => Err(*code),
        }
    }
}

#[async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }
}

/// A stream whose bytes the call pays for.
struct Counted<S> {
    inner: S,
    call: CurrentCall,
}

impl<S> Counted<S> {
    fn spent(&self, error: EgressError) -> StreamError {
        let call = self.call.lock();
        call.note(&error);
        StreamError::LastOperationFailed(wasmtime::Error::msg(error.to_string()))
    }
}

#[async_trait]
impl Pollable for Counted<DynInputStream> {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl InputStream for Counted<DynInputStream> {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let budget = self.call.lock().download_left.clone();
        let left = usize::try_from(budget.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        if left == 0 && size > 0 {
            return Err(self.spent(EgressError::DownloadSpent));
        }
        let bytes = self.inner.read(size.min(left))?;
        if !take(&budget, bytes.len()) {
            return Err(self.spent(EgressError::DownloadSpent));
        }
        Ok(bytes)
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

#[async_trait]
impl Pollable for Counted<DynOutputStream> {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl OutputStream for Counted<DynOutputStream> {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let budget = self.call.lock().upload_left.clone();
        if !take(&budget, bytes.len()) {
            return Err(self.spent(EgressError::UploadSpent));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}
