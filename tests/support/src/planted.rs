//! Tests of the tests: bugs that stand in the code on purpose (see `outboxd_core::planted!`), and the suite that must find each.
//!
//! A suite runs itself again for each of its bugs, in a process of its own. The run passes only if that process fails, by the
//! invariant named here, within its time, and if the same tests pass without a bug. A bug that is found by luck gets a better
//! generator, not more time.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One planted bug, for one suite: some must be found by two.
pub struct Bug {
    pub number: u32,
    pub what: &'static str,
    /// Where it stands.
    pub place: &'static str,
    pub suite: Suite,
    /// The filter of the suite's tests that must find it.
    pub tests: &'static str,
    /// What the failing run says, all of it: an invariant, or how the names of failed tests begin. `a|b` is one of the two,
    /// where it depends on the seed which invariant breaks first.
    pub breaks: &'static [&'static str],
    pub within: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// `tests/sim`: the relay, and the same mistakes in the memory store.
    Simulation,
    /// `tests/store`: the statements.
    Store,
    /// `tests/sandbox`: plugins and what leaves them.
    Sandbox,
    /// Unit tests beside the code.
    Unit,
}

const STORM: &str = "under_faults_every_message_ends";
const CALM: &str = "without_faults_every_message_ends";
const POISON: &str = "a_poison_that_kills_its_relay";
const STATEMENT: &str = "store: the statements, and memory";

const fn simulated(
    number: u32,
    what: &'static str,
    place: &'static str,
    tests: &'static str,
    breaks: &'static [&'static str],
) -> Bug {
    Bug { number, what, place, suite: Suite::Simulation, tests, breaks, within: Duration::from_secs(120) }
}

const fn stored(number: u32, what: &'static str, tests: &'static str, breaks: &'static [&'static str]) -> Bug {
    Bug { number, what, place: STATEMENT, suite: Suite::Store, tests, breaks, within: Duration::from_secs(60) }
}

const fn sandboxed(
    number: u32,
    what: &'static str,
    place: &'static str,
    tests: &'static str,
    breaks: &'static [&'static str],
) -> Bug {
    Bug { number, what, place, suite: Suite::Sandbox, tests, breaks, within: Duration::from_secs(60) }
}

/// Up to this number bugs are looked for in every run.
const FAST_MAX: u32 = 12;

/// Without a bug, the tests that must find one pass in this time, on a busy machine too.
const SOUND_WITHIN: Duration = Duration::from_secs(120);

