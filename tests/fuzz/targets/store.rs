use std::collections::BTreeMap;
use std::time::Duration;

use arbitrary::Unstructured;
use outboxd_core::{
    Attempt, AttemptRecord, Held, Lane, LeaseId, LeaseStatus, MessageId, Order, Reason, Settlement, State, Transition,
};
use outboxd_store::{MemoryMessage, MemoryStore, OutboxAdmin as _, OutboxStore as _, Selection};

use crate::wait;

const TOPICS: [&str; 2] = ["a", "b"];
const OPERATIONS_MAX: usize = 64;
const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Operation {
    Publish { second_topic: bool, dedup: Option<bool> },
    Claim { slots: [u8; 2], lapses_max: u8 },
    Renew(u8),
    Settle(u8, Settled),
    Release(u8),
    Pass { seconds: u8 },
    Redrive(u8),
    Discard(u8),
    Pause { second_topic: bool },
    Resume { second_topic: bool },
}

#[derive(Clone, Copy, Debug)]
enum Settled {
    Delivered,
    Retry,
    Dead,
}

impl Operation {
    fn drawn(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Operation> {
        Ok(match bytes.int_in_range(0..=9)? {
            0 => Operation::Publish { second_topic: bytes.arbitrary()?, dedup: bytes.arbitrary()? },
            1 => Operation::Claim {
                slots: [bytes.int_in_range(0..=4)?, bytes.int_in_range(0..=4)?],
                lapses_max: bytes.arbitrary()?,
            },
            2 => Operation::Renew(bytes.arbitrary()?),
            3 => Operation::Settle(
                bytes.arbitrary()?,
                *bytes.choose(&[Settled::Delivered, Settled::Retry, Settled::Dead])?,
            ),
            4 => Operation::Release(bytes.arbitrary()?),
            5 => Operation::Pass { seconds: bytes.arbitrary()? },
            6 => Operation::Redrive(bytes.arbitrary()?),
            7 => Operation::Discard(bytes.arbitrary()?),
            8 => Operation::Pause { second_topic: bytes.arbitrary()? },
            _ => Operation::Resume { second_topic: bytes.arbitrary()? },
        })
    }
}

/// What must be true of a message, whatever its store believes.
#[derive(Debug, Default)]
struct Expected {
    lease: Option<LeaseId>,
    attempts: u32,
    state: Option<State>,
}

/// Any sequence of operations: a lease holds until it is spent or another is given, and nobody else changes a message.
pub fn try_one(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    wait(async {
        let mut run =
            Run { store: MemoryStore::default(), messages: Vec::new(), leases: Vec::new(), expected: BTreeMap::new() };
        for _ in 0..OPERATIONS_MAX {
            let Ok(operation) = Operation::drawn(&mut bytes) else { break };
            if bytes.is_empty() {
                break;
            }
            let said = format!("{operation:?}");
            run.perform(operation).await;
            run.check(&said).await;
        }
    });
}

struct Run {
    store: MemoryStore,
    messages: Vec<MessageId>,
    leases: Vec<Held>,
    expected: BTreeMap<MessageId, Expected>,
}

impl Run {
    async fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Publish { second_topic, dedup } => {
                let topic = TOPICS[usize::from(second_topic)].into();
                let dedup_key = dedup.map(|key| key.to_string());
                let id = self.store.put(MemoryMessage { topic, dedup_key, ..MemoryMessage::default() });
                if !self.messages.contains(&id) {
                    self.messages.push(id);
                    self.expected.insert(id, Expected { state: Some(State::Pending), ..Expected::default() });
                }
            }
            Operation::Claim { slots, lapses_max } => self.claim(slots, lapses_max).await,
            Operation::Renew(lease) => {
                let Some(held) = chosen(&self.leases, lease) else { return };
                let renewed = self.store.renew(&[held], LEASE).await.expect("the memory store answers");
                assert_eq!(renewed, [self.status(held)]);
            }
            Operation::Settle(lease, settled) => {
                let (reason, error) = (Reason::Trap, String::new());
                let (transition, state) = match settled {
                    Settled::Delivered => (Transition::Delivered, State::Delivered),
                    Settled::Retry => (Transition::Pending { after: LEASE, reason, error }, State::Pending),
                    Settled::Dead => (Transition::Dead { reason, error }, State::Dead),
                };
                self.settle(lease, transition, state, 0).await;
            }
            Operation::Release(lease) => {
                let transition =
                    Transition::Released { after: Duration::ZERO, reason: Reason::Interrupted, error: String::new() };
                self.settle(lease, transition, State::Pending, 1).await;
            }
            Operation::Pass { seconds } => self.store.advance(Duration::from_secs(seconds.into())),
            Operation::Redrive(message) => {
                let Some(id) = chosen(&self.messages, message) else { return };
                let selection = Selection::Ids(vec![id]);
                let count =
                    self.store.redrive(&selection, 1, Duration::ZERO, Duration::ZERO).await.expect("it answers");
                let expected = self.expected.get_mut(&id).expect("a message of ours");
                assert_eq!(count == 1, expected.state == Some(State::Dead), "only the dead are sent round again");
                if count == 1 {
                    *expected = Expected { state: Some(State::Pending), ..Expected::default() };
                }
            }
            Operation::Discard(message) => {
                let Some(id) = chosen(&self.messages, message) else { return };
                let count = self.store.discard(&Selection::Ids(vec![id]), 1).await.expect("the memory store answers");
                let expected = self.expected.get_mut(&id).expect("a message of ours");
                let is_live = matches!(expected.state, Some(State::Pending | State::Processing));
                assert_eq!(count == 1, is_live);
                if is_live {
                    (expected.state, expected.lease) = (Some(State::Dead), None);
                }
            }
            Operation::Pause { second_topic } => {
                self.store.pause(TOPICS[usize::from(second_topic)]).await.expect("the memory store answers");
            }
            Operation::Resume { second_topic } => {
                self.store.resume(TOPICS[usize::from(second_topic)]).await.expect("the memory store answers");
            }
        }
    }

    async fn claim(&mut self, slots: [u8; 2], lapses_max: u8) {
        let lanes =
            [0, 1].map(|lane| Lane { topic: TOPICS[lane].into(), slots: slots[lane].into(), order: Order::None });
        let claims = self.store.claim(&lanes, LEASE, lapses_max.into()).await.expect("the memory store answers");
        for lane in &lanes {
            let of_it = claims.iter().filter(|claim| claim.message.topic == lane.topic).count();
            assert!(of_it <= lane.slots as usize, "more came than there was room for");
        }
        for claim in claims {
            let expected = self.expected.get_mut(&claim.message.id).expect("a message of ours");
            assert!(matches!(expected.state, Some(State::Pending | State::Processing)), "{expected:?} was claimed");
            assert_eq!(
                claim.lapsed,
                expected.state == Some(State::Processing),
                "a lapse is a lease that was not spent"
            );
            *expected = Expected {
                lease: Some(claim.lease_id),
                attempts: expected.attempts + 1,
                state: Some(State::Processing),
            };
            assert_eq!(claim.attempt.0, expected.attempts);
            self.leases.push(Held { id: claim.message.id, lease_id: claim.lease_id });
        }
    }

    async fn settle(&mut self, lease: u8, transition: Transition, state: State, given_back: u32) {
        let Some(held) = chosen(&self.leases, lease) else { return };
        let record = AttemptRecord::of(Attempt(1));
        let is_release = given_back > 0;
        let settlement = [Settlement {
            id: held.id,
            lease_id: held.lease_id,
            transition,
            order: Order::None,
            rest: Default::default(),
            record,
        }];
        let settled = match is_release {
            true => self.store.release(&settlement).await,
            false => self.store.settle(&settlement).await,
        };
        let status = self.status(held);
        assert_eq!(settled.expect("the memory store answers"), [status]);
        if status == LeaseStatus::Held {
            let expected = self.expected.get_mut(&held.id).expect("a message of ours");
            let attempts = expected.attempts - given_back;
            *expected = Expected { lease: None, attempts, state: Some(state) };
        }
    }

    fn status(&self, held: Held) -> LeaseStatus {
        let lease = self.expected.get(&held.id).and_then(|expected| expected.lease);
        if lease == Some(held.lease_id) { LeaseStatus::Held } else { LeaseStatus::Lost }
    }

    async fn check(&self, after: &str) {
        for (id, expected) in &self.expected {
            let shown =
                self.store.show(*id).await.expect("the memory store answers").expect("nothing is purged").summary;
            assert_eq!(shown.attempts, expected.attempts, "after {after}: {shown:?}");
            assert_eq!(State::parse(&shown.state), expected.state, "after {after}: {shown:?}");
        }
    }
}

fn chosen<T: Copy>(all: &[T], number: u8) -> Option<T> {
    // The latest first: a search reaches them with small numbers.
    all.len().checked_sub(1).map(|last| all[last - usize::from(number) % all.len()])
}
