//! The three stores are one: random sequences of operations give the same answers on each.
//!
//! What a store makes up itself is compared by number: messages in the order of their publishing, leases in the order of
//! their claims. Times are whole minutes, and a second passes after each operation, so that no order hangs on a millisecond.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use outboxd_core::{
    AttemptRecord, Held, Lane, LeaseStatus, MessageId, OnDead, Order, Reason, Rest, RestCause, Settlement, State,
    Transition,
};
use outboxd_store::{KeyFilter, MessageFilter, Selection};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::backend::{TestStore, draft, lane};
use crate::operations::{Chosen, KEYS, Operation, Settled, TOPICS, operation};

/// How each of the topics is ordered at first.
const ORDERS: [Order; TOPICS.len()] = [
    Order::None,
    Order::ByKey { on_dead: OnDead::Skip },
    Order::ByKey { on_dead: OnDead::Block },
    Order::Limited { per_key: 2 },
];
const OPERATIONS_MAX: usize = 30;

/// As many sequences as fit; `OUTBOXD_DIFFERENTIAL_SECONDS` makes a long run of it.
const SECONDS: u64 = 40;

/// One store, and the names its messages and leases go by.
struct Run {
    store: TestStore,
    messages: Vec<MessageId>,
    leases: Vec<Lease>,
    orders: [Order; TOPICS.len()],
}

/// A lease, and what its claim said of the order.
#[derive(Clone, Copy)]
struct Lease {
    held: Held,
    order: Order,
}

fn minutes(minutes: u32) -> Duration {
    Duration::from_secs(60) * minutes
}

impl Run {
    fn new(store: TestStore) -> Self {
        Run { store, messages: Vec::new(), leases: Vec::new(), orders: ORDERS }
    }

    async fn begin(&mut self) {
        self.store.clear().await;
        self.messages.clear();
        self.leases.clear();
        self.orders = ORDERS;
    }