#[rustfmt::skip]
pub const BUGS: &[Bug] = &[
    // The fast twelve.
    simulated(1, "settle without a fence", "store: memory", STORM, &["a settle without its lease changed something"]),
    stored(1, "settle without a fence", "a_lost_lease_changes_nothing", &["settle::memory::a_lost_lease_changes_nothing", "settle::sqlite::a_lost_lease_changes_nothing", "settle::postgres::a_lost_lease_changes_nothing"]),
    simulated(2, "a release is fenced by the attempt", "store: memory", STORM, &["a settle without its lease changed something"]),
    stored(2, "a release is fenced by the attempt", "a_lease_releases_once", &["lease::memory::a_lease_releases_once", "lease::sqlite::a_lease_releases_once", "lease::postgres::a_lease_releases_once"]),
    simulated(3, "a settle is fenced by the attempt, which a redrive starts anew", "store: memory", STORM, &["a settle without its lease changed something"]),
    stored(3, "a settle is fenced by the attempt, which a redrive starts anew", "a_lease_from_before_a_redrive_is_lost", &["lease::memory::a_lease_from_before_a_redrive_is_lost", "lease::sqlite::a_lease_from_before_a_redrive_is_lost", "lease::postgres::a_lease_from_before_a_redrive_is_lost"]),
    simulated(4, "release without a fence", "store: memory", STORM, &["a settle without its lease changed something"]),
    stored(4, "release without a fence", "a_lease_releases_once", &["lease::memory::a_lease_releases_once", "lease::sqlite::a_lease_releases_once", "lease::postgres::a_lease_releases_once"]),
    simulated(5, "a lease is trusted from the reply, not from the request", "relay.rs", STORM, &["a call was under way without its lease"]),
    stored(6, "IN (… LIMIT) instead of the array", "planner::no_planner_setting", &["failed: without"]),
    simulated(7, "a settle of unknown fate is taken for done", "settler.rs", STORM, &["lapsed at", "without a cause"]),
    simulated(8, "a settle of unknown fate is taken for failed", "settler.rs", STORM, &["does not follow from Some(|without a cause"]),
    simulated(9, "a result is dropped when all places are taken", "settler.rs", STORM, &["lapsed at", "without a cause"]),
    simulated(10, "settled before the call ended", "dispatcher.rs", CALM, &["Delivered does not follow from"]),
    simulated(11, "max_attempts off by one", "core: decide.rs", CALM, &["attempt 4 of 4: Pending"]),
    simulated(12, "a renewal's answer is ignored", "leases.rs", STORM, &["a call went on after its relay was told that the lease is lost"]),
    // The others.
    stored(13, "a lease ends by the host's clock", "clocks::", &["clocks::ahead::a_renewed_lease_lasts_from_now", "clocks::behind::a_lost_lease_is_not_renewed"]),
    stored(14, "lapses are never reset", "a_settle_forgets_the_lapses", &["settle::memory::a_settle_forgets_the_lapses", "settle::sqlite::a_settle_forgets_the_lapses", "settle::postgres::a_settle_forgets_the_lapses"]),
    stored(15, "every lapse is counted twice", "a_lapsed_lease_is_counted", &["claim::memory::a_lapsed_lease_is_counted", "claim::sqlite::a_lapsed_lease_is_counted", "claim::postgres::a_lapsed_lease_is_counted"]),
    simulated(16, "the last life is not spent alone", "dispatcher.rs", POISON, &["all killers end crashed, and nothing beside them"]),
    simulated(17, "a release keeps the attempt", "store: memory", STORM, &["attempts rise by one at each claim"]),
    stored(17, "a release keeps the attempt", "a_release_gives_the_attempt_back", &["lease::memory::a_release_gives_the_attempt_back", "lease::sqlite::a_release_gives_the_attempt_back", "lease::postgres::a_release_gives_the_attempt_back"]),
    simulated(18, "parking spends attempts", "core: health.rs", STORM, &["which the plugin was parked for"]),
    simulated(19, "a parked topic never resumes", "core: health.rs", STORM, &["messages never ended"]),
    simulated(20, "a lone poison parks a healthy version", "core: health.rs", CALM, &["one message parked a healthy plugin"]),
    stored(21, "a redrive touches a live row", "a_redrive_never_touches", &["admin::memory::a_redrive_never_touches", "admin::sqlite::a_redrive_never_touches", "admin::postgres::a_redrive_never_touches"]),
    stored(22, "a purge goes by created_at", "a_purge_goes_by", &["admin::memory::a_purge_goes_by", "admin::sqlite::a_purge_goes_by", "admin::postgres::a_purge_goes_by"]),
    stored(23, "a purge of delivered messages takes dead ones", "a_purge_goes_by", &["admin::memory::a_purge_goes_by", "admin::sqlite::a_purge_goes_by", "admin::postgres::a_purge_goes_by"]),
    stored(24, "dedup across topics", "dedup_keys_of_other_topics", &["dedup::memory::dedup_keys_of_other_topics"]),
    Bug { number: 25, what: "counters rise on fenced settles", place: "metrics: metered.rs", suite: Suite::Unit, tests: "a_settle_under_a_lost_lease", breaks: &["metrics::metered::tests::a_settle_under_a_lost_lease"], within: Duration::from_secs(30) },
    simulated(26, "the backoff wraps", "core: backoff.rs", STORM, &["does not follow from Some("]),
    simulated(27, "a plugin's delay is not clamped", "core: decide.rs", STORM, &["does not follow from Some(Retry"]),
    stored(28, "NUL reaches last_error", "no_error_text_makes_a_settle_fail", &["settle::postgres::no_error_text_makes_a_settle_fail"]),
    sandboxed(30, "a reload mixes versions: the old component under the new digest", "plugin: validator.rs", "a_new_version_is_live_soon", &["reload::a_new_version_is_live_soon"]),
    sandboxed(31, "a name's addresses are not checked", "egress: connector.rs", "a_name_is_resolved_once", &["egress::a_name_is_resolved_once"]),
    sandboxed(32, "a name is resolved again to connect", "egress: connector.rs", "a_name_is_resolved_once", &["left: 2", "right: 1"]),
    sandboxed(33, "an instance serves again after a trap", "plugin: instance.rs", "an_instance_that_failed", &["instances::an_instance_that_failed"]),
];

