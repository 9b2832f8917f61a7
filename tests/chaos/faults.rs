//! What was done to the system, and when: it excuses duplicates.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::stage::lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL of a relay.
    Killed,
    /// SIGSTOP of a relay for longer than its lease, then SIGCONT.
    Paused,
    /// The same, seen by everybody else on SQLite: who is paused amid a write holds the only lock there is.
    WriterPaused,
    /// SIGTERM of a relay that then left by itself: excuses nothing.
    Left,
    /// Another version of the plugin, amid the calls of the one before: excuses nothing.
    Swapped,
    /// The relay's own clock an hour ahead, or behind: excuses nothing.
    ClockStepped,
    /// Kill -9 of the postmaster.
    DatabaseKilled,
    /// Immediate stop of the server (SIGQUIT): a crash, in short.
    DatabaseCrashed,
    /// Fast stop of the server (SIGINT).
    DatabaseStopped,
    /// `pg_terminate_backend` of every connection.
    BackendsTerminated,
    /// The server's clock an hour ahead, or behind.
    DatabaseClockStepped,
    /// A relay gets no memory any more (RLIMIT_DATA), until it has ended or has some again.
    MemoryTaken,
    /// No byte more fits on the database's disk.
    DiskFull,
    /// Every connection to the database cut.
    Cut,
    /// Packets swallowed both ways for longer than the statement timeout.
    Blackhole,
    /// Open connections go silent for ever; new ones work.
    HalfOpen,
    /// Every answer of the database comes late.
    Delayed,
    /// Statements reach the database; what it answers does not come back, and the connection is cut.
    RepliesSwallowed,
}

impl Kind {
    pub fn is_crash_of_database(self) -> bool {
        matches!(self, Kind::DatabaseKilled | Kind::DatabaseCrashed)
    }

    /// Whether a message may come again because of it.
    fn is_excuse(self) -> bool {
        !matches!(self, Kind::Left | Kind::Swapped | Kind::ClockStepped)
    }

    /// How long after its end its consequences may still begin.
    fn aftermath(self) -> Duration {
        match self {
            _ if !self.is_excuse() => Duration::ZERO,
            // The request may be under way in the kernel.
            Kind::Killed => Duration::from_millis(250),
            // It wakes up amid a call, and is told only then that its lease is gone.
            Kind::Paused => lease() / 2,
            // A settle is tried again after a second at most; what lapsed meanwhile is claimed as soon as anyone can.
            _ => lease() * 3 / 2,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// The process it hit; nothing where it hit all.
    pub incarnation: Option<u32>,
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Fault {
    pub fn excuses(&self, incarnation: u32) -> bool {
        self.kind.is_excuse() && self.incarnation.is_none_or(|hit| hit == incarnation)
    }

    pub fn overlaps(&self, from: SystemTime, until: SystemTime) -> bool {
        self.from <= until && from <= self.until + self.kind.aftermath()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, until) = (milliseconds(self.from), milliseconds(self.until));
        let whom = self.incarnation.map_or("all".into(), |incarnation| incarnation.to_string());
        write!(f, "{from},{until},{:?},{whom}", self.kind)
    }
}

/// Every fault so far.
#[derive(Default)]
pub struct FaultLog(Mutex<Vec<Fault>>);

impl FaultLog {
    /// Notes what began at `from` and is over now.
    pub fn note(&self, kind: Kind, incarnation: Option<u32>, from: SystemTime) {
        let fault = Fault { kind, incarnation, from, until: SystemTime::now() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub fn all(&self) -> Vec<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub fn milliseconds(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}
