//! The relay's slots: a call under way takes one, and a quick plugin has a little of its work claimed ahead of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboxd_core::{Bucket, Rate};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::handler::Route;

/// A plugin has at most so much of its own work claimed ahead: enough to hide a claim, little enough that a stop, a crash or
/// a plugin that starts to hang concerns few messages.
const AHEAD: Duration = Duration::from_millis(50);

/// Messages that a relay has claimed ahead, at most: a claim takes half of them or more at a time, which costs it ten milliseconds or so.
const AHEAD_MAX: usize = 1024;

/// Their payloads, of one plugin, at most, as far as the largest of late foretells them.
const AHEAD_BYTES_MAX: usize = 8 << 20;

/// The slots of one relay, and who uses them.
pub struct Slots {
    total: usize,
    plugins: Mutex<HashMap<Arc<str>, PluginSlots>>,
    room: Notify,
}

/// One plugin's part.
struct PluginSlots {
    /// Messages that run or wait for their turn.
    held: usize,
    concurrency: usize,
    /// Lets as many run as the plugin's concurrency says.
    gate: Arc<Semaphore>,
    pace: Pace,
    /// Where the plugin has a rate: what it leaves, and when that was counted.
    allowance: Option<(Bucket, Instant)>,
}

/// One claimed message of a plugin, which runs or waits for its turn. Given back when dropped.
pub struct Ticket {
    slots: Arc<Slots>,
    pub plugin: Arc<str>,
    gate: Arc<Semaphore>,
}

impl Slots {
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Slots { total, plugins: Mutex::default(), room: Notify::new() })
    }

    /// Takes a ticket of the route's plugin for a message of so many bytes.
    pub fn take(self: &Arc<Self>, route: &Route, payload_bytes: usize) -> Ticket {
        let mut plugins = self.plugins();
        let slots = plugins.entry(route.plugin.clone()).or_insert_with(|| PluginSlots::new(route.concurrency));
        // A new version brought another number. What was claimed before goes by the one it knew.
        if slots.concurrency != route.concurrency {
            slots.concurrency = route.concurrency;
            slots.gate = gate(route.concurrency);
        }
        slots.keep_to(route.rate);
        if let Some((bucket, _)) = &mut slots.allowance {
            bucket.take();
        }
        slots.held += 1;
        slots.pace.payload_bytes_max = slots.pace.payload_bytes_max.max(payload_bytes);
        Ticket { slots: self.clone(), plugin: route.plugin.clone(), gate: slots.gate.clone() }
    }

    /// Returns when there was room for a claim since the last return. May be dropped.
    pub async fn room(&self) {
        self.room.notified().await;
    }

    /// Who holds how much.
    pub fn usage(&self) -> Usage {
        let mut plugins = self.plugins();
        let held = plugins.iter_mut().filter(|(_, slots)| slots.held > 0).map(|(plugin, slots)| {
            let running = slots.held.min(slots.concurrency);
            (plugin.clone(), PluginUsage { held: slots.held, running, ahead: slots.ahead() })
        });
        let plugins_held = held.collect();
        let allowed = plugins.iter_mut().filter_map(|(plugin, slots)| Some((plugin.clone(), *slots.allowance()?)));
        Usage { total: self.total, plugins: plugins_held, allowed: allowed.collect() }
    }

    // The map stays sound if a holder panicked: every change is a single step.
    fn plugins(&self) -> MutexGuard<'_, HashMap<Arc<str>, PluginSlots>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PluginSlots {
    fn new(concurrency: usize) -> Self {
        PluginSlots { held: 0, concurrency, gate: gate(concurrency), pace: Pace::new(), allowance: None }
    }

    /// Goes by that rate from now on.
    fn keep_to(&mut self, rate: Option<Rate>) {
        if self.allowance.map(|(bucket, _)| bucket.rate()) != rate {
            self.allowance = rate.map(|rate| (Bucket::full(rate), Instant::now()));
        }
    }

    /// What its rate leaves by now.
    fn allowance(&mut self) -> Option<&mut Bucket> {
        let (bucket, filled) = self.allowance.as_mut()?;
        let now = Instant::now();
        bucket.fill(now - *filled);
        *filled = now;
        Some(bucket)
    }

    /// How many messages may wait. None where no slot serves two in a moment: slow calls that end together are not quick.
    fn ahead(&mut self) -> usize {
        Some(self.pace.ahead()).filter(|ahead| *ahead > self.concurrency).unwrap_or(0)
    }
}

