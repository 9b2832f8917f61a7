use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outboxd::plugin::egress::{Resolve, TcpPeer};
use outboxd::plugin::{Ceiling, Content, Manifest, OnePlugin, SandboxOptions};
use outboxd_core::{RetryPolicy, Target};
use outboxd_test_support::{guests, wait_for};
use serde_json::{Value, json};

use crate::egress::Names;
use crate::harness::{cache, call, ceiling, error, options, word};
use crate::ssrf::HOSTS;

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers whatever comes over a connection with `pong`, each time.
struct Peer {
    address: SocketAddr,
    visitors: Arc<AtomicUsize>,
    gone: Arc<AtomicUsize>,
}

impl Peer {
    fn start() -> Peer {
        Peer::answering(b"pong")
    }

    fn answering(answer: &'static [u8]) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer { address: listener.local_addr().unwrap(), visitors: Arc::default(), gone: Arc::default() };
        let (visitors, gone) = (peer.visitors.clone(), peer.gone.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                visitors.fetch_add(1, Ordering::SeqCst);
                let gone = gone.clone();
                std::thread::spawn(move || {
                    serve(connection.unwrap(), answer);
                    gone.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        peer
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    fn visitors(&self) -> usize {
        self.visitors.load(Ordering::SeqCst)
    }
}

fn serve(mut connection: TcpStream, answer: &[u8]) {
    let mut bytes = [0; 4096];
    while connection.read(&mut bytes).is_ok_and(|read| read > 0) && connection.write_all(answer).is_ok() {}
}

/// The guest `verbs` under a manifest, where the operator allows these peers.
pub(crate) async fn load(options: SandboxOptions, peers: &[String], manifest: &str) -> OnePlugin {
    let tcp = peers.iter().map(|peer| TcpPeer::parse(peer).unwrap()).collect();
    let ceiling = Ceiling { tcp, ..ceiling() };
    let parsed = Manifest::parse("verbs.toml", manifest, "verbs", &ceiling, &RetryPolicy::default());
    let parsed = parsed.unwrap_or_else(|errors| panic!("{errors:?}"));
    let component = std::fs::read(guests::guest("verbs")).unwrap();
    let content = Content::new(component.into(), Some(manifest.into()));
    OnePlugin::load(options, Some(cache()), "verbs", content, parsed).await.unwrap()
}

/// The same, with one peer granted and more in its manifest.
async fn granted(peer: &str, more: &str) -> OnePlugin {
    load(options(), &[peer.into()], &format!("{more}\n[grants]\ntcp = [\"{peer}\"]")).await
}

/// What the guest answers to an order.
async fn told(plugin: &OnePlugin, order: Value) -> String {
    let handled = call(plugin, &order.to_string()).await;
    assert_eq!(word(&handled.outcome), "cancelled", "{:?}", handled.outcome);
    error(&handled.outcome).to_owned()
}

fn ping(address: impl ToString) -> Value {
    json!({ "do": "tcp", "address": address.to_string(), "send": "ping", "read": 4 })
}

#[tokio::test]
async fn a_granted_address_is_reached_and_no_other() {
    let (peer, other) = (Peer::start(), Peer::start());
    let plugin = granted(&peer.address.to_string(), "").await;

    assert_eq!(told(&plugin, ping(peer.address)).await, "read pong");
    for elsewhere in [other.address.to_string(), format!("127.0.0.2:{}", peer.port()), format!("[::1]:{}", peer.port())]
    {
        let said = told(&plugin, ping(&elsewhere)).await;
        assert!(said.starts_with("0 times, then Permission denied"), "{elsewhere}: {said}");
    }
    assert_eq!((peer.visitors(), other.visitors()), (1, 0));
}

#[tokio::test]
async fn without_a_grant_there_is_no_socket_and_the_reason_is_told() {
    let peer = Peer::start();
    let plugin = load(options(), &[peer.address.to_string()], "").await;

    let handled = call(&plugin, &ping(peer.address).to_string()).await;

    let said = error(&handled.outcome);
    assert!(said.starts_with("0 times, then Permission denied") && said.contains("no TCP is granted"), "{said}");
    assert_eq!(peer.visitors(), 0);
}

fn with_names(names: &Arc<Names>) -> SandboxOptions {
    SandboxOptions { resolver: names.clone(), ..options() }
}

#[tokio::test]
async fn a_granted_name_is_looked_up_and_every_address_of_it_is_checked() {
    let peer = Peer::start();
    let name = format!("redis.test:{}", peer.port());
    let networks = "private_networks = [\"127.0.0.0/8\"]";
    for (addresses, networks, reached) in [
        (&["127.0.0.1"][..], networks, true),
        (&["127.0.0.1"], "", false),
        (&["127.0.0.1", "10.0.0.1"], networks, false),
        (&["10.0.0.1", "127.0.0.1"], networks, false),
        (&["::ffff:169.254.169.254", "127.0.0.1"], networks, false),
    ] {
        let names = Arc::new(Names::default());
        names.set("redis.test", &[addresses]);
        let manifest = format!("[grants]\ntcp = [\"{name}\"]\n{networks}");
        let plugin = load(with_names(&names), std::slice::from_ref(&name), &manifest).await;
        let before = peer.visitors();

        let said = told(&plugin, ping(&name)).await;

        assert_eq!(said == "read pong", reached, "{addresses:?}: {said}");
        assert_eq!(peer.visitors() - before, usize::from(reached), "{addresses:?}");
    }
}

#[tokio::test]
async fn a_name_that_changes_its_mind_is_not_followed() {
    let peer = Peer::start();
    let name = format!("redis.test:{}", peer.port());
    let names = Arc::new(Names::default());
    names.set("redis.test", &[&["203.0.114.9"], &["127.0.0.1"]]);
    let manifest = format!("[limits]\ndeadline = \"1s\"\n[grants]\ntcp = [\"{name}\"]");
    let plugin = load(with_names(&names), std::slice::from_ref(&name), &manifest).await;

    for _ in 0..2 {
        call(&plugin, &ping(&name).to_string()).await;
    }

    // The address alone was never granted either.
    let said = told(&plugin, ping(peer.address)).await;
    assert!(said.starts_with("0 times, then Permission denied"), "{said}");
    assert_eq!(peer.visitors(), 0);
}

#[tokio::test]
async fn no_other_name_is_asked_for_however_it_is_written() {
    let peer = Peer::start();
    let name = format!("redis.test:{}", peer.port());
    let names = Arc::new(Names::default());
    names.set("redis.test", &[&["127.0.0.1"]]);
    let manifest = format!("[grants]\nprivate_networks = [\"127.0.0.0/8\"]\ntcp = [\"{name}\"]");
    let plugin = load(with_names(&names), std::slice::from_ref(&name), &manifest).await;
    let odd = "secret.elsewhere.test redis.test. .redis.test redis..test xredis.test redis.testx redis%2etest redis.test%00 \
        redis.test@elsewhere.test elsewhere.test@redis.test redis.test#x";

    for host in HOSTS.split_whitespace().chain(odd.split_whitespace()) {
        let said = told(&plugin, ping(format!("{host}:{}", peer.port()))).await;
        assert!(said.starts_with("0 times, then "), "{host}: {said}");
    }

    assert_eq!((names.lookups.load(Ordering::SeqCst), peer.visitors()), (0, 0));
}

#[tokio::test]
async fn the_relays_own_listeners_and_the_database_are_refused_however_they_are_granted() {
    let peer = Peer::start();
    let names = Arc::new(Names::default());
    names.set("redis.test", &[&["127.0.0.1"]]);
    let granted = [peer.address.to_string(), format!("redis.test:{}", peer.port())];
    let manifest = format!("[grants]\nprivate_networks = [\"127.0.0.0/8\"]\ntcp = {granted:?}");
    let options = SandboxOptions { refused_addresses: vec![peer.address], ..with_names(&names) };
    let plugin = load(options, &granted, &manifest).await;

    for address in &granted {
        let said = told(&plugin, ping(address)).await;
        assert!(said.starts_with("0 times, then "), "{said}");
    }

    assert_eq!(peer.visitors(), 0);
}

#[tokio::test]
async fn connections_and_bytes_are_limited_as_requests_are() {
    let peer = Peer::start();
    let limits = "[limits]\nrequests = 3\nupload = \"64KiB\"\ndownload = \"8B\"";
    let plugin = granted(&peer.address.to_string(), limits).await;
    let order = |times: u32, send: u32, read: u32| json!({ "do": "tcp", "address": peer.address.to_string(), "times": times, "send": send, "read": read });

    assert_eq!(told(&plugin, order(3, 1, 0)).await, "read   ");
    assert!(told(&plugin, order(4, 1, 0)).await.starts_with("3 times, then Permission denied"));
    assert_eq!(told(&plugin, order(2, 1, 4)).await, "read pong pong");
    assert!(told(&plugin, order(3, 1, 4)).await.starts_with("2 times, then "));
    assert_eq!(told(&plugin, order(1, 65536, 0)).await, "read ");
    assert!(told(&plugin, order(1, 65537, 0)).await.starts_with("0 times, then "));
}

#[tokio::test]
async fn a_peer_has_failed_when_none_of_its_addresses_accepts_a_connection() {
    let peer = Peer::start();
    let name = format!("redis.test:{}", peer.port());
    let manifest = format!("[grants]\ntcp = [\"{name}\"]\nprivate_networks = [\"127.0.0.0/8\"]");
    for (addresses, target) in [(&["127.0.0.2"][..], Target::Failed), (&["127.0.0.2", "127.0.0.1"], Target::Unseen)] {
        let names = Arc::new(Names::default());
        names.set("redis.test", &[addresses]);
        let plugin = load(with_names(&names), std::slice::from_ref(&name), &manifest).await;

        let handled = call(&plugin, &ping(&name).to_string()).await;

        assert_eq!(handled.target, target, "{handled:?}");
    }
    assert_eq!(peer.visitors(), 1);
}

#[tokio::test]
async fn a_connection_makes_up_for_a_name_that_is_not_there() {
    let peer = Peer::start();
    let (gone, name) = (format!("gone.test:{}", peer.port()), format!("redis.test:{}", peer.port()));
    let granted = [gone.clone(), name.clone()];
    let names = Arc::new(Names::default());
    names.set("redis.test", &[&["127.0.0.1"]]);
    let manifest = format!("[grants]\ntcp = {granted:?}\nprivate_networks = [\"127.0.0.0/8\"]");
    let plugin = load(with_names(&names), &granted, &manifest).await;

    for (or, target) in [(&gone, Target::Failed), (&name, Target::Unseen)] {
        let handled = call(&plugin, &json!({ "do": "tcp", "address": gone, "or": or }).to_string()).await;

        assert_eq!(handled.target, target, "{handled:?}");
    }
    assert_eq!(names.lookups.load(Ordering::SeqCst), 4);
}

/// A port that no more connections come about with, and nothing refuses: nobody accepts those that are there.
fn full_port() -> (SocketAddr, impl Sized) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = vec![];
    while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        waiting.push(connection);
        assert!(waiting.len() < 100, "{address} takes every connection");
    }
    (address, (listener, waiting))
}

#[tokio::test]
async fn a_peer_that_does_not_answer_a_connection_by_the_deadline_has_failed() {
    let (address, _full) = full_port();
    let plugin = granted(&address.to_string(), "[limits]\ndeadline = \"500ms\"").await;

    let handled = call(&plugin, &ping(address).to_string()).await;

    assert_eq!((word(&handled.outcome), handled.target), ("deadline", Target::Failed), "{handled:?}");
}

/// A resolver that answers nobody.
struct Silent;

impl Resolve for Silent {
    fn resolve<'a>(
        &'a self,
        _name: &'a str,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_name_whose_look_up_lasts_until_the_deadline_has_failed() {
    let options = SandboxOptions { resolver: Arc::new(Silent), ..options() };
    let manifest = "[limits]\ndeadline = \"500ms\"\n[grants]\ntcp = [\"redis.test:6379\"]";
    let plugin = load(options, &["redis.test:6379".into()], manifest).await;

    let handled = call(&plugin, &ping("redis.test:6379").to_string()).await;

    assert_eq!((word(&handled.outcome), handled.target), ("deadline", Target::Failed), "{handled:?}");
}

#[tokio::test]
async fn each_look_up_is_paid_for() {
    let names = Arc::new(Names::default());
    names.set("redis.test", &[&["203.0.114.9"]]);
    let manifest = "[limits]\nrequests = 2\n[grants]\ntcp = [\"redis.test:6379\"]";
    let plugin = load(with_names(&names), &["redis.test:6379".into()], manifest).await;

    let said = told(&plugin, json!({ "do": "look-up", "address": "redis.test:6379", "times": 3 })).await;

    assert!(said.starts_with("2 times, then "), "{said}");
    assert_eq!(names.lookups.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_instance_holds_no_more_than_sixteen_sockets() {
    let peer = Peer::start();
    let plugin = granted(&peer.address.to_string(), "[limits]\nrequests = 100").await;
    let order = |times: u32| json!({ "do": "tcp", "address": peer.address.to_string(), "times": times });

    assert!(told(&plugin, order(16)).await.starts_with("read "));
    assert!(told(&plugin, order(17)).await.starts_with("16 times, then "));
}

#[tokio::test]
async fn a_silent_peer_costs_no_more_than_the_deadline_and_loses_the_connection() {
    let peer = Peer::answering(b"");
    let plugin = granted(&peer.address.to_string(), "[limits]\ndeadline = \"300ms\"").await;
    let started = Instant::now();

    let handled = call(&plugin, &ping(peer.address).to_string()).await;

    assert_eq!(word(&handled.outcome), "deadline");
    assert!(started.elapsed() < PATIENCE);
    assert!(wait_for(PATIENCE, || peer.gone.load(Ordering::SeqCst) == 1), "the connection is still open");
}

#[tokio::test]
async fn nothing_listens() {
    let peer = Peer::start();
    let plugin = granted(&peer.address.to_string(), "").await;

    for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0", "0.0.0.0:8080"] {
        let said = told(&plugin, json!({ "do": "listen", "address": address })).await;
        assert!(said.starts_with("refused: "), "{address}: {said}");
    }
}

#[tokio::test]
async fn a_reused_instance_keeps_its_connection_and_each_message_pays_for_its_own_bytes() {
    let peer = Peer::start();
    let limits = "[instances]\nreuse = 100\n[limits]\nrequests = 1\ndownload = \"4B\"";
    let plugin = granted(&peer.address.to_string(), limits).await;
    let order =
        |read: u32| json!({ "do": "tcp-kept", "address": peer.address.to_string(), "send": "ping", "read": read });

    for _ in 0..5 {
        assert_eq!(told(&plugin, order(4)).await, "read pong");
    }
    let said = told(&plugin, order(5)).await;

    assert!(said.starts_with("failed: "), "{said}");
    assert_eq!(peer.visitors(), 1);
}
