use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboxd::handler::CallControl;
use outboxd::plugin::{PluginHost, PluginOptions};
use outboxd_core::{Outcome, RetryPolicy};
use tokio_util::sync::CancellationToken;

use crate::guest::build;
use crate::harness::{cache, ceiling, claim, error, options, word};

/// At least so many ways to misbehave: an entry that is lost is a test that is lost.
const GUESTS_MIN: usize = 60;
/// No guest may hold its slot longer. Hardly any does for a second; the rest is for a machine that is busy with other tests.
const LONGEST: Duration = Duration::from_secs(16);

/// One text of `tests/guests/wat`, with what it must come to.
struct Case {
    name: String,
    text: String,
    expect: String,
    says: Option<String>,
    longest: usize,
    manifest: String,
}

fn corpus() -> Vec<Case> {
    let dir = outboxd_test_support::repository().join("tests/guests/wat");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| read(&file)).collect()
}

fn read(file: &std::path::Path) -> Case {
    let text = std::fs::read_to_string(file).unwrap();
    let name = file.file_stem().unwrap().to_str().unwrap().to_string();
    let notes = |key: &str| -> Vec<String> {
        let prefix = format!(";; {key}: ");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_string).collect()
    };
    let one = |key: &str| notes(key).pop();
    assert!(one("why").is_some(), "{name} does not say why it is there");
    Case {
        expect: one("expect").unwrap_or_else(|| panic!("{name} expects nothing")),
        says: one("says"),
        longest: one("longest").map_or(8192, |text| text.parse().unwrap()),
        // Generous for a loaded machine, and short enough for a corpus.
        manifest: match notes("manifest") {
            lines if lines.is_empty() => "[limits]\ncpu = \"300ms\"\ndeadline = \"15s\"\n".into(),
            lines => lines.join("\n"),
        },
        name,
        text,
    }
}

async fn host_of(cases: &[Case]) -> (tempfile::TempDir, Arc<PluginHost>) {
    let dir = tempfile::tempdir().unwrap();
    for case in cases {
        std::fs::write(dir.path().join(format!("{}.wasm", case.name)), build(&case.text)).unwrap();
        std::fs::write(dir.path().join(format!("{}.toml", case.name)), &case.manifest).unwrap();
    }
    std::fs::write(dir.path().join("good.wasm"), build("(func $main (result i32) (call $ok))")).unwrap();
    let host = PluginHost::start(PluginOptions {
        dir: dir.path().into(),
        cache_dir: Some(cache().into()),
        ceiling: ceiling(),
        default_policy: RetryPolicy::default(),
        sandbox: options(),
        ..PluginOptions::default()
    })
    .unwrap();
    host.scan_once().await;
    (dir, host)
}

async fn deliver(host: &PluginHost, topic: &str) -> Option<Outcome> {
    let route = host.handlers().route(topic)?;
    Some(route.handler.handle(&claim("{}"), CallControl { stop: CancellationToken::new() }).await.outcome)
}

/// What is wrong with how a case ended, if anything is.
fn complaint(case: &Case, refusals: &BTreeMap<String, String>, outcome: Option<&Outcome>) -> Option<String> {
    let (came_to, said) = match (outcome, refusals.get(&case.name)) {
        (Some(outcome), _) => (word(outcome), error(outcome).to_string()),
        (None, Some(why)) => ("refused", why.clone()),
        (None, None) => ("nothing at all", String::new()),
    };
    if came_to != case.expect {
        return Some(format!("{}: expected {}, came to {came_to}: {said}", case.name, case.expect));
    }
    if let Some(words) = case.says.as_ref().filter(|words| !said.contains(*words)) {
        return Some(format!("{}: {words:?} is not in {said:?}", case.name));
    }
    (said.len() > case.longest).then(|| format!("{}: {} bytes of error", case.name, said.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hostile_guest_ends_as_expected_and_the_next_message_is_fine() {
    let cases = corpus();
    assert!(cases.len() >= GUESTS_MIN, "only {} guests", cases.len());
    let (_dir, host) = host_of(&cases).await;
    let refusals: BTreeMap<String, String> =
        host.list().into_iter().filter_map(|info| Some((info.name, info.error?))).collect();
    let mut complaints = vec![];

    for case in &cases {
        let started = Instant::now();
        let outcome = deliver(&host, &case.name).await;
        let took = started.elapsed();

        complaints.extend(complaint(case, &refusals, outcome.as_ref()));
        if took > LONGEST {
            complaints.push(format!("{}: took {took:?}", case.name));
        }
        assert_eq!(deliver(&host, "good").await, Some(Outcome::Success), "after {}", case.name);
    }

    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Resident memory of this process. Bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Base + slots × (a call's memory + 4 MiB) + 64 MiB is what `docs/sandbox.md` promises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_hostile_guests_at_once_stay_within_the_memory_that_is_promised() {
    const SLOTS: u64 = 8;
    const LIMIT: u64 = 64 << 20;
    let cases = Arc::new(corpus());
    let (_dir, host) = host_of(&cases).await;
    let base = resident();
    let slots = Arc::new(tokio::sync::Semaphore::new(SLOTS as usize));
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..cases.len() * 2 {
        let (host, slots, cases) = (host.clone(), slots.clone(), cases.clone());
        calls.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            let case = &cases[n / 2];
            (n / 2, deliver(&host, &case.name).await)
        });
    }
    let mut peak = 0;
    let mut complaints = vec![];
    while let Some(done) = calls.join_next().await {
        peak = peak.max(resident());
        let (n, outcome) = done.unwrap();
        if let Some(outcome) = outcome.filter(|outcome| word(outcome) == "overload" || word(outcome) == "panic") {
            complaints.push(format!("{}: {}", cases[n].name, error(&outcome)));
        }
    }

    println!("resident: {} MiB before, {} MiB at most", base >> 20, peak >> 20);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(peak <= base + SLOTS * (LIMIT + (4 << 20)) + (64 << 20), "{peak} after {base}");
    assert_eq!(deliver(&host, "good").await, Some(Outcome::Success));
}
