use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outboxd::plugin::SandboxOptions;
use outboxd_test_support::{guests, skip};
use serde_json::json;

use crate::egress::Names;
use crate::guest::gets_its_payload;
use crate::harness::{call, error, load_with, options, word};
use crate::tcp;

/// Tells the copy of this test that runs inside the namespace.
const INSIDE: &str = "OUTBOXD_TEST_IN_NAMESPACE";
/// So many ways to write or to resolve to an address that is not public.
const FORMS_MIN: usize = 150;
const PORTS: [u16; 5] = [80, 443, 5432, 8787, 9000];

/// Addresses that stand for something inside: this machine, its networks, a cloud's metadata, in every clothing.
const ADDRESSES: &str = "127.0.0.1 127.0.0.2 127.1.1.1 0.0.0.0 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.254 192.168.0.1 \
    192.168.255.254 169.254.169.254 169.254.170.2 169.254.0.1 100.64.0.1 100.100.100.200 100.127.255.254 192.0.0.1 192.0.0.192 192.0.2.1 \
    198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 \
    ::1 :: ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0.0.0.0 ::127.0.0.1 ::10.0.0.1 ::ffff:0:127.0.0.1 \
    64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::1 2002:7f00:1:: 2002:a00:1:: 2002:a9fe:a9fe:: \
    2001:0:7f00:1:: 2001:0:808:808:0:0:80ff:fffe 2001:db8::1 fe80::1 fe80::a9fe:a9fe fec0::1 fc00::1 fd00::1 fd00:ec2::254 ff02::1 \
    ff05::1 100::1 2001:2::1 2606:4700::5efe:127.0.0.1";

