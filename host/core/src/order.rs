use std::time::Duration;

use crate::{Reason, RetryPolicy, Transition};

/// How the messages of one topic and key follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As it happens: many at a time.
    #[default]
    None,
    /// One at a time in the whole fleet, in publish order. Messages without a key are in no order.
    ByKey { on_dead: OnDead },
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
    /// How long the key rests before its next message, where a plugin asked for `asked`: never longer than the longest wait
    /// between two tries, and not at all where keys are in no order.
    pub fn rest(self, asked: Option<Duration>, policy: &RetryPolicy) -> Duration {
        match self {
            Order::None => Duration::ZERO,
            Order::ByKey { .. } => asked.unwrap_or_default().min(policy.backoff.max),
        }
    }

    /// Whether the next message of the key may go once this is written.
    ///
    /// A message that waits for a retry keeps its key. One that expired frees it even where the dead block: its producer has
    /// said beforehand that it may be missed. Without an order any end frees the key: it may be from before the order ended.
    pub fn frees_key(self, transition: &Transition) -> bool {
        let on_dead = match self {
            Order::None => OnDead::Skip,
            Order::ByKey { on_dead } => on_dead,
        };
        match transition {
            Transition::Delivered => true,
            Transition::Pending { .. } | Transition::Released { .. } => false,
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
    fn a_rest_is_as_long_as_the_plugin_asks_and_the_policy_allows() {
        let policy = RetryPolicy::default();

        assert_eq!(BLOCK.rest(Some(Duration::from_secs(30)), &policy), Duration::from_secs(30));
        assert_eq!(BLOCK.rest(Some(Duration::MAX), &policy), policy.backoff.max);
        assert_eq!(BLOCK.rest(None, &policy), Duration::ZERO);
        assert_eq!(Order::None.rest(Some(Duration::MAX), &policy), Duration::ZERO);
    }

    #[test]
    fn without_order_any_end_frees_the_key() {
        assert!(Order::None.frees_key(&Transition::Delivered));
        assert!(Order::None.frees_key(&dead(Reason::Cancelled)));
    }
}
