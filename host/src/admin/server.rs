//! The connections of the admin address: bounded in number and in time, so that slow clients hold nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;
use tracing::warn;

use super::guesses::network;

/// Connections at once, in all and of one address. Further ones are closed at once.
const CONNECTIONS_MAX: usize = 128;
const CONNECTIONS_OF_ONE_MAX: usize = 32;

/// A request's head must come within it, from the end of the request before.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// A connection takes no further request after it, and is closed after so much more, whatever is under way.
const SERVES_FOR: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(240);

/// After an accept that failed, as with no file descriptor left.
const PAUSE: Duration = Duration::from_millis(500);

/// Whose request it is, as its connection says.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Serves what `router` is at the time of each request, until `end`. Requests under way are dropped then. A statement of one
/// goes on: it runs in a task of the store's.
pub async fn serve(listener: TcpListener, router: Arc<ArcSwap<Router>>, end: CancellationToken) {
    let seats = Arc::new(Seats::default());
    while let Some(accepted) = end.run_until_cancelled(listener.accept()).await {
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("a connection to the admin address was not accepted: {error}");
                let _ = end.run_until_cancelled(sleep(PAUSE)).await;
                continue;
            }
        };
        let peer = address.ip().to_canonical();
        let Some(seat) = Seat::take(&seats, peer) else { continue };
        let (router, end) = (router.clone(), end.clone());
        tokio::spawn(async move {
            end.run_until_cancelled(converse(stream, Peer(peer), router)).await;
            drop(seat);
        });
    }
}

async fn converse(stream: TcpStream, peer: Peer, router: Arc<ArcSwap<Router>>) {
    let answer = |request| answer(router.load_full(), peer, request);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service_fn(answer)));
    // Whatever ends a connection, its client knows or is gone.
    if timeout(SERVES_FOR, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(ENDS_WITHIN, connection).await;
    }
}

async fn answer(router: Arc<Router>, peer: Peer, request: Request<Incoming>) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    Router::clone(&router).call(request).await
}

/// How many connections each address has.
#[derive(Default)]
struct Seats(Mutex<HashMap<IpAddr, usize>>);

struct Seat {
    seats: Arc<Seats>,
    network: IpAddr,
}

impl Seat {
    fn take(seats: &Arc<Seats>, peer: IpAddr) -> Option<Seat> {
        let mut taken = seats.0.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(peer);
        let of_one = taken.get(&network).copied().unwrap_or(0);
        if of_one >= CONNECTIONS_OF_ONE_MAX || taken.values().sum::<usize>() >= CONNECTIONS_MAX {
            return None;
        }
        taken.insert(network, of_one + 1);
        Some(Seat { seats: seats.clone(), network })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_not_every_seat_and_leaves_what_it_took() {
        let seats = Arc::new(Seats::default());
        let peer = |n: u8| IpAddr::from([192, 0, 2, n]);
        let take = |n| std::iter::from_fn(|| Seat::take(&seats, peer(n))).collect::<Vec<_>>();

        let greedy = take(1);
        let others: Vec<Seat> = (2..=9).flat_map(take).collect();

        assert_eq!(greedy.len(), CONNECTIONS_OF_ONE_MAX);
        assert_eq!(greedy.len() + others.len(), CONNECTIONS_MAX);
        drop((greedy, others));
        assert!(seats.0.lock().unwrap().is_empty());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_share_their_seats() {
        let seats = Arc::new(Seats::default());
        let peers = (0..=u16::MAX).map(|n| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]));

        let taken: Vec<Seat> = peers.map_while(|peer| Seat::take(&seats, peer)).collect();

        assert_eq!(taken.len(), CONNECTIONS_OF_ONE_MAX);
    }
}
