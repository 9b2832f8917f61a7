use std::time::Duration;

/// So many calls a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(f64);

impl Rate {
    /// Nothing but a finite number above zero is a rate.
    pub fn per_second(calls: f64) -> Option<Rate> {
        (calls.is_finite() && calls > 0.0).then_some(Rate(calls))
    }

    /// How many calls may begin at once after a quiet time: those of a tenth of a second, and at least one.
    pub fn burst(self) -> usize {
        ((self.0 / 10.0) as usize).max(1)
    }
}

/// How many calls a [`Rate`] leaves: a bucket that fills steadily and holds a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    rate: Rate,
    calls: f64,
}

impl Bucket {
    pub fn full(rate: Rate) -> Self {
        Bucket { rate, calls: rate.burst() as f64 }
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// So much time has passed.
    pub fn fill(&mut self, elapsed: Duration) {
        self.calls = (self.calls + elapsed.as_secs_f64() * self.rate.0).min(self.rate.burst() as f64);
    }

    /// How many calls may begin now.
    pub fn whole(&self) -> usize {
        self.calls.max(0.0) as usize
    }

    /// A call begins.
    pub fn take(&mut self) {
        self.calls -= 1.0;
    }

    /// How long until a call may begin; zero where one may. In whole milliseconds, rounded up.
    pub fn until_next(&self) -> Duration {
        let missing = (1.0 - self.calls).max(0.0);
        Duration::from_millis((missing / self.rate.0 * 1000.0).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn in_no_time_do_more_calls_begin_than_the_rate_and_a_burst_allow(
            calls in 0.1..500.0f64, steps in prop::collection::vec((0u64..2000, 0usize..100), 1..50),
        ) {
            let rate = Rate::per_second(calls).unwrap();
            let mut bucket = Bucket::full(rate);
            let (mut seconds, mut begun) = (0.0, 0usize);
            for (ms, wanted) in steps {
                seconds += ms as f64 / 1000.0;
                bucket.fill(Duration::from_millis(ms));
                for _ in 0..wanted.min(bucket.whole()) {
                    bucket.take();
                    begun += 1;
                }
                prop_assert!(begun as f64 <= rate.burst() as f64 + calls * seconds + 1e-6);
            }
        }

        #[test]
        fn who_waits_for_the_next_call_may_begin_it(calls in 0.1..500.0f64) {
            let mut bucket = Bucket::full(Rate::per_second(calls).unwrap());
            while bucket.whole() > 0 {
                bucket.take();
            }

            bucket.fill(bucket.until_next());

            prop_assert!(bucket.whole() >= 1);
        }
    }

    #[test]
    fn a_quiet_time_saves_no_more_than_a_burst() {
        let mut bucket = Bucket::full(Rate::per_second(100.0).unwrap());
        bucket.fill(Duration::from_secs(3600));

        assert_eq!(bucket.whole(), 10);
        assert_eq!(Bucket::full(Rate::per_second(0.5).unwrap()).whole(), 1);
        assert!([0.0, -1.0, f64::NAN, f64::INFINITY].iter().all(|calls| Rate::per_second(*calls).is_none()));
    }
}