fn gate(concurrency: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS)))
}

impl Ticket {
    /// The right to run, where it need not be waited for.
    pub fn turn_now(&self) -> Option<OwnedSemaphorePermit> {
        self.gate.clone().try_acquire_owned().ok()
    }

    /// Another message of the plugin waits for its turn.
    pub fn is_awaited(&self) -> bool {
        self.slots.plugins().get(&self.plugin).is_some_and(|slots| slots.held > slots.concurrency)
    }

    /// Waits for the right to run: as many do as the plugin's concurrency says. First come, first served; may be dropped.
    pub async fn turn(&self) -> OwnedSemaphorePermit {
        self.gate.clone().acquire_owned().await.expect("the gate is never closed")
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut plugins = self.slots.plugins();
        let Some(slots) = plugins.get_mut(&self.plugin) else { return };
        slots.held -= 1;
        slots.pace.ended += 1;
        // While plenty waits nobody is told: claims of a message each would be the consequence.
        let room = slots.held <= slots.concurrency + slots.ahead() / 2;
        drop(plugins);
        if room {
            self.slots.room.notify_one();
        }
    }
}

/// How quickly a plugin's messages end.
struct Pace {
    since: Instant,
    ended: usize,
    payload_bytes_max: usize,
    ahead: usize,
}

impl Pace {
    fn new() -> Self {
        Pace { since: Instant::now(), ended: 0, payload_bytes_max: 1, ahead: 0 }
    }

    /// How many messages the plugin ends in [`AHEAD`]; counted anew each time so long has passed.
    fn ahead(&mut self) -> usize {
        let elapsed = self.since.elapsed();
        if elapsed >= AHEAD {
            let ended = self.ended as f64 * (AHEAD.as_secs_f64() / elapsed.as_secs_f64());
            self.ahead = (ended as usize).min(AHEAD_MAX).min(AHEAD_BYTES_MAX / self.payload_bytes_max);
            // A large payload is forgotten slowly, half of it in seven seconds: the next one may not be far.
            let remembered = self.payload_bytes_max - self.payload_bytes_max.div_ceil(200);
            (self.since, self.ended, self.payload_bytes_max) = (Instant::now(), 0, remembered.max(1));
        }
        self.ahead
    }
}

/// A picture of the slots at one moment.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    total: usize,
    plugins: HashMap<Arc<str>, PluginUsage>,
    /// What the rates of plugins leave that ever ran.
    allowed: HashMap<Arc<str>, Bucket>,
}

/// One plugin's part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PluginUsage {
    /// Messages that run or wait for their turn.
    pub held: usize,
    /// Those that may run.
    pub running: usize,
    /// How many may wait.
    pub ahead: usize,
}

impl Usage {
    #[cfg(test)]
    pub fn new(total: usize, plugins: HashMap<Arc<str>, PluginUsage>) -> Usage {
        Usage { total, plugins, allowed: HashMap::new() }
    }

