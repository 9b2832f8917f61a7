//! The verdict: what the shop knows held against what the receiver saw.

use std::fmt;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::database::Tally;
use super::receiver::Deliveries;
use super::shop::Orders;

/// How many ids are named before the rest is only counted.
const IDS_SHOWN: usize = 5;

/// What the demo came to.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    committed: usize,
    rolled_back: usize,
    /// Distinct committed messages that the receiver accepted.
    delivered: usize,
    /// Messages that took more than one attempt.
    retried: usize,
    /// Accepted more than once, in the order of their ids.
    duplicates: Vec<Uuid>,
    /// Committed and never accepted.
    lost: Vec<Uuid>,
    /// Accepted, though no transaction that wrote them committed.
    phantom: Vec<Uuid>,
    /// Requests whose signature was not right.
    forged: usize,
    /// Messages that the outbox still calls live, or dead.
    unfinished: usize,
    /// Messages a second, from the first order to the last arrival.
    rate: usize,
    /// How many arrived within the best second.
    best_second: usize,
}

impl Verdict {
    pub(super) fn new(orders: &Orders, deliveries: &Deliveries, tally: &Tally, started: Instant) -> Self {
        let accepted = &deliveries.accepted;
        let took = deliveries.arrivals.last().map_or(Duration::MAX, |last| last.duration_since(started));
        let duplicates = accepted.iter().filter(|(_, times)| **times > 1).map(|(id, _)| *id);
        Verdict {
            committed: orders.committed.len(),
            rolled_back: orders.rolled_back.len(),
            delivered: orders.committed.iter().filter(|id| accepted.contains_key(id)).count(),
            retried: tally.retried,
            duplicates: duplicates.collect(),
            lost: orders.committed.iter().filter(|id| !accepted.contains_key(id)).copied().collect(),
            phantom: accepted.keys().filter(|id| !orders.committed.contains(id)).copied().collect(),
            forged: deliveries.forged,
            unfinished: tally.live + tally.dead,
            rate: (accepted.len() as f64 / took.as_secs_f64().max(0.001)) as usize,
            best_second: best_second(&deliveries.arrivals),
        }
    }

    /// Whether every promise was kept. Duplicates break none: at least once is the promise, and they can be told by their id.
    pub(super) fn kept(&self) -> bool {
        self.lost.is_empty()
            && self.phantom.is_empty()
            && self.forged == 0
            && self.unfinished == 0
            && self.committed > 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = format!("both failures included; {} in the best second", grouped(self.best_second));
        let rows: [(&str, usize, &str); 10] = [
            ("committed", self.committed, "transactions: an order and its message"),
            ("rolled back", self.rolled_back, "transactions: neither"),
            ("delivered", self.delivered, "committed messages that the receiver accepted"),
            ("retried", self.retried, "took more than one attempt"),
            ("duplicates", self.duplicates.len(), "accepted again, and recognised by webhook-id"),
            ("lost", self.lost.len(), "committed, never accepted: must be 0"),
            ("phantom", self.phantom.len(), "accepted, never committed: must be 0"),
            ("bad signatures", self.forged, "must be 0"),
            ("unfinished", self.unfinished, "not delivered, says the outbox: must be 0"),
            ("messages/s", self.rate, &rate),
        ];
        for (name, number, meaning) in rows {
            writeln!(f, "  {name:<14} {:>9}   {meaning}", grouped(number))?;
        }
        for (name, ids) in [("duplicates", &self.duplicates), ("lost", &self.lost), ("phantom", &self.phantom)] {
            if !ids.is_empty() {
                writeln!(f, "\n  {name}, by webhook-id:\n{}", named(ids))?;
            }
        }
        writeln!(f)?;
        match self.kept() {
            true => write!(f, "Every committed order arrived, no rolled-back one did."),
            false => write!(f, "A PROMISE WAS BROKEN."),
        }
    }
}

/// The most arrivals within any one second.
fn best_second(arrivals: &[Instant]) -> usize {
    let within = |first: &Instant| {
        let end = arrivals.partition_point(|at| *at < *first + Duration::from_secs(1));
        end - arrivals.partition_point(|at| at < first)
    };
    arrivals.iter().map(within).max().unwrap_or(0)
}

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// One id a line, and how many more there are.
fn named(ids: &[Uuid]) -> String {
    let mut lines: Vec<String> = ids.iter().take(IDS_SHOWN).map(|id| format!("    {id}")).collect();
    if ids.len() > lines.len() {
        lines.push(format!("    and {} more", grouped(ids.len() - lines.len())));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn verdict(committed: &[u128], rolled_back: &[u128], accepted: &[(u128, usize)]) -> Verdict {
        let orders = Orders {
            committed: committed.iter().copied().map(id).collect(),
            rolled_back: rolled_back.iter().copied().map(id).collect(),
        };
        let accepted = accepted.iter().map(|(number, times)| (id(*number), *times)).collect();
        let deliveries = Deliveries { accepted, arrivals: vec![], forged: 0 };
        Verdict::new(&orders, &deliveries, &Tally::default(), Instant::now())
    }

    #[test]
    fn all_committed_and_nothing_else_keeps_the_promise() {
        let verdict = verdict(&[1, 2, 4], &[3], &[(1, 1), (2, 2), (4, 1)]);

        assert!(verdict.kept());
        assert_eq!((verdict.committed, verdict.rolled_back, verdict.delivered), (3, 1, 3));
        assert_eq!(verdict.duplicates, [id(2)]);
    }

    #[test]
    fn a_committed_message_that_never_came_is_lost() {
        let verdict = verdict(&[1, 2], &[], &[(1, 1)]);

        assert_eq!(verdict.lost, [id(2)]);
        assert!(!verdict.kept());
    }

    #[test]
    fn a_rolled_back_or_unknown_message_that_came_is_a_phantom() {
        let verdict = verdict(&[1], &[2], &[(1, 1), (2, 1), (9, 1)]);

        assert_eq!(verdict.phantom, [id(2), id(9)]);
        assert_eq!(verdict.delivered, 1);
        assert!(!verdict.kept());
    }

    #[test]
    fn nothing_at_all_is_no_success() {
        assert!(!verdict(&[], &[], &[]).kept());
    }

    #[test]
    fn a_forged_request_or_an_unfinished_message_breaks_the_promise() {
        let sound = verdict(&[1], &[], &[(1, 1)]);

        assert!(!Verdict { forged: 1, ..sound.clone() }.kept());
        assert!(!Verdict { unfinished: 1, ..sound }.kept());
    }

    #[test]
    fn the_table_names_some_duplicates_and_counts_the_rest() {
        let accepted: Vec<(u128, usize)> = (1..=7).map(|number| (number, 2)).collect();
        let text = verdict(&[1, 2, 3, 4, 5, 6, 7], &[], &accepted).to_string();

        assert!(text.contains(&format!("duplicates, by webhook-id:\n    {}\n", id(1))), "{text}");
        assert!(text.contains("and 2 more"), "{text}");
        assert!(!text.contains("lost, by"), "{text}");
    }

    #[test]
    fn the_best_second_is_found_wherever_it_begins() {
        let start = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| start + Duration::from_millis(*ms)).collect::<Vec<_>>();

        assert_eq!(best_second(&[]), 0);
        assert_eq!(best_second(&at(&[0, 900, 1_000, 1_500, 1_899, 1_900, 5_000])), 4);
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!([grouped(0), grouped(999), grouped(1_800), grouped(1_234_567)], ["0", "999", "1,800", "1,234,567"]);
    }
}
