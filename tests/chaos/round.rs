//! One round: relays, producers and a nemesis for a while, then peace, then the reckoning.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::wait_for;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::checker::{Evidence, check};
use crate::faults::Kind;
use crate::ledger::{self, Entry};
use crate::other_language::OtherLanguage;
use crate::producer::{Producer, Records};
use crate::seed::Seed;
use crate::stage::Stage;
use crate::truth;
use crate::verdict::{Cause, Verdict};

const PRODUCERS: usize = 4;
/// Producers wait while so many committed messages are not delivered: a drain has to end.
const BACKLOG_MAX: usize = 400;
/// Once all faults are over, everything is delivered, and never so long passes in which nothing is. Messages of one key come one
/// after the other: how long all of it takes depends on what is left of one key.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// But no longer than this.
const DRAINED_WITHIN: Duration = Duration::from_secs(300);

/// Duplicates in a round that only a starved machine explains: a relay lost leases though nothing was done to it.
pub const LAPSES_MAX: usize = 3;

/// One test at a time: two cores are not enough for two storms.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every message is finished, or none has been for too long.
fn drain(runtime: &Runtime, stage: &Stage) {
    let mut last = (i64::MAX, Instant::now());
    wait_for(DRAINED_WITHIN, || {
        let Ok(left) = runtime.block_on(truth::unfinished(stage.database())) else { return false };
        if left < last.0 {
            last = (left, Instant::now());
        }
        left == 0 || last.1.elapsed() > SILENT_MAX
    });
}

