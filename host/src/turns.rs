//! When it has to be chosen whose turn it is, where keys are a unit of delivery: that costs as much as a claim.

use std::collections::HashMap;
use std::time::Duration;

use outboxd_core::{Claim, Lane, Order};
use outboxd_store::Hold;
use tokio::time::Instant;

/// So long a key that is new, or was let go, may wait for its turn while claims find enough of others.
const EVERY: Duration = Duration::from_millis(100);

/// When that is due again.
pub struct Turns {
    /// Before the next claim, since the last one found too few.
    wanted: Option<Hold>,
    /// From then on anyhow.
    next: Instant,
    /// And from then on so that all find their places, lest what waits for a key that does not go on looks like work that is late.
    next_for_all: Instant,
    all_every: Duration,
}

/// How far a claim reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    Something,
    Nothing,
    /// Nothing, but messages that lost a lease were passed over.
    NothingSound,
}

impl Turns {
    /// All find their places at once, and then every `all_every`.
    pub fn new(now: Instant, all_every: Duration) -> Self {
        Turns { wanted: Some(Hold::All), next: now, next_for_all: now, all_every }
    }

    /// What is to be held before the next claim; nothing where nobody has to look. Where it is written, say so with
    /// [`Turns::arranged`].
    pub fn due(&self, now: Instant) -> Option<Hold> {
        match self.wanted {
            _ if now >= self.next_for_all => Some(Hold::All),
            Some(hold) => Some(hold),
            None => (now >= self.next).then_some(Hold::Headless),
        }
    }

    pub fn arranged(&mut self, hold: Hold, now: Instant) {
        self.wanted = None;
        self.next = now + EVERY;
        if hold == Hold::All {
            self.next_for_all = now + self.all_every;
        }
    }

    /// What was claimed, after so much was arranged; which lanes came back short; and whether a plugin of theirs could begin more at
    /// once than it has.
    pub fn claimed(
        &mut self,
        claimed: Claimed,
        arranged: Option<(Hold, u64)>,
        short: &Short<'_>,
        has_idle_slots: bool,
    ) {
        // A look at topics without keys says nothing of the others.
        if short.topics.is_empty() {
            return;
        }
        // Others may stand behind those that were in the way.
        let hidden = claimed == Claimed::Something && matches!(arranged, Some((Hold::All, 1..))) && short.finds_nothing;
        // Where all was arranged and nothing found its place, there is nothing.
        let is_over = claimed == Claimed::Nothing && arranged == Some((Hold::All, 0));
        // The end of a turn gives the next of an ordered key its own, but not of one that is limited.
        let limited = claimed == Claimed::Something && short.is_limited;
        self.wanted = match hidden || has_idle_slots && !is_over {
            true => Some(Hold::All),
            false => limited.then_some(Hold::Headless),
        };
    }

    /// Whether the next look does more than this one did.
    pub fn are_wanted(&self) -> bool {
        self.wanted.is_some()
    }
}

/// The lanes in which keys are a unit of delivery, and of which less was claimed than asked for.
#[derive(Default)]
pub struct Short<'a> {
    pub topics: Vec<&'a str>,
    is_limited: bool,
    /// Of one of them nothing was claimed.
    finds_nothing: bool,
}

impl<'a> Short<'a> {
    pub fn of(lanes: &'a [Lane], claims: &[Claim]) -> Self {
        let mut claimed: HashMap<&str, u32> = HashMap::new();
        for claim in claims.iter().filter(|claim| claim.order != Order::None) {
            *claimed.entry(&claim.message.topic).or_default() += 1;
        }
        let mut short = Short::default();
        for lane in lanes.iter().filter(|lane| lane.order != Order::None) {
            let found = claimed.get(lane.topic.as_str()).copied().unwrap_or(0);
            if found < lane.slots {
                short.topics.push(&lane.topic);
                short.is_limited |= matches!(lane.order, Order::Limited { .. });
                short.finds_nothing |= found == 0;
            }
        }
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lane_that_finds(claimed: u32) -> Short<'static> {
        Short { topics: vec!["a"], is_limited: false, finds_nothing: claimed == 0 }
    }

    /// All have found their places just now.
    fn arranged() -> (Turns, Instant) {
        let now = Instant::now();
        let mut turns = Turns::new(now, SECOND);
        assert_eq!(turns.due(now), Some(Hold::All), "at first all do");
        turns.arranged(Hold::All, now);
        (turns, now)
    }

    #[test]
    fn claims_that_leave_no_slot_idle_are_not_arranged_for_but_now_and_then() {
        let (mut turns, now) = arranged();

        turns.claimed(Claimed::Something, Some((Hold::All, 9)), &lane_that_finds(1), false);

        assert_eq!(turns.due(now + EVERY / 2), None);
        assert_eq!(turns.due(now + EVERY), Some(Hold::Headless));
        turns.arranged(Hold::Headless, now + EVERY);
        assert_eq!(turns.due(now + EVERY), None);
        assert_eq!(turns.due(now + SECOND), Some(Hold::All), "what waits for long is held");
    }

    #[test]
    fn a_claim_that_leaves_slots_idle_has_all_arranged_before_the_next_one_by_key() {
        let (mut turns, now) = arranged();

        turns.claimed(Claimed::Something, None, &lane_that_finds(1), true);
        turns.claimed(Claimed::Something, None, &Short::default(), false);

        assert_eq!(turns.due(now), Some(Hold::All), "a look at topics without keys says nothing of the others");
    }

    #[test]
    fn where_all_was_arranged_and_nothing_is_found_there_is_nothing_unless_some_were_passed_over() {
        let after = |claimed, arranged_for| {
            let (mut turns, _) = arranged();
            turns.claimed(claimed, arranged_for, &lane_that_finds(0), true);
            turns.are_wanted()
        };

        assert!(!after(Claimed::Nothing, Some((Hold::All, 0))));
        assert!(after(Claimed::NothingSound, Some((Hold::All, 0))), "the careful look has to arrange");
        assert!(after(Claimed::Nothing, Some((Hold::All, 1))));
        assert!(after(Claimed::Nothing, Some((Hold::Headless, 0))) && after(Claimed::Nothing, None));
    }

    #[test]
    fn a_topic_that_finds_nothing_behind_what_was_in_the_way_is_looked_at_again_though_its_plugin_is_busy() {
        let after = |arranged_for, short: &Short<'_>| {
            let (mut turns, now) = arranged();
            turns.claimed(Claimed::Something, arranged_for, short, false);
            turns.due(now)
        };

        assert_eq!(after(Some((Hold::All, 500)), &lane_that_finds(0)), Some(Hold::All));
        assert_eq!(after(Some((Hold::All, 0)), &lane_that_finds(0)), None);
        assert_eq!(after(Some((Hold::All, 500)), &lane_that_finds(1)), None);
    }

    #[test]
    fn limited_keys_get_their_turns_before_each_claim_that_finds_too_few() {
        let (mut turns, now) = arranged();

        turns.claimed(Claimed::Something, None, &Short { is_limited: true, ..lane_that_finds(1) }, false);

        assert_eq!(turns.due(now), Some(Hold::Headless));
    }
}
