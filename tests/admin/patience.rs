//! Over real connections: who guesses tokens, is slow or takes many connections is shown the door, and the others are served.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use outboxd::admin::{Admin, router, serve};
use outboxd_store::MemoryStore;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::router::admin;

const TOKEN: &str = "s3cret";

/// Serves with a token until it is dropped.
struct Served {
    address: SocketAddr,
    end: CancellationToken,
}

impl Served {
    async fn start() -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let token = Arc::new(ArcSwapOption::from_pointee(SecretString::from(TOKEN)));
        let admin = Admin { address, token, ..admin(Arc::new(MemoryStore::default()), vec![], vec![]) };
        let end = CancellationToken::new();
        tokio::spawn(serve(listener, Arc::new(ArcSwap::from_pointee(router(admin))), end.clone()));
        Served { address, end }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// The status that a request gets.
    async fn status(&self, path: &str, authorization: &str) -> String {
        let mut stream = self.connect().await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{authorization}\r\n", self.address);
        stream.write_all(head.as_bytes()).await.expect("sent");
        status(&rest(&mut stream).await)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// What comes until the connection ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends it as well.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> String {
    answer.split(' ').nth(1).unwrap_or("none").to_owned()
}

#[tokio::test]
async fn who_guesses_tokens_is_refused_for_a_while_even_with_the_right_one() {
    let served = Served::start().await;
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let basic = format!("authorization: Basic {}\r\n", BASE64_STANDARD.encode("anyone:wrong"));
    for _ in 0..20 {
        assert_eq!(served.status("/", "").await, "401", "to be asked for the token is no guess");
    }
    assert_eq!(served.status("/", &bearer(TOKEN)).await, "200");

    for _ in 0..5 {
        assert_eq!(served.status("/", &bearer("wrong")).await, "401");
        assert_eq!(served.status("/api/stats", &basic).await, "401");
    }

    assert_eq!(served.status("/", &bearer("wrong")).await, "429");
    assert_eq!(served.status("/", &bearer(TOKEN)).await, "429", "else the guess that is right would be told apart");
    assert_eq!(served.status("/healthz", "").await, "200");
}

#[tokio::test]
async fn one_address_takes_only_so_many_connections() {
    let served = Served::start().await;
    let mut open = Vec::new();
    for _ in 0..32 {
        let mut stream = served.connect().await;
        // Answered, so it has its seat.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        assert!(stream.read(&mut [0; 1024]).await.expect("answered") > 0);
        open.push(stream);
    }

    assert_eq!(served.status("/healthz", "").await, "none", "the one too many is closed");

    open.pop();
    let mut answered = "none".to_owned();
    for _ in 0..1000 {
        answered = served.status("/healthz", "").await;
        if answered == "200" {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(answered, "200", "a place that was left is free again");
}

// In paused time a limit is over as soon as nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_waited_for_no_longer_than_its_limit() {
    let served = Served::start().await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: ").await.expect("sent");

    assert_eq!(status(&rest(&mut stream).await), "none");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_comes_is_waited_for_no_longer_than_its_limit() {
    let served = Served::start().await;
    let mut stream = served.connect().await;
    let head = format!(
        "POST /api/messages/actions/redrive HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 14\r\n\r\n{{\"all\"",
        served.address
    );
    stream.write_all(head.as_bytes()).await.expect("sent");

    assert_eq!(status(&rest(&mut stream).await), "408");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let served = Served::start().await;
    let mut stream = served.connect().await;
    let head = format!(
        "POST /api/messages/actions/redrive HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\
         connection: close\r\ncontent-length: 300000\r\n\r\n",
        served.address
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(&[b' '; 300_000]).await.expect("sent");

    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("answered");
    assert_eq!(&answer, b"HTTP/1.1 413");
}
