use std::time::Duration;

use crate::{Reason, Transition};

/// How the messages of one topic and key follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As it happens: many at a time.
    #[default]
    None,
    /// One at a time in the whole fleet, in publish order. Messages without a key are in no order.
    ByKey { on_dead: OnDead },
    /// In no order, but at most so many at a time in the whole fleet. Messages without a key are not counted.
    Limited { per_key: u32 },
}

/// What a dead letter does to its key in an ordered topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The later messages of its key wait until a person redrives or skips it.
    #[default]
    Block,
    /// The next message of its key goes on.
    Skip,
}

impl Order {
    /// The transition of a message whose key rests so long: while it keeps its turn, it waits itself. Without its turn it will be
    /// held like any other of its key.
    pub fn after_rest(self, transition: Transition, rest: Duration) -> Transition {
        if self.frees_key(&transition) { transition } else { transition.after_rest(rest) }
    }

    /// Whether the next message of the key may go once this is written.
    ///
    /// A message that waits for a retry keeps its key, where keys are in order. One that expired frees it even where the dead
    /// block: its producer has said beforehand that it may be missed. Without an order any end frees the key: it may be from
    /// before the order ended.
    pub fn frees_key(self, transition: &Transition) -> bool {
        let on_dead = match self {
            Order::None | Order::Limited { .. } => OnDead::Skip,
            Order::ByKey { on_dead } => on_dead,
        };
        match transition {
            Transition::Delivered => true,
            Transition::Pending { .. } => matches!(self, Order::Limited { .. }),
            Transition::Released { .. } => false,
            Transition::Dead { reason: Reason::Expired, .. } => true,
            Transition::Dead { .. } => on_dead == OnDead::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Order = Order::ByKey { on_dead: OnDead::Block };
    const SKIP: Order = Order::ByKey { on_dead: OnDead::Skip };

    fn dead(reason: Reason) -> Transition {
        Transition::Dead { reason, error: "no".into() }
    }

    #[test]
    fn a_delivered_message_frees_its_key_and_one_that_comes_again_keeps_it() {
        let (after, reason) = (Duration::ZERO, Reason::Retry);
        let again = Transition::Pending { after, reason, error: "later".into() };
        let released = Transition::Released { after, reason, error: "stop".into() };
        for order in [BLOCK, SKIP] {
            assert!(order.frees_key(&Transition::Delivered));
            assert!(!order.frees_key(&again) && !order.frees_key(&released));
        }
    }

    #[test]
    fn a_dead_message_keeps_its_key_where_the_dead_block_unless_it_expired() {
        assert!(!BLOCK.frees_key(&dead(Reason::Cancelled)));
        assert!(BLOCK.frees_key(&dead(Reason::Expired)));
        assert!(SKIP.frees_key(&dead(Reason::Cancelled)));
    }

    #[test]
    fn where_keys_are_limited_a_message_that_waits_for_a_retry_frees_its_turn_and_one_given_back_keeps_it() {
        let limited = Order::Limited { per_key: 2 };
        let (after, reason) = (Duration::ZERO, Reason::Retry);
        let again = Transition::Pending { after, reason, error: "later".into() };
        let released = Transition::Released { after, reason, error: "stop".into() };

        assert!(limited.frees_key(&again) && !limited.frees_key(&released));
        assert!(limited.frees_key(&Transition::Delivered) && limited.frees_key(&dead(Reason::Cancelled)));
    }

    #[test]
    fn a_message_that_keeps_its_turn_waits_as_long_as_its_key_rests_and_one_that_loses_it_as_long_as_it_would() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(60));
        let again = |after| Transition::Pending { after, reason: Reason::Retry, error: "later".into() };

        assert_eq!(BLOCK.after_rest(again(short), long), again(long));
        assert_eq!(Order::Limited { per_key: 1 }.after_rest(again(short), long), again(short));
    }

    #[test]
    fn without_order_any_end_frees_the_key() {
        assert!(Order::None.frees_key(&Transition::Delivered));
        assert!(Order::None.frees_key(&dead(Reason::Cancelled)));
    }
}
