//! A TCP port in front of a Unix socket, and everything that can go wrong between the two.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::sleep;

/// What the proxy does with what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fashion {
    Forward,
    /// Nothing passes, either way; nobody is told. What waited goes on when this ends.
    Blackhole,
    /// Every piece from the server comes so much later.
    Delay(Duration),
    /// What clients send arrives. Of what the server answers so many bytes more come through, a connection, then it is cut
    /// at both ends.
    SwallowReplies {
        after_bytes: u64,
    },
    /// The same, of what clients send.
    SwallowRequests {
        after_bytes: u64,
    },
}

/// Listens on a port of 127.0.0.1, on a thread of its own, until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    target: PathBuf,
    fashion: watch::Sender<Fashion>,
    /// Connections older than this are cut.
    cut: watch::Sender<u64>,
    /// Connections older than this say nothing any more.
    silent: watch::Sender<u64>,
    opened: AtomicU64,
}

/// One connection's view of what is done to it.
#[derive(Clone)]
struct Fate {
    number: u64,
    fashion: watch::Receiver<Fashion>,
    cut: watch::Receiver<u64>,
    silent: watch::Receiver<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// In front of the socket of a PostgreSQL server in that folder.
    pub fn before_postgres(socket_folder: &Path) -> Proxy {
        Proxy::before(socket_folder.join(".s.PGSQL.5432"))
    }

    pub fn before(target: PathBuf) -> Proxy {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port of 127.0.0.1");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target,
            fashion: watch::Sender::new(Fashion::Forward),
            cut: watch::Sender::new(0),
            silent: watch::Sender::new(0),
            opened: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.spawn(accept(listener, shared.clone()));
        Proxy { address, shared, runtime: Some(runtime) }
    }

    /// The URL of a database of the server behind.
    pub fn postgres_url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}?sslmode=disable", self.address)
    }

    /// From now on, for open connections and new ones.
    pub fn behave(&self, fashion: Fashion) {
        self.shared.fashion.send_replace(fashion);
    }

    /// Closes every open connection at both ends.
    pub fn cut(&self) {
        self.shared.cut.send_replace(self.shared.opened.load(Ordering::Relaxed));
    }

    /// Open connections stay open and nothing passes through them ever again, as when a host vanishes. New ones work.
    pub fn half_open(&self) {
        self.shared.silent.send_replace(self.shared.opened.load(Ordering::Relaxed));
    }

    /// How many connections there have been.
    pub fn opened(&self) -> u64 {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    while let Ok((client, _)) = listener.accept().await {
        let fate = Fate {
            number: shared.opened.fetch_add(1, Ordering::Relaxed) + 1,
            fashion: shared.fashion.subscribe(),
            cut: shared.cut.subscribe(),
            silent: shared.silent.subscribe(),
        };
        let target = shared.target.clone();
        tokio::spawn(async move {
            // Nobody behind: the client sees its connection closed, as by a server that is starting.
            if let Ok(server) = UnixStream::connect(target).await {
                join(client, server, fate).await;
            }
        });
    }
}

/// Passes on what comes until either end closes, or it is cut.
async fn join(mut client: TcpStream, mut server: UnixStream, mut fate: Fate) {
    let _ = client.set_nodelay(true);
    let number = fate.number;
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = pass(from_client, to_server, fate.clone(), Direction::ToServer) => {}
            () = pass(from_server, to_client, fate.clone(), Direction::ToClient) => {}
            _ = fate.cut.wait_for(|older| number <= *older) => {}
        }
    }
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut fate: Fate, direction: Direction) {
    let mut buffer = vec![0; 16 << 10];
    let mut passed_in_fashion = 0;
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let Some(fashion) = fate.when_passable().await else { break };
        let mut allowed = count;
        match (fashion, direction) {
            (Fashion::Delay(delay), Direction::ToClient) => sleep(delay).await,
            (Fashion::SwallowReplies { after_bytes }, Direction::ToClient)
            | (Fashion::SwallowRequests { after_bytes }, Direction::ToServer) => {
                let left = usize::try_from(after_bytes.saturating_sub(passed_in_fashion)).unwrap_or(usize::MAX);
                allowed = count.min(left);
                passed_in_fashion += allowed as u64;
            }
            _ => passed_in_fashion = 0,
        }
        if to.write_all(&buffer[..allowed]).await.is_err() || allowed < count {
            break;
        }
    }
    // A half-open connection does not even say that it ends.
    if *fate.silent.borrow() >= fate.number {
        std::future::pending::<()>().await;
    }
}

