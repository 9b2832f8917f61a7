//! Every operation of the store, disturbed at its first step, its second, its third, until it completes: a message is as it was or
//! as it should be, and a second try ends what the first began.
//!
//! On PostgreSQL a step is some bytes of what is sent or answered, and the connection is cut there. On SQLite it is a system call,
//! and the call fails.

use std::time::Duration;

use outboxd_core::{Claim, MessageId, Reason, Transition};
use outboxd_store::{Finished, Notify, Selection, Store, StoreError, StoreOptions};
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::{Fashion, Proxy};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, held, lane, retry, settlement};
use crate::sqlite_calls::{CALLS, SqliteCalls};

/// Bytes from one place to the next; the first place is drawn.
const BYTES_A_STEP: u64 = 101;
/// No operation has so many.
const STEPS_MAX: u64 = 1_000;
/// What a lease has run of when it is renewed.
const PASSED: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Claim,
    Renew,
    Deliver,
    Retry,
    Bury,
    Release,
    Discard,
    RetryNow,
    Redrive,
    Purge,
    Pause,
    Resume,
    /// Reads alone.
    Look,
}

const OPERATIONS: [Operation; 13] = [
    Operation::Claim,
    Operation::Renew,
    Operation::Deliver,
    Operation::Retry,
    Operation::Bury,
    Operation::Release,
    Operation::Discard,
    Operation::RetryNow,
    Operation::Redrive,
    Operation::Purge,
    Operation::Pause,
    Operation::Resume,
    Operation::Look,
];

/// One message, ready for an operation, and its lease.
struct Case<'s> {
    store: &'s TestStore,
    operation: Operation,
    id: MessageId,
    claim: Option<Claim>,
}

