//! What a round came to: how many messages of each class, and examples of what must not be.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::Kind;
use crate::sink::Delivery;

/// The count of each class, and an example or more of what must not be.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Committed.
    pub messages: usize,
    pub rolled_back: usize,
    /// Commits without an answer, and how many of them had been done.
    pub unknown: usize,
    pub unknown_committed: usize,
    /// Delivered once, without a lease lost.
    pub ok: usize,
    /// Delivered once, after a lease was lost.
    pub recovered: usize,
    /// Delivered again, by the kind of fault that explains it. A lapse that a relay told of without a fault of ours counts
    /// apart, and so does a target that did not answer while the plugin waited.
    pub duplicates: BTreeMap<Cause, usize>,
    /// The most that one fault has caused; of lapses and silences, which have no fault, all.
    pub duplicates_max: BTreeMap<Cause, usize>,
    pub lost: Vec<String>,
    pub phantom: Vec<String>,
    pub unexplained: Vec<String>,
    /// Pairs of messages that came one after the other in the order of their key.
    pub in_order: usize,
    /// Whatever else must not be.
    pub broken: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Fault(Kind),
    Lapse,
    Silence,
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.phantom.is_empty() && self.unexplained.is_empty() && self.broken.is_empty()
    }

    /// How many deliveries too many there were.
    pub fn duplicates(&self) -> usize {
        self.duplicates.values().sum::<usize>() + self.unexplained.len()
    }
}

/// One message's deliveries, to be read by a person.
pub struct Story<'a>(pub &'a [&'a Delivery]);

impl fmt::Display for Story<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for delivery in self.0 {
            let at = crate::faults::milliseconds(delivery.at);
            let answered = delivery.answered.map(crate::faults::milliseconds);
            write!(f, "[incarnation {} at {at}, answered {answered:?}] ", delivery.incarnation)?;
        }
        Ok(())
    }
}
