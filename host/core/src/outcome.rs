use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What one attempt came to: the plugin's answer, or what the host saw in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// `after` is the plugin's wish; the policy clamps it.
    Retry {
        error: String,
        after: Option<Duration>,
    },
    Cancel {
        error: String,
    },
    /// No answer: trap, deadline, cpu, memory, … `blame` says whether the attempt counts.
    Fault {
        reason: Reason,
        error: String,
        blame: Blame,
    },
    /// The host will not hand it over: exhausted, crashed, too large, expired. No plugin ran.
    Refused {
        reason: Reason,
        error: String,
    },
}

/// Whose fault a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A healthy plugin failed on this one: the attempt is spent.
    Message,
    /// The version fails on everything: its topic is parked, the attempt given back.
    Plugin,
    /// Shutdown, overload, no plugin: the attempt given back.
    Host,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// The typed cause the host saw for an attempt that did not deliver.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// The word that stands in the table, in metrics and in messages to people.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$variant => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// The plugin asked for another try.
    Retry = "retry",
    /// The plugin gave the message up.
    Cancelled = "cancelled",
    /// The plugin trapped, panicked or exited.
    Trap = "trap",
    /// The call took longer than its wall deadline.
    Deadline = "deadline",
    /// The call spent its CPU budget.
    Cpu = "cpu",
    /// The call asked for more memory than its limit.
    Memory = "memory",
    /// The plugin failed after the host refused it a destination or a secret.
    Denied = "denied",
    /// The message had spent its attempts when it was claimed.
    Exhausted = "exhausted",
    /// The message's leases lapsed too often without a settle: it probably kills its relay.
    Crashed = "crashed",
    /// The payload is larger than the limit.
    TooLarge = "too-large",
    /// The message's `expires_at` had passed.
    Expired = "expired",
    /// The relay stopped before the call ended.
    Interrupted = "interrupted",
    /// The host had no room for the call.
    Overload = "overload",
    /// The plugin of the topic went away between claim and call.
    Unrouted = "unrouted",
    /// The host itself failed during the call: a bug of outboxd.
    Panic = "panic",
    /// The lease of the attempt before was lost without a result. Stands on a message that was claimed anew, until that
    /// attempt is settled.
    Lapsed = "lapsed",
    /// A person discarded the message.
    Discarded = "discarded",
}

impl FromStr for Reason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Reason::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or_else(|| {
            let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
            format!("reason {text:?} is not one of {}", known.join(", "))
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
