//! Counts over a run. A count that stays zero tells what was not tested.

macro_rules! seen {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Seen {
            $($(#[$doc])* pub $count: u64,)*
            /// Results that one relay had and could not write, at most.
            pub results_waiting_max: usize,
        }

        impl Seen {
            pub fn add(&mut self, other: &Seen) {
                $(self.$count += other.$count;)*
                self.results_waiting_max = self.results_waiting_max.max(other.results_waiting_max);
            }
        }
    };
}

seen! {
    statements,
    calls,
    /// A digest of each step, with its time and message, added up: by it two runs are compared.
    steps,
    fenced,
    unknown_landed,
    unknown_not_landed,
    lapses,
    lost_by_renewal,
    /// Results that landed after their lease, since nobody had taken the message.
    late_settles,
    duplicates,
    parked,
    resumed,
    interrupted,
    stopped_in_a_claim,
    /// Claims of more messages than their plugins run at once.
    claimed_ahead,
    crashed,
    /// Messages that died of their last attempt.
    spent,
    discarded_under_way,
    redriven,
    /// Claims in an ordered topic, of a message that was not the first of its key.
    in_order,
    /// Dead letters that blocked their key until a person let it go on.
    skipped,
    /// Keys that a plugin wished to rest.
    rests,
    /// Times that a topic ceased to be ordered, or was again.
    reordered,
}