    /// Does it, and answers what the store said, in names that all stores share.
    async fn perform(&mut self, operation: &Operation) -> String {
        let (outbox, admin) = (self.store.outbox.clone(), self.store.admin.clone());
        let answer = match operation {
            Operation::Publish { topic, key, count, delay, expires, dedup } => {
                let mut draft = draft(TOPICS[*topic]).delay(minutes(*delay)).payload("[1, 2]");
                if let Some(key) = key {
                    draft = draft.key(KEYS[*key]);
                }
                if let Some(expires) = expires {
                    draft = draft.expires(minutes(*expires));
                }
                if let Some(dedup) = dedup {
                    draft = draft.dedup_key(&dedup.to_string());
                }
                let published = self.store.publish(vec![draft; *count]).await;
                format!("{:?}", published.into_iter().map(|id| self.number(id)).collect::<Vec<_>>())
            }
            Operation::Arrange { topics, hold } => {
                let topics: BTreeSet<_> = topics.iter().copied().collect();
                // So many slots that all of it is looked at.
                let lanes: Vec<_> = topics.into_iter().map(|topic| self.ordered(topic, 100)).collect();
                format!("{:?}", outbox.arrange(&lanes, *hold).await.expect("arrange"))
            }
            Operation::Claim { lanes, lease, lapses_max } => {
                // A topic stands in one lane.
                let lanes: BTreeMap<_, _> = lanes.iter().copied().collect();
                let lanes: Vec<_> = lanes.into_iter().map(|(topic, slots)| self.ordered(topic, slots)).collect();
                let claims = outbox.claim(&lanes, minutes(*lease), *lapses_max).await.expect("claim");
                let mut told = Vec::new();
                for claim in claims {
                    let message = self.number(claim.message.id);
                    let held = Held { id: claim.message.id, lease_id: claim.lease_id };
                    self.leases.push(Lease { held, order: claim.order });
                    told.push((
                        message,
                        claim.message.topic,
                        claim.attempt,
                        claim.lapses,
                        claim.lapsed,
                        claim.expired,
                        claim.key_failures,
                        claim.message.payload,
                    ));
                }
                format!("{told:?}")
            }
            Operation::Renew { leases, lease } => {
                let held: Vec<_> = self.held(leases).into_iter().map(|lease| lease.held).collect();
                format!("{:?}", outbox.renew(&held, minutes(*lease)).await.expect("renew"))
            }
            Operation::Settle { leases, results } => {
                let settlements: Vec<_> = self
                    .held(leases)
                    .into_iter()
                    .zip(results)
                    .map(|(lease, (result, rest, failures))| {
                        let cause = (*rest > 0).then_some(RestCause::Plugin);
                        let rest = Rest { time: minutes(*rest), cause, failures: *failures };
                        let settled = settlement(
                            lease,
                            match *result {
                                Settled::Delivered => Transition::Delivered,
                                Settled::Retry(after) => Transition::Pending {
                                    after: minutes(after),
                                    reason: Reason::Retry,
                                    error: "again".into(),
                                },
                                Settled::Dead(reason) => Transition::Dead { reason, error: format!("{reason}!") },
                            },
                        );
                        // Where keys are no unit of delivery, none is told anything.
                        Settlement { rest: if lease.order == Order::None { Rest::default() } else { rest }, ..settled }
                    })
                    .collect();
                format!("{:?}", outbox.settle(&settlements).await.expect("settle"))
            }
            Operation::Release { leases, after } => {
                let after = minutes(*after);
                let released: Vec<_> = self
                    .held(leases)
                    .into_iter()
                    .map(|lease| {
                        let error = "stopping".into();
                        settlement(lease, Transition::Released { after, reason: Reason::Interrupted, error })
                    })
                    .collect();
                format!("{:?}", outbox.release(&released).await.expect("release"))
            }
            Operation::Pass { minutes: passed } => {
                self.store.age(minutes(*passed)).await;
                String::new()
            }
            Operation::Redrive { topic, reason, limit, spacing } => {
                let selection = Selection::Matching { topic: topic.map(|topic| TOPICS[topic].into()), reason: *reason };
                format!(
                    "{:?}",
                    admin.redrive(&selection, *limit, Duration::ZERO, minutes(*spacing)).await.expect("redrive")
                )
            }
            Operation::RedriveIds { messages, limit } => {
                let selection = Selection::Ids(self.chosen(messages));
                format!(
                    "{:?}",
                    admin.redrive(&selection, *limit, Duration::ZERO, Duration::ZERO).await.expect("redrive")
                )
            }
            Operation::Discard { chosen, limit } => {
                format!("{:?}", admin.discard(&self.selection(chosen), *limit).await.expect("discard"))
            }
            Operation::RetryNow { chosen, limit } => {
                format!("{:?}", admin.retry_now(&self.selection(chosen), *limit).await.expect("retry now"))
            }
            Operation::Purge { state, older_than, limit } => {
                format!("{:?}", admin.purge(*state, minutes(*older_than), *limit).await.expect("purge"))
            }
            Operation::Pause { topic } => format!("{:?}", admin.pause(TOPICS[*topic]).await.expect("pause")),
            Operation::Resume { topic } => format!("{:?}", admin.resume(TOPICS[*topic]).await.expect("resume")),
            Operation::SkipKey { topic, key } => {
                format!("{:?}", admin.skip_key(TOPICS[*topic], KEYS[*key]).await.expect("skip a key"))
            }
            Operation::ResumeKey { topic, key } => {
                format!("{:?}", admin.resume_key(TOPICS[*topic], KEYS[*key]).await.expect("resume a key"))
            }
            Operation::Reorder { topic, order } => {
                self.orders[*topic] = ORDERS[*order];
                String::new()
            }
            Operation::Unorder { topic } => {
                // In which batches is each store's own affair.
                while admin.unorder(TOPICS[*topic], 3).await.expect("unorder") > 0 {}
                String::new()
            }
            Operation::Look { state, topic, limit } => self.look(*state, *topic, *limit).await,
        };
        // One update of all rows costs less than it seems: a sequence has a few dozen.
        self.store.age(Duration::from_secs(1)).await;
        answer
    }