    /// Nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.plugins.is_empty()
    }

    /// Calls take every slot and nothing may be claimed ahead.
    pub fn is_full(&self) -> bool {
        self.free() == 0 && self.plugins.values().all(|plugin| plugin.ahead == 0)
    }

    /// Something was claimed ahead and waits for its turn.
    pub fn has_waiting(&self) -> bool {
        self.plugins.values().any(|plugin| plugin.held > plugin.running)
    }

    /// How many plugins hold a message.
    pub fn plugins(&self) -> usize {
        self.plugins.len()
    }

    pub fn of(&self, plugin: &str) -> PluginUsage {
        self.plugins.get(plugin).copied().unwrap_or_default()
    }

    /// How many calls of a plugin may begin as far as its rate is concerned.
    pub fn allowed(&self, route: &Route) -> usize {
        let Some(rate) = route.rate else { return usize::MAX };
        self.bucket(route).map_or(rate.burst(), Bucket::whole)
    }

    /// How long until a plugin may begin a call whose rate leaves none.
    pub fn until_allowed(&self, route: &Route) -> Option<Duration> {
        self.bucket(route).filter(|bucket| bucket.whole() == 0).map(Bucket::until_next)
    }

    /// What the plugin's rate leaves, unless a new version has brought another rate since its last call.
    fn bucket(&self, route: &Route) -> Option<&Bucket> {
        self.allowed.get(&route.plugin).filter(|bucket| Some(bucket.rate()) == route.rate)
    }

    /// How many messages may still be claimed ahead.
    pub fn room_ahead(&self) -> usize {
        let waiting: usize = self.plugins.values().map(|plugin| plugin.held - plugin.running).sum();
        AHEAD_MAX.saturating_sub(waiting)
    }

    /// Slots that no call takes.
    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.plugins.values().map(|plugin| plugin.running).sum())
    }
}

impl PluginUsage {
    /// How many may be claimed ahead when calls may take `granted` slots more. By half of what may wait or nothing: a claim
    /// of a few messages costs as much as one of many.
    pub fn room_ahead(self, granted: usize, concurrency: usize) -> usize {
        let will_hold = self.held + granted;
        let room = (concurrency + self.ahead).saturating_sub(will_hold);
        if will_hold >= concurrency && room >= self.ahead.div_ceil(2) { room } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_quick_plugin_may_hold_as_much_ahead_as_it_ends_in_a_moment() {
        assert_eq!(ahead_after(100, 150).await, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_ahead_has_a_bound_in_messages_and_one_in_bytes() {
        assert_eq!(ahead_after(10_000, 150).await, AHEAD_MAX);
        assert_eq!(ahead_after(10_000, 1 << 20).await, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_begins_to_hang_gets_nothing_ahead() {
        let mut pace = Pace { ended: 100, ..Pace::new() };
        tokio::time::advance(AHEAD).await;
        assert_eq!(pace.ahead(), 100);

        tokio::time::advance(AHEAD).await;

        assert_eq!(pace.ahead(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_calls_that_end_together_are_not_quick_ones() {
        let ended_of = async |ended: usize| {
            let mut slots = PluginSlots::new(8);
            slots.pace.ended = ended;
            tokio::time::advance(AHEAD).await;
            slots.ahead()
        };

        assert_eq!((ended_of(8).await, ended_of(9).await), (0, 9));
    }

    #[test]
    fn what_runs_does_not_wait() {
        let usage = |held| Usage::new(64, [("slow".into(), PluginUsage { held, running: 8, ahead: 0 })].into());

        assert!(!usage(8).has_waiting() && usage(9).has_waiting());
    }

    #[test]
    fn ahead_is_claimed_by_half_or_not_at_all() {
        let waiting = |waiting: usize| PluginUsage { held: 16 + waiting, running: 16, ahead: 100 };

        assert_eq!(waiting(0).room_ahead(0, 16), 100);
        assert_eq!(waiting(50).room_ahead(0, 16), 50);
        assert_eq!(waiting(51).room_ahead(0, 16), 0);
    }

    async fn ahead_after(ended: usize, payload_bytes_max: usize) -> usize {
        let mut pace = Pace { ended, payload_bytes_max, ..Pace::new() };
        tokio::time::advance(AHEAD).await;
        pace.ahead()
    }
}