/// Waits for `work` in a test that is not asynchronous.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// The applications of a round, on threads of their own.
pub struct Market {
    runtime: Runtime,
    records: Arc<Records>,
    stop: CancellationToken,
    producers: TaskTracker,
    other_language: Option<OtherLanguage>,
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
        let records = Arc::<Records>::default();
        let python = |records| OtherLanguage::start(url, seed.stream("other language").u64(..), records);
        let other_language = if url.starts_with("sqlite") { None } else { python(records.clone()) };
        let (stop, producers) = (CancellationToken::new(), TaskTracker::new());
        let market = Market { runtime, records, stop, producers, other_language };
        for number in 0..PRODUCERS {
            let producer = Producer {
                name: format!("producer {number}"),
                url: url.to_owned(),
                draw: seed.stream(&format!("producer {number}")),
                records: market.records.clone(),
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
    pub fn reckon(self, stage: &Stage, seed: Seed, took: Duration) -> Round {
        self.stop.cancel();
        self.producers.close();
        self.runtime.block_on(self.producers.wait());
        if let Some(told) = self.other_language.map(OtherLanguage::stop) {
            println!("the application in Python told of {told} messages");
            assert!(told > 0, "it sold nothing");
        }
        let began = Instant::now();
        // If something is left, the verdict names it.
        drain(&self.runtime, stage);
        let drained = began.elapsed();
        let mut truth = self.runtime.block_on(truth::read(stage.database()));
        if stage.faults.all().iter().any(|fault| fault.kind == Kind::DatabaseClockStepped) {
            truth.by_our_clock(SystemTime::now());
        }
        let evidence = Evidence {
            fates: self.records.fates(),
            truth,
            deliveries: stage.sink.deliveries(),
            faults: stage.faults.all(),
            lapsed: lapsed(&stage.logs()),
        };
        let mut faults = BTreeMap::new();
        for fault in &evidence.faults {
            *faults.entry(fault.kind).or_default() += 1;
        }
        let said = Said::of(&stage.logs());
        Round { seed, took, drained, faults, said, verdict: check(&evidence), failure: None }
    }
}

/// What came of one round.
pub struct Round {
    pub seed: Seed,
    /// How long faults were done.
    pub took: Duration,
    /// How long after the last fault everything was finished.
    pub drained: Duration,
    pub faults: BTreeMap<Kind, usize>,
    pub said: Said,
    pub verdict: Verdict,
    /// What is wrong with it, for a person.
    pub failure: Option<String>,
}

/// What a round must have led to, or it tested less than it believes.
#[derive(Clone, Copy, Debug)]
pub enum Rare {
    /// A message that lost its lease and was delivered once.
    Recovered,
    Duplicate,
    /// A relay found that another had settled.
    Fenced,
    /// A relay settled and got no answer.
    UnknownSettle,
    /// An application committed and got no answer.
    UnknownCommit,
    /// Messages of a key, one after the other.
    InOrder,
}

/// How often the relays told of what must have happened to some.
pub struct Said {
    fenced: usize,
    unknown: usize,
    lease_lost: usize,
}

impl Said {
    fn of(logs: &str) -> Said {
        let told = |text: &str| logs.matches(text).count();
        Said {
            fenced: told("settled by another relay or deleted"),
            unknown: told("whose answer was lost") + told("could not be written before"),
            lease_lost: told("the lease of message"),
        }
    }
}

impl Round {
    /// Does `storm` once; where `OUTBOXD_CHAOS_MINUTES` is set, again with the next seed until so long is over, and enters
    /// the sum into the ledger. A run that fails is entered too.
    pub fn repeat(suite: &'static str, storm: impl Fn(Seed) -> Round) {
        let (mut seed, began, length) = (Seed::of_run(), Instant::now(), ledger::length());
        let mut sum = Entry::new(suite, seed);
        let failure = loop {
            println!("OUTBOXD_CHAOS_SEED={}", seed.0);
            let round = catch_unwind(AssertUnwindSafe(|| storm(seed)));
            sum.seen(seed, began.elapsed(), round.as_ref().ok());
            match round {
                Err(panic) => break Some(panic),
                Ok(Round { failure: Some(failure), .. }) => break Some(Box::new(failure) as Box<dyn Any + Send>),
                Ok(_) if length.is_none_or(|length| began.elapsed() >= length) => break None,
                Ok(_) => seed = seed.next(),
            }
        };
        if length.is_some() {
            ledger::append(&sum);
        }
        match failure.map(|failure| failure.downcast::<String>()) {
            None => {}
            Some(Ok(text)) => panic!("{text}"),
            Some(Err(panic)) => resume_unwind(panic),
        }
    }

    /// A round in which nothing rare happened has failed.
    pub fn must_have_seen(mut self, rares: &[Rare]) -> Round {
        let verdict = &self.verdict;
        let seen = |rare: &Rare| match rare {
            Rare::Recovered => verdict.recovered,
            Rare::Duplicate => verdict.duplicates(),
            Rare::Fenced => self.said.fenced,
            Rare::UnknownSettle => self.said.unknown,
            Rare::UnknownCommit => verdict.unknown_committed,
            Rare::InOrder => verdict.in_order,
        };
        let unseen: Vec<&Rare> = rares.iter().filter(|rare| seen(rare) == 0).collect();
        if !unseen.is_empty() && self.failure.is_none() {
            self.failure = Some(format!("the round never saw {unseen:?}"));
        }
        self
    }

    /// A round whose time was over before half of the kills has failed: the machine is too slow to say anything.
    pub fn must_have_killed(mut self, asked: usize) -> Round {
        if 2 * self.kills() < asked && self.failure.is_none() {
            self.failure = Some(format!("only {} of {asked} kills before the round's time was over", self.kills()));
        }
        self
    }

    fn fault_count(&self, matching: impl Fn(Kind) -> bool) -> usize {
        self.faults.iter().filter(|(kind, _)| matching(**kind)).map(|(_, count)| count).sum()
    }

    pub fn kills(&self) -> usize {
        self.fault_count(|kind| kind == Kind::Killed)
    }

    pub fn database_crashes(&self) -> usize {
        self.fault_count(Kind::is_crash_of_database)
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

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { seed, took, drained, faults, said, verdict, .. } = self;
        let (took, drained) = (took.as_secs_f64(), drained.as_secs_f64());
        writeln!(f, "seed {}: {took:.0} s of chaos, drained in {drained:.1} s", seed.0)?;
        writeln!(f, "  faults: {faults:?}")?;
        writeln!(
            f,
            "  messages: {} committed ({} of {} unknown commits), {} rolled back",
            verdict.messages, verdict.unknown_committed, verdict.unknown, verdict.rolled_back
        )?;
        writeln!(
            f,
            "  ok {}, in order {}, recovered {}, duplicates {}, unexplained {}, lost {}, phantom {}",
            verdict.ok,
            verdict.in_order,
            verdict.recovered,
            verdict.duplicates(),
            verdict.unexplained.len(),
            verdict.lost.len(),
            verdict.phantom.len()
        )?;
        writeln!(f, "  duplicates by {:?}; at most by one {:?}", verdict.duplicates, verdict.duplicates_max)?;
        let Said { fenced, unknown, lease_lost } = said;
        writeln!(
            f,
            "  the relays told of {fenced} fenced settles, {unknown} unknown, {lease_lost} leases lost in a call"
        )
    }
}

impl Round {
    /// Nothing was lost, nothing came from a rollback, and every duplicate has a cause that may cause so many. Otherwise the
    /// stage's folder is kept, and the failure says why and where.
    pub fn judged(mut self, stage: Stage, duplicates_max: impl Fn(Cause) -> usize) -> Round {
        println!("{self}");
        let verdict = &self.verdict;
        let too_many = verdict.duplicates_max.iter().filter(|(cause, count)| **count > duplicates_max(**cause));
        let too_many: Vec<String> =
            too_many.map(|(cause, count)| format!("{count} duplicates by one fault: {cause:?}")).collect();
        let wrongs = [
            ("lost", &verdict.lost),
            ("phantom", &verdict.phantom),
            ("unexplained", &verdict.unexplained),
            ("broken", &verdict.broken),
            ("too many", &too_many),
        ];
        let mut text = String::new();
        for (what, which) in wrongs.into_iter().filter(|(_, which)| !which.is_empty()) {
            let shown: Vec<&str> = which.iter().take(10).map(String::as_str).collect();
            text.push_str(&format!("{what}:\n  {}\n", shown.join("\n  ")));
        }
        if !text.is_empty() {
            let (seed, kept) = (self.seed.0, stage.keep());
            println!("{text}logs, deliveries and faults are in {kept:?}; OUTBOXD_CHAOS_SEED={seed} repeats the faults");
            self.failure = Some(text);
        }
        self
    }
}