    async fn look(&mut self, state: Option<State>, topic: Option<usize>, limit: u32) -> String {
        let due = self.store.outbox.due_topics().await.expect("due topics");
        let due: Vec<_> = due.into_iter().map(|due| due.topic).collect();
        let stats = self.store.admin.stats().await.expect("stats");
        let stats: Vec<_> = stats
            .into_iter()
            .map(|mut topic| {
                topic.oldest_due_ms = topic.oldest_due_ms.map(|waited| waited / 60_000);
                topic
            })
            .collect();
        let filter = MessageFilter { state, topic: topic.map(|topic| TOPICS[topic].into()), reason: None };
        let listed = self.store.admin.list(&filter, None, limit).await.expect("list");
        let listed: Vec<_> =
            listed.iter().map(|message| self.number(MessageId(message.id.parse().expect("an id")))).collect();
        let keys = self.store.admin.keys(&KeyFilter::default(), 100).await.expect("keys");
        let mut keys: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let head = key.head.map(|id| self.number(MessageId(id.parse().expect("an id"))));
                (key.topic, key.key, key.state, head, key.reason, key.error, key.depth)
            })
            .collect();
        keys.sort();
        format!("{due:?} {stats:?} {listed:?} {keys:?}")
    }

    /// Everything that is in the table, without the times themselves.
    async fn table(&mut self) -> String {
        let mut rows = Vec::new();
        for (number, id) in self.messages.clone().into_iter().enumerate() {
            let Some(shown) = self.store.admin.show(id).await.expect("show") else { continue };
            let row = shown.summary;
            let times = (row.expires_at_ms.is_some(), row.delivered_at_ms.is_some(), row.dead_at_ms.is_some());
            let history: Vec<_> = shown
                .history
                .into_iter()
                .map(|entry| (entry.attempt, entry.took_ms, entry.result, entry.reason, entry.error))
                .collect();
            rows.push(format!(
                "{number} {} {} {} {} {:?} {:?} {times:?} {:?} {history:?}",
                row.topic, row.state, row.attempts, row.lapses, row.reason, row.last_error, shown.dedup_key
            ));
        }
        rows.join("\n")
    }

    /// A message's place in the order of publishing.
    fn number(&mut self, id: MessageId) -> usize {
        self.messages.iter().position(|known| *known == id).unwrap_or_else(|| {
            self.messages.push(id);
            self.messages.len() - 1
        })
    }

    /// The lane of a topic, in its order.
    fn ordered(&self, topic: usize, slots: u32) -> Lane {
        Lane { order: self.orders[topic], ..lane(TOPICS[topic], slots) }
    }

    /// What is held is never forgotten: its key is there.
    async fn held_without_a_key(&self) -> Vec<String> {
        let keys = self.store.admin.keys(&KeyFilter::default(), 100).await.expect("keys");
        let keys: BTreeSet<_> = keys.into_iter().map(|key| (key.topic, Some(key.key))).collect();
        let filter = MessageFilter { state: Some(State::Held), ..MessageFilter::default() };
        let held = self.store.admin.list(&filter, None, 1000).await.expect("list");
        held.into_iter().filter(|one| !keys.contains(&(one.topic.clone(), one.key.clone()))).map(|one| one.id).collect()
    }

    fn selection(&self, chosen: &Chosen) -> Selection {
        match chosen {
            Chosen::Ids(messages) => Selection::Ids(self.chosen(messages)),
            Chosen::Matching { topic, reason } => {
                Selection::Matching { topic: topic.map(|topic| TOPICS[topic].into()), reason: *reason }
            }
        }
    }

    fn chosen(&self, messages: &[usize]) -> Vec<MessageId> {
        if self.messages.is_empty() {
            return Vec::new();
        }
        messages.iter().map(|number| self.messages[number % self.messages.len()]).collect()
    }

    /// Leases old and new, each message once: the latest few more often.
    fn held(&self, leases: &[usize]) -> Vec<Lease> {
        if self.leases.is_empty() {
            return Vec::new();
        }
        let mut chosen: Vec<Lease> = Vec::new();
        for number in leases {
            let window = if number % 4 == 0 { self.leases.len() } else { self.leases.len().min(4) };
            let lease = self.leases[self.leases.len() - 1 - (number / 4) % window];
            if !chosen.iter().any(|other| other.held.id == lease.held.id) {
                chosen.push(lease);
            }
        }
        chosen
    }
}

