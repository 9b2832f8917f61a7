//! Servers that behave badly, one thread a connection. They end with the test's process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A server on a port of loopback.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server that gives every connection to `behave`, with what it has read as the request.
    pub(crate) fn start(behave: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> Server {
        Server::silent(move |stream, requests| {
            // Keep-alive: as many requests as come.
            while let Some(request) = read_request(stream) {
                requests.lock().unwrap().push(request.clone());
                behave(stream, &request);
            }
        })
    }

    /// The same for one that does not read first.
    pub(crate) fn silent(behave: impl Fn(&mut TcpStream, &Mutex<Vec<String>>) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::new(vec![]));
        let (count, behave, kept) = (connections.clone(), Arc::new(behave), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                count.fetch_add(1, Ordering::SeqCst);
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
                let (behave, kept) = (behave.clone(), kept.clone());
                std::thread::spawn(move || behave(&mut stream, &kept));
            }
        });
        Server { address, connections, requests }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Every request so far, head and body as they came.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A whole answer.
pub(crate) fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
}

/// Head and body of one request, as text; nothing when the connection ends.
pub(crate) fn read_request(stream: &mut impl Read) -> Option<String> {
    let mut bytes = vec![];
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if bytes.len() > 100_000 || stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    if let Some(length) = length {
        let mut body = vec![0; length.min(1 << 20)];
        stream.read_exact(&mut body).ok()?;
        bytes.extend(body);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