/// Hosts as a guest may write them: numbers, parts, bases, encodings, tricks.
pub(crate) const HOSTS: &str = "localhost LOCALHOST localhost. localhost.localdomain ip6-localhost 127.1 127.0.1 0 00 0x0 0x7f.1 0x7f.0.0.1 0x7f000001 \
    2130706433 017700000001 0177.0.0.1 0177.0.0.01 127.000.000.001 127.0.0.1. 127.0.0.01 0x7F.0x0.0x0.0x1 2852039166 0xa9fea9fe \
    0251.0376.0251.0376 169.254.43518 0xA9.0xFE.0xA9.0xFE 10.1 167772161 0xa000001 012.0.0.1 192.168.1 3232235521 0xc0a80001 \
    0300.0250.0.1 [::1] [::] [0:0:0:0:0:0:0:1] [::0001] [::ffff:127.0.0.1] [::ffff:7f00:1] [::FFFF:127.0.0.1] [0:0:0:0:0:ffff:7f00:0001] \
    [::ffff:a9fe:a9fe] [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::a9fe:a9fe] [2002:7f00:1::] [fe80::1%25lo] [fe80::1%lo] [fd00:ec2::254] \
    [::1]. [::1%25] [::ffff:0x7f.0.0.1] a@127.0.0.1 127.0.0.1@a a:b@127.0.0.1 a@b@127.0.0.1 @127.0.0.1 127.0.0.1%00 127.0.0.1%2f \
    127%2e0%2e0%2e1 %31%32%37.0.0.1 %6cocalhost 127.0.0.1\\ \\127.0.0.1 127.0.0.1;a 127.0.0.1,a １２７.0.0.1 127。0。0。1 ⑫⑦.0.0.1 \
    127.0.0.1#@a 127.0.0.1?@a";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_form_of_an_inner_address_sends_a_single_packet() {
    if std::env::var_os(INSIDE).is_some() {
        return inside().await;
    }
    // In the namespace there is no network to build it with.
    guests::guest("verbs");
    let me = std::env::current_exe().unwrap();
    let ips = "for ip in 10.0.0.1/8 172.16.0.1/12 192.168.0.1/16 169.254.169.254/16 100.64.0.1/10 198.18.0.1/15 fd00:ec2::254/64 \
        2001:db8::1/64 64:ff9b::7f00:1/96 2002:7f00:1::1/48; do ip addr add $ip dev lo; done";
    let script = format!(
        "ip link set lo up && {ips}; exec \"$0\" --exact ssrf::no_form_of_an_inner_address_sends_a_single_packet --nocapture"
    );
    let run = Command::new("unshare").args(["-n", "sh", "-c", &script]).arg(me).env(INSIDE, "1").output();
    let output = match run {
        Ok(output) => output,
        Err(error) => return skip(&format!("no network namespace to be had: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if said.contains("Operation not permitted") && !said.contains("test result") {
        return skip("no right to make a network namespace");
    }
    assert!(output.status.success(), "{said}");
}

/// Listeners on every address of the namespace that count who comes.
fn canaries() -> Arc<AtomicUsize> {
    let visitors = Arc::new(AtomicUsize::new(0));
    for port in PORTS {
        // One socket takes both families.
        let listener = TcpListener::bind(SocketAddr::new("::".parse::<IpAddr>().unwrap(), port)).unwrap();
        let visitors = visitors.clone();
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                visitors.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    visitors
}

/// Packets that loopback, the only interface in here, has carried.
fn packets() -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:")).expect("loopback");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn inside() {
    let visitors = canaries();
    let names = Arc::new(Names::default());
    for name in ["localhost", "localhost.", "localhost.localdomain", "ip6-localhost"] {
        names.set(name, &[&["127.0.0.1"]]);
    }
    let addresses: Vec<&str> = ADDRESSES.split_whitespace().collect();
    for (n, address) in addresses.iter().enumerate() {
        names.set(&format!("alone{n}.example.com"), &[&[address]]);
        names.set(&format!("second{n}.example.com"), &[&["203.0.114.9", address]]);
        names.set(&format!("first{n}.example.com"), &[&[address, "203.0.114.9"]]);
    }
    let options = SandboxOptions { resolver: names.clone(), ..options() };
    // As much as a manifest can grant without a private network.
    let manifest = "[limits]\ndeadline = \"2s\"\n[grants]\nhosts = [\"http://*:*\", \"https://*:*\"]";
    let plugin = load_with(options.clone(), &gets_its_payload(), manifest).await.unwrap();
    let places = (0..addresses.len()).flat_map(|n| ["alone", "second", "first"].map(|place| format!("{place}{n}")));
    let peers: Vec<String> = places.map(|place| format!("{place}.example.com:80")).collect();
    let raw = tcp::load(options, &peers, &format!("[grants]\ntcp = {peers:?}")).await;
    let before = packets();

    let mut forms = BTreeSet::new();
    for (at, port) in PORTS.iter().enumerate() {
        for host in HOSTS.split_whitespace() {
            forms.insert(if at == 0 { format!("http://{host}/") } else { format!("http://{host}:{port}/") });
        }
        for address in &addresses {
            let host = if address.contains(':') { format!("[{address}]") } else { (*address).to_string() };
            forms.insert(format!("http://{host}:{port}/"));
        }
        for n in 0..addresses.len() {
            for place in ["alone", "second", "first"] {
                forms.insert(format!("http://{place}{n}.example.com:{port}/"));
            }
        }
    }
    let distinct = HOSTS.split_whitespace().count() + addresses.len() * 4;
    assert!(distinct >= FORMS_MIN, "only {distinct} forms");
    let mut complaints = vec![];
    for url in &forms {
        let handled = call(&plugin, url).await;
        let (came_to, said) = (word(&handled.outcome), error(&handled.outcome));
        if came_to != "retry" || !(said.starts_with("0 [denied") || said.starts_with("6 ")) {
            complaints.push(format!("{url}: {came_to} {said}"));
        }
    }
    for peer in &peers {
        let handled = call(&raw, &json!({ "do": "tcp", "address": peer }).to_string()).await;
        let (came_to, said) = (word(&handled.outcome), error(&handled.outcome));
        if came_to != "cancelled" || !said.starts_with("0 times, then ") || !said.contains("not a public address") {
            complaints.push(format!("TCP to {peer}: {came_to} {said}"));
        }
    }

    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), forms.len(), complaints.join("\n"));
    assert_eq!(packets() - before, 0, "packets on the wire");
    assert_eq!(visitors.load(Ordering::SeqCst), 0, "visitors at the canaries");
    // The canaries do sing, and packets are counted.
    TcpStream::connect((Ipv4Addr::new(10, 0, 0, 1), 80)).unwrap();
    TcpStream::connect("[fd00:ec2::254]:8787").unwrap();
    for _ in 0..100 {
        if visitors.load(Ordering::SeqCst) == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(visitors.load(Ordering::SeqCst), 2);
    assert!(packets() > before);
    println!("{} forms and {} peers, 0 packets", forms.len(), peers.len());
}