/// Runs `suite`, which is this very program, once for each of its bugs; fails with all that were not found. Beyond the fast ones
/// only the simulation's are looked for: `OUTBOXD_PLANTED_BUGS=all` looks for all, which takes a server or a compiler each.
pub fn every_bug_is_found(suite: Suite) {
    let mut missed = Vec::new();
    let all = std::env::var("OUTBOXD_PLANTED_BUGS").is_ok_and(|which| which == "all");
    let is_due = |bug: &&Bug| all || bug.number <= FAST_MAX || suite == Suite::Simulation;
    let due: Vec<&Bug> = BUGS.iter().filter(|bug| bug.suite == suite).filter(is_due).collect();
    for tests in due.iter().map(|bug| bug.tests).collect::<BTreeSet<_>>() {
        let (ended, said) = run(tests, 0, Duration::from_secs(1), SOUND_WITHIN);
        assert_eq!(ended, Some(true), "without a bug, {tests} did not pass; it said:\n{}", tail(&said));
    }
    for bug in due {
        let began = Instant::now();
        let found = find(bug);
        let took = began.elapsed().as_secs_f64();
        match found {
            Ok(()) => println!("bug {}, {} ({}): found in {took:.1} s", bug.number, bug.what, bug.place),
            Err(why) => missed.push(format!("bug {}, {} ({}): {why}, {took:.1} s", bug.number, bug.what, bug.place)),
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

/// Answers why the bug was not found, where it was not.
fn find(bug: &Bug) -> Result<(), String> {
    let (ended, said) = run(bug.tests, bug.number, bug.within, bug.within);
    let shows = |text: &str| match text.contains("::") {
        // Only a test that failed has a section of its own; the name of one that passed is told too.
        true => said.contains(&format!("---- {text}")),
        false => said.contains(text),
    };
    let missing: Vec<_> = bug.breaks.iter().filter(|texts| !texts.split('|').any(shows)).collect();
    match ended {
        None => Err(format!("the suite did not fail within {:?}", bug.within)),
        Some(true) => Err("the suite passed".into()),
        Some(false) if missing.is_empty() => Ok(()),
        Some(false) => Err(format!("the suite failed, but without {missing:?}; it said:\n{}", tail(&said))),
    }
}

/// Runs those tests of this very program with the bug of that number; a simulation goes on for `looks_for`. Answers whether they
/// passed, or nothing where they had to be ended, and what they said.
fn run(tests: &str, bug: u32, looks_for: Duration, at_most: Duration) -> (Option<bool>, String) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .arg(tests)
        .env("OUTBOXD_PLANTED_BUG", bug.to_string())
        .env("OUTBOXD_SIM_SECONDS", looks_for.as_secs().to_string())
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program starts again");
    let said = [reader(child.stdout.take()), reader(child.stderr.take())];
    let ended = ends_within(&mut child, at_most);
    let said = said.map(|reader| reader.join().expect("what it said")).concat();
    (ended, said)
}

fn reader(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = std::io::Read::read_to_end(&mut pipe, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether it succeeded; nothing where it had to be ended.
fn ends_within(child: &mut Child, at_most: Duration) -> Option<bool> {
    let mut status = None;
    let ended = crate::wait_for(at_most, || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
    }
    status.map(|status| status.success())
}

fn tail(said: &str) -> &str {
    let start = said.len().saturating_sub(1500);
    said.get(start..).unwrap_or(said)
}
