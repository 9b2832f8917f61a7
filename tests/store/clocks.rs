//! The database's clock decides what hosts must agree on: where a server's is an hour ahead of the host's, or behind, nothing
//! is different. The bodies are those of the other modules.

use std::sync::LazyLock;

use outboxd_test_support::clock::FakeClock;
use outboxd_test_support::postgres::TestPostgres;

use crate::backend::TestStore;

const HOUR_S: i64 = 3600;

type Server = LazyLock<Option<(FakeClock, TestPostgres)>>;

static AHEAD: Server = LazyLock::new(|| server(HOUR_S));
static BEHIND: Server = LazyLock::new(|| server(-HOUR_S));

/// Nothing where its clock cannot be set.
fn server(ahead_s: i64) -> Option<(FakeClock, TestPostgres)> {
    let clock = FakeClock::new()?;
    clock.set(ahead_s);
    let server = TestPostgres::start_by(&clock);
    Some((clock, server))
}

macro_rules! whatever_the_clock {
    ($($module:ident $body:ident)*) => {
        by_the_clock_of!(ahead AHEAD $($module $body)*);
        by_the_clock_of!(behind BEHIND $($module $body)*);
    };
}

macro_rules! by_the_clock_of {
    ($where:ident $server:ident $($module:ident $body:ident)*) => {
        mod $where {
            $(#[tokio::test] async fn $body() {
                let Some((_, server)) = &*super::$server else { return };
                crate::$module::$body(super::TestStore::postgres_on(server).await).await
            })*
        }
    };
}

whatever_the_clock! {
    claim a_claim_leaves_future_messages_and_other_topics_alone
    claim a_claimed_message_is_not_claimed_again_while_its_lease_lasts
    claim a_lapsed_lease_is_counted_and_replaced
    claim a_message_past_its_expiry_is_marked
    claim a_delayed_message_is_due_after_its_delay
    claim due_topics_come_oldest_first_with_their_wait
    lease a_renewed_lease_lasts_from_now
    lease a_lost_lease_is_not_renewed
    lease a_lapsed_lease_that_nobody_took_is_renewed
    lease a_released_message_waits_as_long_as_told
    settle a_retry_is_due_after_its_delay_and_keeps_its_attempt
    settle a_late_result_lands_while_nobody_has_taken_the_message
    admin a_redrive_takes_the_oldest_deaths_and_spreads_them
    admin a_purge_goes_by_the_age_of_the_end
    keys a_key_rests_as_long_as_its_settlement_says
}
