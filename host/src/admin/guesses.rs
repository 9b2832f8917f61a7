//! How often a peer may name a wrong token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong tokens of one peer within [`WITHIN`]. After them not even the right one is looked at.
const WRONG_MAX: u32 = 10;
pub const WITHIN: Duration = Duration::from_secs(60);

/// Who has more addresses than this guesses from the others freely; the memory stays bounded.
const PEERS_MAX: usize = 10_000;

/// Wrong tokens by peer.
#[derive(Default)]
pub struct Guesses(Mutex<HashMap<IpAddr, Wrong>>);

struct Wrong {
    since: Instant,
    count: u32,
}

impl Guesses {
    /// Whether `peer` may name another token now.
    pub fn may(&self, peer: IpAddr) -> bool {
        let wrong = self.locked();
        wrong.get(&network(peer)).is_none_or(|wrong| wrong.count < WRONG_MAX || is_over(wrong))
    }

    /// Notes that `peer` named a wrong one.
    pub fn wrong(&self, peer: IpAddr) {
        let mut wrong = self.locked();
        if wrong.len() >= PEERS_MAX {
            wrong.retain(|_, wrong| !is_over(wrong));
        }
        let peer = network(peer);
        if wrong.len() >= PEERS_MAX && !wrong.contains_key(&peer) {
            return;
        }
        let now = Instant::now();
        let entry = wrong.entry(peer).or_insert(Wrong { since: now, count: 0 });
        if is_over(entry) {
            *entry = Wrong { since: now, count: 0 };
        }
        entry.count += 1;
    }

    // It stays sound if a holder panicked: every change is a single step.
    fn locked(&self) -> MutexGuard<'_, HashMap<IpAddr, Wrong>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_over(wrong: &Wrong) -> bool {
    wrong.since.elapsed() >= WITHIN
}

/// An IPv6 host may choose among the addresses of its /64, so they count as one.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_guesses_waits_and_the_others_do_not() {
        let guesses = Guesses::default();
        for _ in 0..WRONG_MAX {
            assert!(guesses.may(peer("192.0.2.1")));
            guesses.wrong(peer("192.0.2.1"));
        }

        assert!(!guesses.may(peer("192.0.2.1")));
        assert!(guesses.may(peer("192.0.2.2")));
        tokio::time::advance(WITHIN).await;
        assert!(guesses.may(peer("192.0.2.1")));
        guesses.wrong(peer("192.0.2.1"));
        assert!(guesses.may(peer("192.0.2.1")), "the count began anew");
    }

    #[tokio::test]
    async fn the_addresses_of_one_network_count_as_one() {
        let guesses = Guesses::default();
        for n in 0..WRONG_MAX {
            guesses.wrong(peer(&format!("2001:db8::{n:x}")));
        }

        assert!(!guesses.may(peer("2001:db8::ffff")));
        assert!(guesses.may(peer("2001:db8:0:1::1")));
        assert!(guesses.may(peer("::ffff:192.0.2.1")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_addresses_takes_no_more_memory() {
        let guesses = Guesses::default();
        for n in 0..u32::try_from(PEERS_MAX).unwrap() + 100 {
            guesses.wrong(IpAddr::V4(n.into()));
        }
        assert_eq!(guesses.locked().len(), PEERS_MAX);

        tokio::time::advance(WITHIN).await;
        guesses.wrong(peer("192.0.2.1"));

        assert_eq!(guesses.locked().len(), 1);
    }
}
