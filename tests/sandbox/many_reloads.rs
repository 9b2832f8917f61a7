//! Reloads by the hundred; `OUTBOXD_RELOADS=3000` runs so many instead, best alone and in a release build.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outboxd::handler::CallControl;
use outboxd::plugin::{ChildCompiler, Compiler, PluginHost, PluginOptions, SandboxOptions};
use outboxd_core::Outcome;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use crate::folder::{cancels, deliver, large, options_of, start_with};
use crate::guest::build;
use crate::harness::{claim, options};

/// Calls a second while versions are swapped: as many from each caller.
const CALLERS: u64 = 4;
const PACE: Duration = Duration::from_millis(CALLERS);

fn reloads() -> usize {
    let number = std::env::var("OUTBOXD_RELOADS").ok();
    number.map_or(100, |number| number.parse().expect("OUTBOXD_RELOADS is a number"))
}

/// What one caller saw: how long each call took, and the answer of each digest.
#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    answers: BTreeMap<String, String>,
}

/// Calls at a steady pace until told to stop. No call may fail, and no digest answer twice in different words.
async fn call_until(host: Arc<PluginHost>, stop: CancellationToken) -> Seen {
    let mut seen = Seen::default();
    let mut pace = interval(PACE);
    while stop.run_until_cancelled(pace.tick()).await.is_some() {
        let started = Instant::now();
        let handler = host.handlers().route("orders").expect("always routed").handler;
        let handled = handler.handle(&claim("{}"), CallControl { stop: CancellationToken::new() }).await;
        seen.took.push(started.elapsed());
        let Outcome::Cancel { error } = handled.outcome else { panic!("{:?}", handled.outcome) };
        let digest = handled.digest.expect("a digest").to_string();
        let first = seen.answers.entry(digest).or_insert_with(|| error.clone());
        assert_eq!(first, &error, "one digest, two answers");
    }
    seen
}

/// What all callers saw while `work` ran.
async fn beside(host: &Arc<PluginHost>, work: impl Future<Output = ()>) -> Vec<Seen> {
    let stop = CancellationToken::new();
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(call_until(host.clone(), stop.clone()))).collect();
    work.await;
    stop.cancel();
    let mut all = Vec::new();
    for caller in callers {
        all.push(caller.await.expect("every call was answered"));
    }
    all
}

fn p99(seen: &[Seen]) -> Duration {
    let mut took: Vec<Duration> = seen.iter().flat_map(|seen| &seen.took).copied().collect();
    took.sort_unstable();
    took[(took.len() - 1) * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_under_load_fail_no_call_and_mix_no_versions() {
    let swaps = reloads();
    let dir = tempfile::tempdir().unwrap();
    let (file, aside) = (dir.path().join("orders.wasm"), dir.path().join("_new"));
    std::fs::write(&file, build(&cancels("version 0"))).unwrap();
    // Compiled as a relay does it: in another process, of lower priority.
    let compiler = Compiler::Child(ChildCompiler::new(env!("CARGO_BIN_EXE_outboxd").into()));
    let sandbox = SandboxOptions { compiler, ..options() };
    let host = start_with(PluginOptions { sandbox, ..options_of(dir.path()) });
    host.scan_once().await;

    // Made beforehand: whoever makes versions does it elsewhere.
    let versions: Vec<Vec<u8>> = (1..=swaps).map(|number| build(&cancels(&format!("version {number}")))).collect();

    let calm = beside(&host, tokio::time::sleep(Duration::from_secs(2))).await;
    let swapped = async {
        for version in &versions {
            std::fs::write(&aside, version).unwrap();
            std::fs::rename(&aside, &file).unwrap();
            host.scan_once().await;
        }
    };
    let swapping = beside(&host, swapped).await;

    let calls: usize = swapping.iter().map(|seen| seen.took.len()).sum();
    println!("{calls} calls over {swaps} swaps: p99 {:?}, before them {:?}", p99(&swapping), p99(&calm));
    assert!(swapping.iter().all(|seen| seen.answers.len() > swaps / 4), "too few versions were seen");
    let last = Outcome::Cancel { error: format!("version {swaps}") };
    assert_eq!(deliver(&host, "orders").await, Some(last));
}

#[tokio::test]
async fn reloads_leave_memory_as_it_was() {
    let reloads = reloads();
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("orders.wasm");
    let options = PluginOptions {
        dir: dir.path().into(),
        cache_dir: Some(kept.path().into()),
        sandbox: options(),
        ..PluginOptions::default()
    };
    let host = PluginHost::start(options).unwrap();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(kept.path().to_str().unwrap()).count();
    let mut resident = Vec::new();

    for number in 0..reloads {
        std::fs::write(&file, large(&format!("reload {number}"))).unwrap();
        host.scan_once().await;
        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: format!("reload {number}") }));
        resident.push(resident_kib());
    }

    let (early, late) = (resident[reloads / 4], resident[reloads - 1]);
    println!("{reloads} reloads: {early} KiB of memory after a quarter of them, {late} KiB at the end");
    // One component is a handful of mappings; a hundred would be hundreds.
    assert!((1..=12).contains(&mapped()), "{} mappings of compiled code after {reloads} reloads", mapped());
    // Other tests of this process have memory too; a component kept by each of thousands of reloads would show all the same.
    assert!(late < early + (64 << 10) + 16 * reloads, "{early} KiB grew to {late} KiB");
}

/// Memory of this process that no file backs. KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line for memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