impl<'s> Case<'s> {
    async fn prepare(store: &'s TestStore, operation: Operation) -> Case<'s> {
        use Operation::*;
        store.clear().await;
        let delay = if operation == RetryNow { Duration::from_secs(60) } else { Duration::ZERO };
        let id = store.publish_one(draft(TOPIC).delay(delay)).await;
        let is_claimed = !matches!(operation, Claim | Discard | RetryNow | Pause | Resume | Look);
        let claim = if is_claimed { Some(store.claim_one().await) } else { None };
        match (operation, &claim) {
            (Redrive, Some(claim)) => drop(store.settle_one(claim, dead()).await),
            (Purge, Some(claim)) => drop(store.settle_one(claim, Transition::Delivered).await),
            (Renew, _) => store.age(PASSED).await,
            (Resume, _) => drop(store.admin.pause(TOPIC).await.expect("pause")),
            _ => {}
        }
        Case { store, operation, id, claim }
    }

    async fn perform(&self, by: &Store) -> Result<(), StoreError> {
        use Operation::*;
        let (outbox, admin) = (&by.outbox, &by.admin);
        let to = |transition: Transition| -> Vec<_> {
            self.claim.iter().map(|claim| settlement(claim, transition.clone())).collect()
        };
        let chosen = Selection::Ids(vec![self.id]);
        match self.operation {
            Claim => outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await.map(drop),
            Renew => outbox.renew(&self.claim.iter().map(held).collect::<Vec<_>>(), LEASE).await.map(drop),
            Deliver => outbox.settle(&to(Transition::Delivered)).await.map(drop),
            Retry => outbox.settle(&to(retry(LEASE))).await.map(drop),
            Bury => outbox.settle(&to(dead())).await.map(drop),
            Release => {
                let error = "the relay stops".into();
                let released = Transition::Released { after: Duration::ZERO, reason: Reason::Interrupted, error };
                outbox.release(&to(released)).await.map(drop)
            }
            Discard => admin.discard(&chosen, 1).await.map(drop),
            RetryNow => admin.retry_now(&chosen, 1).await.map(drop),
            Redrive => admin.redrive(&chosen, 1, Duration::ZERO, Duration::ZERO).await.map(drop),
            Purge => admin.purge(Finished::Delivered, Duration::ZERO, 1).await.map(drop),
            Pause => admin.pause(TOPIC).await.map(drop),
            Resume => admin.resume(TOPIC).await.map(drop),
            Look => {
                outbox.due_topics().await?;
                admin.stats().await?;
                admin.show(self.id).await.map(drop)
            }
        }
    }

    /// What is to be seen of the message, told in words that are the same in every run.
    async fn seen(&self) -> String {
        let topics = self.store.admin.stats().await.expect("stats");
        let is_paused = topics.iter().any(|topic| topic.paused);
        let Some(shown) = self.store.admin.show(self.id).await.expect("show") else { return "gone".into() };
        let row = shown.summary;
        // From its publishing to when it is due, or its lease ends, to the nearest five seconds.
        let due = (row.available_at_ms - row.created_at_ms + 2_500) / 5_000 * 5;
        let (reason, entries) = (row.reason.unwrap_or_default(), shown.history.len());
        format!("{} {} {} {reason:?} {due} {entries} {is_paused}", row.state, row.attempts, row.lapses)
    }
}

#[derive(Debug, Default)]
struct Told {
    /// The operation went on in spite of it.
    unharmed: u32,
    /// It failed, and nothing was changed.
    undone: u32,
    /// It failed, and everything was.
    done: u32,
}

/// Has `operation` done by stores of their own, which `disturb` lets fail at step 0, 1, 2, …, until it completes without. With
/// nothing it ends the disturbance, and says whether there surely was one.
async fn sweep(
    store: &TestStore,
    by: &StoreOptions,
    operation: Operation,
    disturb: impl Fn(Option<u64>) -> bool,
    told: &mut Told,
) {
    let case = Case::prepare(store, operation).await;
    let before = case.seen().await;
    case.perform(&store.another().await).await.expect("undisturbed it works");
    let after = case.seen().await;
    assert_eq!(before == after, operation == Operation::Look, "{operation:?} changes something: {before}");

    for step in 0..STEPS_MAX {
        let case = Case::prepare(store, operation).await;
        // A new one each time, so that opening its connection is disturbed too.
        let relay = Store::connect(by).await.expect("a store connects when it is asked something");
        disturb(Some(step));
        let result = case.perform(&relay).await;
        let is_disturbed = disturb(None);

        let at = format!("{operation:?}, step {step}, {result:?}");
        let seen = case.seen().await;
        if result.is_ok() {
            assert_eq!(seen, after, "{at}");
            if !is_disturbed {
                return;
            }
            told.unharmed += 1;
            continue;
        }
        assert!(seen == before || seen == after, "{at}: {seen}, neither {before} nor {after}");
        *(if seen == before { &mut told.undone } else { &mut told.done }) += 1;
        let is_leased_to_nobody = operation == Operation::Claim && seen == after;
        if is_leased_to_nobody {
            store.age(LEASE).await;
        }
        case.perform(&relay).await.unwrap_or_else(|error| panic!("{at}: the second try: {error}"));
        let ended = case.seen().await;
        let claimed_again = is_leased_to_nobody && ended.starts_with("processing 2 1 ");
        assert!(ended == after || claimed_again, "{at}: after a second try {ended}, not {after}");
    }
    panic!("{operation:?} does not complete in {STEPS_MAX} steps");
}

#[tokio::test]
async fn on_postgres_an_operation_cut_off_anywhere_is_done_or_not_and_a_second_try_ends_it() {
    let store = TestStore::postgres().await;
    let proxy = Proxy::before_postgres(TestPostgres::shared().socket_folder());
    let database = store.options.url.trim_start_matches("postgres:///").split('?').next().expect("a name");
    let by = StoreOptions {
        url: proxy.postgres_url(database),
        notify: Notify::PollOnly,
        statement_timeout: Duration::from_secs(2),
        ..store.options.clone()
    };
    let first = fastrand::u64(..BYTES_A_STEP);
    let after_bytes = |step: u64| first + step * BYTES_A_STEP;

    let mut told = Told::default();
    for operation in OPERATIONS {
        for fashion in [
            |after_bytes| Fashion::SwallowRequests { after_bytes },
            |after_bytes| Fashion::SwallowReplies { after_bytes },
        ] {
            let disturb = |step: Option<u64>| {
                proxy.behave(step.map_or(Fashion::Forward, |step| fashion(after_bytes(step))));
                false
            };
            sweep(&store, &by, operation, disturb, &mut told).await;
        }
    }
    println!("from byte {first}: {told:?}");
    assert!(told.undone > 0 && told.done > 0, "{told:?}");
}

#[tokio::test]
async fn on_sqlite_an_operation_whose_system_calls_fail_is_done_or_not_and_a_second_try_ends_it() {
    let store = TestStore::sqlite().await;
    let calls = SqliteCalls::replace(store.options.url.trim_start_matches("sqlite:"));

    for call in CALLS {
        let mut told = Told::default();
        for operation in OPERATIONS {
            sweep(&store, &store.options, operation, |step| calls.fail(call, step), &mut told).await;
        }
        println!("{call:?}: {told:?}");
        assert!(told.undone + told.unharmed > 0, "{call:?} never failed");
    }
}
