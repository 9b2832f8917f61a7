use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Reason;

/// What a message's row says it is. `held` waits for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Pending,
    Processing,
    Held,
    Delivered,
    Dead,
}

impl State {
    pub const ALL: [State; 5] = [State::Pending, State::Processing, State::Held, State::Delivered, State::Dead];

    /// The word that stands in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Processing => "processing",
            State::Held => "held",
            State::Delivered => "delivered",
            State::Dead => "dead",
        }
    }

    /// The state of that name, or nothing.
    pub fn parse(text: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        State::parse(text)
            .ok_or_else(|| format!("state {text:?} is not one of {}", State::ALL.map(State::as_str).join(", ")))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the message's row becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    Delivered,
    /// Due again after `after`; the attempt is spent.
    Pending {
        after: Duration,
        reason: Reason,
        error: String,
    },
    /// Due again after `after`, the attempt given back; the error stays readable. Goes out by `release`.
    Released {
        after: Duration,
        reason: Reason,
        error: String,
    },
    /// A dead letter. A cancel too: reason `cancelled`.
    Dead {
        reason: Reason,
        error: String,
    },
}

impl Transition {
    /// The same, but due again only when the key has rested.
    pub fn after_rest(mut self, rest: Duration) -> Transition {
        if let Transition::Pending { after, .. } | Transition::Released { after, .. } = &mut self {
            *after = rest.max(*after);
        }
        self
    }

    /// The word for it in history and metrics.
    pub fn result(&self) -> &'static str {
        match self {
            Transition::Delivered => "delivered",
            Transition::Pending { .. } => "retry",
            Transition::Released { .. } => "released",
            Transition::Dead { .. } => "dead",
        }
    }

    /// Reason and error, where it did not deliver.
    pub fn cause(&self) -> Option<(Reason, &str)> {
        match self {
            Transition::Delivered => None,
            Transition::Pending { reason, error, .. }
            | Transition::Released { reason, error, .. }
            | Transition::Dead { reason, error } => Some((*reason, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_waits_until_the_key_has_rested_and_what_has_ended_has_ended() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(60));
        let again = |after| Transition::Pending { after, reason: Reason::Retry, error: "later".into() };

        assert_eq!(again(short).after_rest(long), again(long));
        assert_eq!(again(long).after_rest(short), again(long));
        assert_eq!(Transition::Delivered.after_rest(long), Transition::Delivered);
    }
}
