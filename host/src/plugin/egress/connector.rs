use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use outboxd_core::planted;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::addresses::AddressGuard;
use super::destination::{Destination, Host, Scheme};
use super::error::EgressError;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const TLS_TIMEOUT: Duration = Duration::from_secs(5);
/// Names of one plugin that are looked up at once, at most: each takes one of the threads that all plugins share.
pub(crate) const LOOK_UPS_MAX: usize = 16;
/// A name with more addresses is tried no further.
pub(super) const ADDRESSES_MAX: usize = 4;

/// Turns a name into addresses. The system's resolver, or a test's.
pub trait Resolve: Send + Sync {
    fn resolve<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// What the machine's own resolver says.
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Opens connections: resolves once, checks every address, connects to a checked one and never to the name again. That is
/// what a name that changes its mind between the check and the connection cannot get around.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) guard: Arc<AddressGuard>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    /// Names that are looked up at once.
    pub(crate) look_ups: Arc<Semaphore>,
}

impl Connector {
    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, EgressError> {
        let destination = Destination::of(&uri).map_err(EgressError::Denied)?;
        let addresses = self.addresses(&destination).await?;
        planted!(32, drop(self.addresses(&destination).await));
        let tcp = connect_first(&addresses).await?;
        // A failure costs latency, nothing else.
        tcp.set_nodelay(true).ok();
        let stream = match destination.scheme {
            Scheme::Http => Stream::Plain(tcp),
            Scheme::Https => Stream::Tls(Box::new(self.handshake(&destination.host, tcp).await?)),
        };
        Ok(TokioIo::new(stream))
    }

    /// The addresses that may be tried. One that is refused refuses the name: a name with a public and a private address
    /// is no accident.
    async fn addresses(&self, destination: &Destination) -> Result<Vec<SocketAddr>, EgressError> {
        let ips = self.resolve(&destination.host).await?;
        let addresses: Vec<SocketAddr> = ips.into_iter().map(|ip| SocketAddr::new(ip, destination.port)).collect();
        for address in planted!(31, &addresses[..0], &addresses[..]) {
            self.guard
                .check_for(destination, *address)
                .map_err(|why| EgressError::Denied(format!("{destination}: {why}")))?;
        }
        Ok(addresses.into_iter().take(ADDRESSES_MAX).collect())
    }

    /// All addresses of a host, none of them checked.
    pub(super) async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, EgressError> {
        let name = match host {
            Host::Ip(ip) => return Ok(vec![*ip]),
            Host::Name(name) => name,
        };
        let (resolver, asked, places) = (self.resolver.clone(), name.clone(), self.look_ups.clone());
        let look_up = async move {
            let place = places.acquire_owned().await.map_err(io::Error::other)?;
            // In a task of its own, which goes on when nobody waits any more: a thread is taken until the system answers, and so
            // is the place. It never runs on a patient thread: a thread that is made for a look-up inherits the patience of the
            // one that asks, and keeps it for the look-ups of others.
            let answer = tokio::spawn(async move {
                let _place = place;
                resolver.resolve(&asked).await
            });
            // A panic is one of the call, as if it had looked up itself.
            answer.await.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(aborted) => Err(io::Error::other(aborted)),
            })
        };
        match timeout(RESOLVE_TIMEOUT, look_up).await {
            Err(_) => Err(EgressError::Dns(format!("{name}: no answer in {} s", RESOLVE_TIMEOUT.as_secs()))),
            Ok(Err(error)) => Err(EgressError::Dns(format!("{name}: {error}"))),
            Ok(Ok(ips)) if ips.is_empty() => Err(EgressError::Dns(format!("{name} has no address"))),
            Ok(Ok(ips)) => Ok(ips),
        }
    }

    async fn handshake(&self, host: &Host, tcp: TcpStream) -> Result<TlsStream<TcpStream>, EgressError> {
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| EgressError::Tls(format!("{name:?} is no name for a certificate")))?,
            Host::Ip(ip) => ServerName::from(*ip),
        };
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, tcp);
        match timeout(TLS_TIMEOUT, handshake).await {
            Err(_) => Err(EgressError::Tls(format!("no handshake in {} s", TLS_TIMEOUT.as_secs()))),
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(why)) => EgressError::Certificate(format!("{host}: {why}")),
                _ => EgressError::Tls(format!("{host}: {error}")),
            }),
        }
    }
}

async fn connect_first(addresses: &[SocketAddr]) -> Result<TcpStream, EgressError> {
    let mut failure = EgressError::ConnectTimeout;
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = EgressError::Connect(format!("{address}: {error}")),
            Err(_) => failure = EgressError::ConnectTimeout,
        }
    }
    Err(failure)
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = EgressError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, EgressError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), EgressError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection, encrypted or not.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
