//! One number from which every fault is drawn.

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// The seed of one round. Each part of the harness draws from a stream of its own, so that one part's pace does not shift
/// another's faults.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// `OUTBOXD_CHAOS_SEED` replays; without it every run is new.
    pub fn of_run() -> Seed {
        match std::env::var("OUTBOXD_CHAOS_SEED") {
            Ok(text) => Seed(text.trim().parse().expect("OUTBOXD_CHAOS_SEED is a whole number")),
            Err(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
                Seed(u64::try_from(now.as_millis()).expect("fits"))
            }
        }
    }

    pub fn next(self) -> Seed {
        Seed(self.0.wrapping_add(1))
    }

    /// The stream that belongs to `who`.
    pub fn stream(self, who: &str) -> Rng {
        // FNV-1a: the same on every machine and with every compiler.
        let hash = who
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Rng::with_seed(hash ^ self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
