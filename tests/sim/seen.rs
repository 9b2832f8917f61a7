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

impl Seen {
    /// A message was given back before a plugin was called. The host's words say why.
    pub fn turned_away(&mut self, error: &str) {
        self.turned_away_by_slow_calls += u64::from(error.starts_with("the calls before it took long"));
        self.turned_away_by_a_parked_plugin += u64::from(error.starts_with("its plugin was parked"));
        self.turned_away_by_a_stop += u64::from(error.starts_with("the relay stopped before its turn"));
    }
}

seen! {
    statements,
    calls,
    /// Statements, and what they did to a message; calls that began or ended; what people did. After each of them the
    /// invariants are checked.
    steps,
    /// A digest of each step that concerns a message, with its time, added up: by it two runs are compared.
    digest,
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
    /// Messages claimed ahead that went back since the calls before them took long.
    turned_away_by_slow_calls,
    /// The same, since their plugin had been parked when their turn came.
    turned_away_by_a_parked_plugin,
    /// The same, since the relay stopped.
    turned_away_by_a_stop,
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
    /// Keys whose target asked for rest, or failed too often, and those whose calls are spaced.
    rests_asked_for,
    rests_of_failures,
    spaced,
    /// Calls that began sooner after another of their key than they may: the other had lost its lease, or was interrupted.
    spaced_less,
    /// Claims of the last message of a key that may be under way, and those that alone try a target that failed.
    limit_reached,
    tries,
    /// Times that a topic ceased to be ordered, or was again.
    reordered,
}
