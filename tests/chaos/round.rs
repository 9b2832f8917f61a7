//! One round: relays, producers and a nemesis for a while, then peace, then the reckoning.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outboxd_client::Outbox;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::checker::{Cause, Evidence, Verdict, check};
use crate::faults::Kind;
use crate::producer::{Producer, Records};
use crate::seed::Seed;
use crate::stage::Stage;
use crate::truth;

const PRODUCERS: usize = 4;
/// Producers wait while so many committed messages are not delivered: a drain has to end.
const BACKLOG_MAX: usize = 400;
/// Once all faults are over, everything is delivered within this.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// One test at a time: two cores are not enough for two storms.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The applications of a round, on threads of their own.
pub struct Market {
    runtime: Runtime,
    records: Arc<Records>,
    stop: CancellationToken,
    producers: TaskTracker,
}

impl Market {
    /// Opens on the stage's database, which the producers reach by `url`.
    pub fn open(stage: &Stage, url: &str, seed: Seed) -> Market {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("producers")
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(truth::create_orders(stage.database()));
        let market =
            Market { runtime, records: Arc::default(), stop: CancellationToken::new(), producers: TaskTracker::new() };
        for number in 0..PRODUCERS {
            let producer = Producer {
                url: url.to_owned(),
                draw: seed.stream(&format!("producer {number}")),
                records: market.records.clone(),
                outbox: Outbox::default(),
            };
            let (stop, records, taken) = (market.stop.clone(), market.records.clone(), stage.sink.taken_counter());
            let may_go_on = move || records.committed() < taken.count() + BACKLOG_MAX;
            let _in_runtime = market.runtime.enter();
            if url.starts_with("sqlite") {
                market.producers.spawn(producer.run::<sqlx::Sqlite>(stop, may_go_on));
            } else {
                market.producers.spawn(producer.run::<sqlx::Postgres>(stop, may_go_on));
            }
        }
        market
    }

    /// Closes, waits until every message is finished, and reckons up.
    pub fn reckon(self, stage: &Stage) -> (Verdict, Duration) {
        self.stop.cancel();
        self.producers.close();
        self.runtime.block_on(self.producers.wait());
        let began = Instant::now();
        let drained = loop {
            match self.runtime.block_on(truth::unfinished(stage.database())) {
                Ok(0) => break began.elapsed(),
                _ if began.elapsed() > DRAINED_WITHIN => break began.elapsed(),
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        let evidence = Evidence {
            fates: self.records.fates(),
            truth: self.runtime.block_on(truth::read(stage.database())),
            deliveries: stage.sink.deliveries(),
            faults: stage.faults.all(),
            lapsed: lapsed(&stage.logs()),
        };
        (check(&evidence), drained)
    }
}

/// The messages of which a relay has said that their lease was lost or their result not written.
fn lapsed(logs: &str) -> HashSet<Uuid> {
    let told = |line: &&str| {
        line.contains("the lease of message")
            || line.contains("could not be written before its lease ended")
            || line.contains("was settled by another relay")
    };
    let id = |line: &str| {
        let (_, rest) = line.split_once("message ")?;
        Uuid::parse_str(rest.get(..36)?).ok()
    };
    logs.lines().filter(told).filter_map(id).collect()
}

/// How often each fault was done, and what came of it, to be read by a person.
pub fn report(stage: &Stage, verdict: &Verdict, seed: Seed, took: Duration, drained: Duration) -> String {
    let mut faults = std::collections::BTreeMap::<Kind, usize>::new();
    for fault in stage.faults.all() {
        *faults.entry(fault.kind).or_default() += 1;
    }
    let logs = stage.logs();
    let told = |text: &str| logs.matches(text).count();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "seed {}: {:.0} s of chaos, drained in {:.1} s",
        seed.0,
        took.as_secs_f64(),
        drained.as_secs_f64()
    );
    let _ = writeln!(text, "  faults: {faults:?}");
    let _ = writeln!(
        text,
        "  messages: {} committed ({} of {} unknown commits), {} rolled back",
        verdict.messages, verdict.unknown_committed, verdict.unknown, verdict.rolled_back
    );
    let _ = writeln!(
        text,
        "  ok {}, recovered {}, duplicates {} ({:?}; at most by one fault {:?}), unexplained {}, lost {}, phantom {}",
        verdict.ok,
        verdict.recovered,
        verdict.duplicates(),
        verdict.duplicates,
        verdict.duplicates_max,
        verdict.unexplained.len(),
        verdict.lost.len(),
        verdict.phantom.len()
    );
    let _ = writeln!(
        text,
        "  the relays said: fenced {}, unknown {}, lease lost {}",
        told("settled by another relay or deleted"),
        told("whose answer was lost") + told("could not be written before"),
        told("the lease of message"),
    );
    text
}

/// Nothing was lost, nothing came from a rollback, and every duplicate has a cause that may cause so many.
pub fn demand(stage: Stage, verdict: &Verdict, report: &str, duplicates_max: impl Fn(Cause) -> usize) {
    println!("{report}");
    let too_many: Vec<_> =
        verdict.duplicates_max.iter().filter(|(cause, count)| **count > duplicates_max(**cause)).collect();
    if verdict.is_clean() && too_many.is_empty() {
        return;
    }
    let shown = |what: &str, texts: &[String]| {
        let texts: Vec<&str> = texts.iter().take(10).map(String::as_str).collect();
        if texts.is_empty() { String::new() } else { format!("{what}:\n  {}\n", texts.join("\n  ")) }
    };
    panic!(
        "{report}{}{}{}{}{too_many:?}\nlogs, deliveries and faults are in {:?}; replay with OUTBOXD_CHAOS_SEED",
        shown("lost", &verdict.lost),
        shown("phantom", &verdict.phantom),
        shown("unexplained", &verdict.unexplained),
        shown("broken", &verdict.broken),
        stage.keep(),
    );
}
