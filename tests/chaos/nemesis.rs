//! Draws faults and does them: to each relay from a deck of its own, to the database from another.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::process::{SIGINT, SIGQUIT};
use outboxd_test_support::proxy::{Fashion, Proxy};
use sqlx::{Connection, PgConnection};

use crate::faults::{FaultLog, Kind};
use crate::round::block_on;
use crate::seed::Seed;
use crate::stage::{Relay, lease};

/// How often each fault is done in one round.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub kills: usize,
    pub pauses: usize,
    pub leaves: usize,
    pub swaps: usize,
    pub database_kills: usize,
    pub database_crashes: usize,
    pub database_stops: usize,
    pub terminations: usize,
    pub cuts: usize,
    pub blackholes: usize,
    pub half_opens: usize,
    pub delays: usize,
    pub swallowed_replies: usize,
}

impl Numbers {
    pub const NONE: Numbers = Numbers {
        kills: 0,
        pauses: 0,
        leaves: 0,
        swaps: 0,
        database_kills: 0,
        database_crashes: 0,
        database_stops: 0,
        terminations: 0,
        cuts: 0,
        blackholes: 0,
        half_opens: 0,
        delays: 0,
        swallowed_replies: 0,
    };

    /// What happens to relay `number` of `count`, in the order drawn.
    fn of_relay(&self, number: usize, count: usize, draw: &mut Rng) -> VecDeque<Kind> {
        let share = |total: usize| total / count + usize::from(number < total % count);
        shuffled(
            &[
                (Kind::Killed, share(self.kills)),
                (Kind::Paused, share(self.pauses)),
                (Kind::Left, share(self.leaves)),
                (Kind::Swapped, share(self.swaps)),
            ],
            draw,
        )
    }

    fn of_database(&self, draw: &mut Rng) -> VecDeque<Kind> {
        shuffled(
            &[
                (Kind::DatabaseKilled, self.database_kills),
                (Kind::DatabaseCrashed, self.database_crashes),
                (Kind::DatabaseStopped, self.database_stops),
                (Kind::BackendsTerminated, self.terminations),
                (Kind::Cut, self.cuts),
                (Kind::Blackhole, self.blackholes),
                (Kind::HalfOpen, self.half_opens),
                (Kind::Delayed, self.delays),
                (Kind::RepliesSwallowed, self.swallowed_replies),
            ],
            draw,
        )
    }
}

fn shuffled(cards: &[(Kind, usize)], draw: &mut Rng) -> VecDeque<Kind> {
    let mut deck: Vec<Kind> = cards.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count)).collect();
    draw.shuffle(&mut deck);
    deck.into()
}

/// A time at which no further fault begins, whatever is left in the decks.
#[derive(Clone, Copy)]
pub struct Curfew(pub Instant);

impl Curfew {
    fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Does to one of `count` relays what its deck says. The relay runs before and after.
pub fn harass_relay(relay: &mut Relay<'_>, count: usize, numbers: &Numbers, seed: Seed, curfew: Curfew) {
    let mut draw = seed.stream(&format!("relay {}", relay.number));
    for kind in numbers.of_relay(relay.number as usize, count, &mut draw) {
        let wait = Duration::from_millis(draw.u64(50..600));
        let pause = lease() + Duration::from_millis(draw.u64(200..1_500));
        if curfew.is_over() {
            return;
        }
        sleep(wait);
        match kind {
            Kind::Killed => {
                relay.kill();
                relay.start();
            }
            Kind::Paused => relay.pause(pause),
            Kind::Swapped => relay.swap_plugins(),
            _ => {
                let status = relay.leave();
                // Killed by the signal: it came before the relay had begun to listen for it, let alone to claim.
                assert!(matches!(status.code(), Some(0) | None), "relay {}: {status} after SIGTERM", relay.number);
                relay.start();
            }
        }
    }
}

/// Does to the server, and to the way to it, what the deck says. All works again afterwards.
pub fn harass_database(
    server: &TestPostgres,
    proxy: &Proxy,
    faults: &FaultLog,
    numbers: &Numbers,
    seed: Seed,
    curfew: Curfew,
) {
    let mut draw = seed.stream("database");
    for kind in numbers.of_database(&mut draw) {
        let wait = Duration::from_millis(draw.u64(500..4_000));
        // Longer than a statement may take: half a lease and the margin by which a frozen server is noticed.
        let long = lease() / 3 + Duration::from_millis(draw.u64(2_200..3_500));
        let bytes = draw.u64(0..2_000);
        if curfew.is_over() {
            return;
        }
        sleep(wait);
        let from = SystemTime::now();
        match kind {
            Kind::DatabaseKilled => {
                server.kill();
                server.restart();
            }
            Kind::DatabaseCrashed => {
                server.stop_with(SIGQUIT);
                server.restart();
            }
            Kind::DatabaseStopped => {
                server.stop_with(SIGINT);
                server.restart();
            }
            Kind::BackendsTerminated => terminate_backends(server),
            Kind::Cut => proxy.cut(),
            Kind::HalfOpen => proxy.half_open(),
            Kind::Blackhole => through(proxy, Fashion::Blackhole, long),
            Kind::Delayed => through(proxy, Fashion::Delay(Duration::from_secs(2)), long),
            Kind::RepliesSwallowed => through(proxy, Fashion::SwallowReplies { after_bytes: bytes }, long / 3),
            _ => unreachable!("in no deck of a database"),
        }
        faults.note(kind, None, from);
    }
}

fn through(proxy: &Proxy, fashion: Fashion, duration: Duration) {
    proxy.behave(fashion);
    // The fault itself, not a wait for something.
    sleep(duration);
    proxy.behave(Fashion::Forward);
}

fn terminate_backends(server: &TestPostgres) {
    const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'";
    let url = server.url();
    let terminate = async move {
        let mut connection = PgConnection::connect(&url).await?;
        sqlx::query(TERMINATE).execute(&mut connection).await?;
        connection.close().await
    };
    block_on(terminate).expect("the server terminates its backends");
}
