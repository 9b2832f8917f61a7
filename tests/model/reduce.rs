//! Fewer states for the same behaviour: what can no longer make a difference is forgotten, and what differs by its number alone is
//! one. `main.rs` holds this against the whole space of one message, step by step.

use crate::protocol::{MAX_ATTEMPTS, MAX_LAPSES, MAX_MESSAGES, RELAYS, Relay, Row, RowState, Task, World, Write};

impl<const N: usize> World<N> {
    /// The state that stands for this one and for all that behave alike, under the rules as built.
    pub fn reduced(mut self) -> Self {
        for (message, row) in self.rows.iter_mut().enumerate() {
            row.forget_counts();
            let at_work =
                self.relays.iter().filter_map(|relay| relay.task).any(|task| task.message as usize == message);
            if !at_work {
                row.forget_successes();
            }
        }
        for relay in &mut self.relays {
            let is_paused = relay.is_paused;
            relay.task = relay.task.map(|task| task.reduced(self.rows[task.message as usize], is_paused));
        }
        let named = (0..N).rev().fold(vec![self.sorted()], |worlds, last| {
            let swapped = worlds.iter().flat_map(|world| (0..=last).map(|message| world.swapped(message, last)));
            swapped.collect()
        });
        named.into_iter().min_by_key(World::packed).expect("itself at least")
    }

    /// The same with the names of two messages exchanged.
    fn swapped(mut self, one: usize, other: usize) -> Self {
        self.rows.swap(one, other);
        for task in self.relays.iter_mut().filter_map(|relay| relay.task.as_mut()) {
            task.message = match task.message as usize {
                message if message == one => other as u8,
                message if message == other => one as u8,
                _ => task.message,
            };
        }
        self.sorted()
    }

    /// The whole state in one number: 10 bits a row, 13 a relay.
    pub fn packed(&self) -> u64 {
        const { assert!(10 * MAX_MESSAGES + 13 * RELAYS <= 64 && N <= MAX_MESSAGES) };
        let rows = self.rows.iter().fold(0, |packed, row| {
            let flags = [row.is_over, row.has_succeeded, row.may_repeat];
            bits(
                packed << 7 | u64::from(row.state as u8) << 5 | u64::from(row.attempts) << 2 | u64::from(row.lapses),
                flags,
            )
        });
        self.relays.iter().fold(rows, |packed, relay| {
            let packed = bits(packed, [relay.is_paused, relay.is_stopping]);
            let Some(task) = relay.task else { return packed << 11 };
            let result = task.result.map_or(0, |write| 1 + write as u8);
            let numbers = u64::from(task.message + 1) << 6 | u64::from(task.attempt) << 3 | u64::from(result);
            bits(packed << 8 | numbers, [task.has_the_lease, task.was_discarded, task.is_trusted])
        })
    }
}

fn bits<const N: usize>(packed: u64, flags: [bool; N]) -> u64 {
    flags.into_iter().fold(packed, |packed, flag| packed << 1 | u64::from(flag))
}

impl Row {
    fn forget_counts(&mut self) {
        let is_spent = u32::from(self.attempts) > MAX_ATTEMPTS || u32::from(self.lapses) >= MAX_LAPSES;
        match self.state {
            // Nobody claims it, and a redrive counts anew.
            RowState::Delivered | RowState::Dead => (self.attempts, self.lapses) = (0, 0),
            // It is refused, for whichever reason.
            _ if is_spent => (self.attempts, self.lapses) = (MAX_ATTEMPTS as u8 + 1, MAX_LAPSES as u8),
            _ => {}
        }
        // What may come again has its explanation, however often it succeeded.
        self.has_succeeded &= !self.may_repeat;
    }

    /// No relay works on it: of what is finished nothing can come but by a redrive, which explains what follows.
    fn forget_successes(&mut self) {
        if matches!(self.state, RowState::Delivered | RowState::Dead) {
            (self.has_succeeded, self.may_repeat) = (false, true);
        }
    }
}

impl Task {
    fn reduced(mut self, row: Row, is_paused: bool) -> Self {
        if self.has_the_lease {
            self.attempt = row.attempts;
        } else {
            // Whatever it says is fenced.
            self.attempt = 0;
            self.result = self.result.map(|_| Write::Dead);
        }
        if self.result.is_some() {
            self.was_discarded = false;
            // To give the result up and to be fenced is the same.
            self.is_trusted &= self.has_the_lease;
        }
        if is_paused {
            // It notices when it wakes up.
            self.is_trusted &= self.has_the_lease && !row.is_over;
        }
        self
    }
}

impl<const N: usize> World<N> {
    /// How far the end is, at most, once faults have stopped: each state but the last has a next one that is nearer.
    pub fn distance(&self) -> u32 {
        let held = |message: usize| {
            let mut tasks = self.relays.iter().filter_map(|relay| relay.task);
            tasks.any(|task| task.message as usize == message && task.has_the_lease)
        };
        let row = |(message, row): (usize, &Row)| match row.state {
            RowState::Delivered | RowState::Dead => 0,
            RowState::Processing if held(message) => 0,
            RowState::Processing if !row.is_over => 9,
            _ => 8,
        };
        let relay = |relay: &Relay| {
            let task = relay.task.map_or(0, |task| match (task.has_the_lease, task.result) {
                (true, Some(Write::Pending | Write::Released)) => 12,
                (true, None) => 6,
                (true, Some(Write::Delivered | Write::Dead)) => 4,
                (false, None) => 2,
                (false, Some(_)) => 1,
            });
            task + u32::from(relay.is_paused) + u32::from(relay.is_stopping)
        };
        self.rows.iter().enumerate().map(row).sum::<u32>() + self.relays.iter().map(relay).sum::<u32>()
    }
}
