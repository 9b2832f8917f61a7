//! Whose turn it is where so many messages of a key may be under way at once: the decision of the stores that take it row by row.
//! PostgreSQL's takes it in one statement, `arrange_limited.sql`.

use outboxd_core::KEY_FAILURES_MAX;

/// A key as it is now.
#[derive(Clone, Default)]
pub(crate) struct LimitedKey<Id> {
    /// One of those whose turn it is, or one that waits for a retry. None: somebody has to look whether another may have its turn.
    pub(crate) head: Option<Id>,
    /// Those whose turn it is.
    pub(crate) turns: Vec<Id>,
    pub(crate) failures: u32,
    pub(crate) rests: bool,
}

/// A due message whose turn it is not.
#[derive(Clone)]
pub(crate) struct Astray<Id> {
    pub(crate) id: Id,
    /// In the order of publishing.
    pub(crate) place: i64,
    /// It is pending; else it is under a lease that was lost.
    pub(crate) waits: bool,
}

/// What becomes of them.
pub(crate) struct Places<Id> {
    /// It is their turn from now on.
    pub(crate) given: Vec<Id>,
    /// They are held from now on.
    pub(crate) behind: Vec<Id>,
    pub(crate) turns: Vec<Id>,
    /// There may be more for whom there is room: what is only held by now was not among those that waited.
    pub(crate) look_again: bool,
}

impl<Id: Clone + PartialEq> LimitedKey<Id> {
    /// How many more messages may have their turn: of a key that rests none, of one that has rested a single one.
    pub(crate) fn room(&self, per_key: usize) -> usize {
        let most = match (self.rests, self.failures >= KEY_FAILURES_MAX) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => per_key,
        };
        most.saturating_sub(self.turns.len())
    }

    /// Whether a message may be claimed.
    pub(crate) fn may_start(&self, id: &Id) -> bool {
        let is_the_one = self.failures < KEY_FAILURES_MAX || self.head.as_ref() == Some(id);
        !self.rests && is_the_one && self.turns.contains(id)
    }

    /// Gives `held` messages and those that are `astray` their places, in publish order; of the held ones at most as many as
    /// there is room are needed.
    pub(crate) fn arrange(&self, room: usize, held: Vec<(i64, Id)>, astray: &[Astray<Id>]) -> Places<Id> {
        let waiting = astray.iter().filter(|one| one.waits && !self.turns.contains(&one.id));
        let mut candidates: Vec<(i64, Id)> = waiting.map(|one| (one.place, one.id.clone())).collect();
        candidates.extend(held);
        candidates.sort_by_key(|(place, _)| *place);
        let given: Vec<Id> = candidates.into_iter().map(|(_, id)| id).take(room).collect();
        let is_behind = |id: &Id| !self.may_start(id) && !given.contains(id);
        let behind: Vec<Id> = astray.iter().map(|one| one.id.clone()).filter(is_behind).collect();
        let kept = self.turns.iter().filter(|id| !behind.contains(id)).cloned();
        let turns = kept.chain(given.iter().cloned()).collect();
        let look_again = given.len() < room && !behind.is_empty();
        Places { given, behind, turns, look_again }
    }

    /// What stands at its head then; `later` waits for a retry.
    pub(crate) fn head_of(&self, places: &Places<Id>, later: Option<Id>) -> Option<Id> {
        // Somebody has to look when it has rested, too.
        if places.look_again || self.rests {
            return None;
        }
        let stays = self.head.clone().filter(|head| places.turns.contains(head));
        stays.or_else(|| places.turns.first().cloned()).or(later)
    }
}