impl Fate {
    /// Waits out a black hole; never comes back for a connection gone silent. Nothing when the proxy is gone.
    async fn when_passable(&mut self) -> Option<Fashion> {
        loop {
            if *self.silent.borrow_and_update() >= self.number {
                self.silent.changed().await.ok()?;
                continue;
            }
            let fashion = *self.fashion.borrow_and_update();
            if fashion != Fashion::Blackhole {
                return Some(fashion);
            }
            tokio::select! {
                changed = self.fashion.changed() => changed.ok()?,
                changed = self.silent.changed() => changed.ok()?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixListener;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    /// A server that sends back what it gets.
    fn echo() -> (tempfile::TempDir, Proxy) {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut reader, &mut { stream });
                });
            }
        });
        let proxy = Proxy::before(folder.path().join("socket"));
        (folder, proxy)
    }

    fn client(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address).unwrap();
        stream.set_read_timeout(Some(SHORT)).unwrap();
        stream
    }

    /// What comes back for `text`: nothing in time, or the bytes until the connection was closed or all had come.
    fn say(stream: &mut TcpStream, text: &str) -> Option<String> {
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = vec![0; text.len()];
        let mut got = 0;
        while got < answer.len() {
            match stream.read(&mut answer[got..]) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(_) => return None,
            }
        }
        Some(String::from_utf8(answer[..got].to_vec()).unwrap())
    }

    #[test]
    fn what_comes_is_passed_on() {
        let (_folder, proxy) = echo();

        assert_eq!(say(&mut client(&proxy), "hello").as_deref(), Some("hello"));
    }

    #[test]
    fn a_cut_closes_open_connections_and_new_ones_work() {
        let (_folder, proxy) = echo();
        let mut open = client(&proxy);
        say(&mut open, "open");

        proxy.cut();

        assert_eq!(open.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(say(&mut client(&proxy), "new").as_deref(), Some("new"));
    }

    #[test]
    fn a_black_hole_keeps_what_came_until_it_ends() {
        let (_folder, proxy) = echo();
        let mut open = client(&proxy);
        say(&mut open, "open");

        proxy.behave(Fashion::Blackhole);
        let meanwhile = say(&mut open, "late");
        proxy.behave(Fashion::Forward);
        let mut late = [0; 4];
        open.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        open.read_exact(&mut late).unwrap();

        assert_eq!((meanwhile, &late), (None, b"late"));
    }

    #[test]
    fn a_half_open_connection_stays_silent_and_new_ones_work() {
        let (_folder, proxy) = echo();
        let mut open = client(&proxy);
        say(&mut open, "open");

        proxy.half_open();

        assert_eq!(say(&mut open, "anyone?"), None);
        assert_eq!(say(&mut client(&proxy), "new").as_deref(), Some("new"));
    }

    #[test]
    fn a_delayed_answer_comes_late() {
        let (_folder, proxy) = echo();
        proxy.behave(Fashion::Delay(SHORT / 2));
        let mut open = client(&proxy);
        let asked = Instant::now();

        assert_eq!(say(&mut open, "slow").as_deref(), Some("slow"));
        assert!(asked.elapsed() >= SHORT / 2);
    }

    #[test]
    fn a_reply_is_swallowed_after_so_many_bytes_and_the_connection_cut() {
        let (_folder, proxy) = echo();
        proxy.behave(Fashion::SwallowReplies { after_bytes: 3 });

        assert_eq!(say(&mut client(&proxy), "hello").as_deref(), Some("hel"));
    }

    #[test]
    fn a_request_is_swallowed_after_so_many_bytes_and_the_connection_cut() {
        let (_folder, proxy) = echo();
        proxy.behave(Fashion::SwallowRequests { after_bytes: 3 });

        let answered = say(&mut client(&proxy), "hello").unwrap_or_default();

        assert!("hel".starts_with(&answered), "{answered:?}");
    }
}