fn settlement(lease: Lease, transition: Transition) -> Settlement {
    let Lease { held, order } = lease;
    let record = AttemptRecord { took: Duration::from_millis(5), ..AttemptRecord::of(outboxd_core::Attempt(1)) };
    Settlement { id: held.id, lease_id: held.lease_id, transition, order, rest: Rest::default(), record }
}

#[test]
fn memory_sqlite_and_postgres_answer_alike() {
    let seconds =
        std::env::var("OUTBOXD_DIFFERENTIAL_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let runs = RefCell::new(runtime.block_on(async {
        [TestStore::memory().await, TestStore::sqlite().await, TestStore::postgres().await].map(Run::new)
    }));
    let names = ["memory", "SQLite", "PostgreSQL"];
    let config = Config { cases: u32::MAX, max_shrink_iters: 400, failure_persistence: None, ..Config::default() };
    let strategy = prop::collection::vec(operation(), 1..=OPERATIONS_MAX);
    let mut runner = TestRunner::new(config);
    let mut sequences = 0u32;
    let fenced = Cell::new(0u32);
    while Instant::now() < deadline {
        // One case at a time, so that the deadline holds; a failure is shrunk by the runner as usual.
        let mut once = TestRunner::new_with_rng(Config { cases: 1, ..runner.config().clone() }, runner.new_rng());
        let result = once.run(&strategy, |operations| {
            let runs = &mut *runs.borrow_mut();
            runtime.block_on(async {
                for run in runs.iter_mut() {
                    run.begin().await;
                }
                for (step, operation) in operations.iter().enumerate() {
                    let mut answers = Vec::new();
                    for run in runs.iter_mut() {
                        answers.push(run.perform(operation).await);
                    }
                    compare(&names, &answers, &format!("step {step}, {operation:?}"))?;
                    let lost = answers[0].contains(&format!("{:?}", LeaseStatus::Lost));
                    fenced.set(fenced.get() + u32::from(lost));
                }
                let mut tables = Vec::new();
                for (name, run) in names.iter().zip(runs.iter_mut()) {
                    tables.push(run.table().await);
                    let forgotten = run.held_without_a_key().await;
                    prop_assert!(forgotten.is_empty(), "{name} holds {forgotten:?} for no key");
                }
                compare(&names, &tables, "the table at the end")
            })
        });
        if let Err(failure) = result {
            panic!("after {sequences} sequences: {failure}");
        }
        sequences += 1;
    }
    println!(
        "{sequences} sequences of up to {OPERATIONS_MAX} operations, {} operations with a lost lease",
        fenced.get()
    );
    assert!(fenced.get() > 0, "the generator never made a lost lease");
}

fn compare(names: &[&str], answers: &[String], at: &str) -> Result<(), TestCaseError> {
    for (name, answer) in names.iter().zip(answers).skip(1) {
        if *answer != answers[0] {
            return Err(TestCaseError::fail(format!("{at}:\n{}: {}\n{name}: {answer}", names[0], answers[0])));
        }
    }
    Ok(())
}
