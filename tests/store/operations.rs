use outboxd_core::{KEY_FAILURES_MAX, Reason, State};
use outboxd_store::{Finished, Hold};
use proptest::prelude::*;

pub const TOPICS: [&str; 4] = ["a", "b", "b.c", "d"];
pub const KEYS: [&str; 2] = ["k", "l"];

#[derive(Clone, Debug)]
pub enum Operation {
    Publish {
        topic: usize,
        key: Option<usize>,
        count: usize,
        delay: u32,
        expires: Option<u32>,
        dedup: Option<u8>,
    },
    Arrange {
        topics: Vec<usize>,
        hold: Hold,
    },
    Claim {
        lanes: Vec<(usize, u32)>,
        lease: u32,
        lapses_max: u32,
    },
    Renew {
        leases: Vec<usize>,
        lease: u32,
    },
    /// Each result, and what it tells its key: minutes of rest, failures in a row.
    Settle {
        leases: Vec<usize>,
        results: Vec<(Settled, u32, Option<u32>)>,
    },
    Release {
        leases: Vec<usize>,
        after: u32,
    },
    Pass {
        minutes: u32,
    },
    Redrive {
        topic: Option<usize>,
        reason: Option<Reason>,
        limit: u32,
        spacing: u32,
    },
    RedriveIds {
        messages: Vec<usize>,
        limit: u32,
    },
    Discard {
        chosen: Chosen,
        limit: u32,
    },
    RetryNow {
        chosen: Chosen,
        limit: u32,
    },
    Purge {
        state: Finished,
        older_than: u32,
        limit: u32,
    },
    Pause {
        topic: usize,
    },
    Resume {
        topic: usize,
    },
    SkipKey {
        topic: usize,
        key: usize,
    },
    ResumeKey {
        topic: usize,
        key: usize,
    },
    /// Its manifest says something else of the order from now on.
    Reorder {
        topic: usize,
        order: usize,
    },
    Unorder {
        topic: usize,
    },
    Look {
        state: Option<State>,
        topic: Option<usize>,
        limit: u32,
    },
}

#[derive(Clone, Debug)]
pub enum Chosen {
    Ids(Vec<usize>),
    Matching { topic: Option<usize>, reason: Option<Reason> },
}

#[derive(Clone, Copy, Debug)]
pub enum Settled {
    Delivered,
    Retry(u32),
    Dead(Reason),
}

pub fn operation() -> impl Strategy<Value = Operation> {
    let topic = 0..TOPICS.len();
    let key = 0..KEYS.len();
    let some = |most: usize| prop::collection::vec(any::<usize>(), 1..=most);
    let reason = prop::sample::select(vec![Reason::Cancelled, Reason::Trap, Reason::Expired]);
    let settled = prop_oneof![
        3 => Just(Settled::Delivered),
        2 => (0u32..3).prop_map(Settled::Retry),
        2 => reason.clone().prop_map(Settled::Dead),
    ];
    let rest = prop_oneof![4 => Just(0u32), 1 => 1u32..4];
    let failures = prop::option::of(prop_oneof![Just(0u32), 1u32..4, Just(KEY_FAILURES_MAX)]);
    let live_reason = prop::sample::select(vec![Reason::Retry, Reason::Interrupted]);
    let chosen = prop_oneof![
        some(3).prop_map(Chosen::Ids),
        (prop::option::of(topic.clone()), prop::option::of(live_reason))
            .prop_map(|(topic, reason)| Chosen::Matching { topic, reason }),
    ];
    prop_oneof![
        6 => (topic.clone(), prop::option::of(key.clone()), 1usize..4, 0u32..3, prop::option::of(1u32..4), prop::option::of(0u8..4)).prop_map(
            |(topic, key, count, delay, expires, dedup)| Operation::Publish { topic, key, count, delay, expires, dedup }
        ),
        6 => (prop::collection::vec(topic.clone(), 1..=3), prop::sample::select(vec![Hold::All, Hold::Headless]))
            .prop_map(|(topics, hold)| Operation::Arrange { topics, hold }),
        8 => (prop::collection::vec((topic.clone(), 0u32..4), 1..=3), 1u32..4, prop_oneof![1 => 0u32..3, 4 => Just(u32::MAX)])
            .prop_map(|(lanes, lease, lapses_max)| Operation::Claim { lanes, lease, lapses_max }),
        2 => (some(3), 1u32..4).prop_map(|(leases, lease)| Operation::Renew { leases, lease }),
        6 => (some(4), prop::collection::vec((settled, rest, failures), 4))
            .prop_map(|(leases, results)| Operation::Settle { leases, results }),
        3 => (some(3), 0u32..3).prop_map(|(leases, after)| Operation::Release { leases, after }),
        4 => (1u32..4).prop_map(|minutes| Operation::Pass { minutes }),
        2 => (prop::option::of(topic.clone()), prop::option::of(reason), 1u32..4, 0u32..3)
            .prop_map(|(topic, reason, limit, spacing)| Operation::Redrive { topic, reason, limit, spacing }),
        1 => (some(4), 1u32..4).prop_map(|(messages, limit)| Operation::RedriveIds { messages, limit }),
        1 => (chosen.clone(), 1u32..4).prop_map(|(chosen, limit)| Operation::Discard { chosen, limit }),
        2 => (chosen, 1u32..4).prop_map(|(chosen, limit)| Operation::RetryNow { chosen, limit }),
        1 => (prop::sample::select(vec![Finished::Delivered, Finished::Dead]), 0u32..4, 1u32..4)
            .prop_map(|(state, older_than, limit)| Operation::Purge { state, older_than, limit }),
        1 => topic.clone().prop_map(|topic| Operation::Pause { topic }),
        1 => topic.clone().prop_map(|topic| Operation::Resume { topic }),
        1 => (topic.clone(), key.clone()).prop_map(|(topic, key)| Operation::SkipKey { topic, key }),
        1 => (topic.clone(), key).prop_map(|(topic, key)| Operation::ResumeKey { topic, key }),
        1 => (topic.clone(), 0..TOPICS.len()).prop_map(|(topic, order)| Operation::Reorder { topic, order }),
        1 => topic.clone().prop_map(|topic| Operation::Unorder { topic }),
        2 => (prop::option::of(prop::sample::select(State::ALL.to_vec())), prop::option::of(topic), 1u32..9)
            .prop_map(|(state, topic, limit)| Operation::Look { state, topic, limit }),
    ]
}
