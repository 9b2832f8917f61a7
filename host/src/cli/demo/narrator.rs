//! What is said while the demo runs: on stderr, with a progress bar where that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Narrator {
    bar: ProgressBar,
    started: Instant,
}

impl Narrator {
    /// For `orders` orders, of which nine in ten arrive.
    pub(super) fn new(orders: u32) -> Self {
        let expected = super::shop::commits_planned(orders) as u64;
        let bar = ProgressBar::with_draw_target(Some(expected), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed:>6}  {bar:40.green} {pos}/{len} delivered");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
        Narrator { bar, started: Instant::now() }
    }

    /// One event, on a line that stays.
    pub(super) fn say(&self, text: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.show(&format!("{seconds:>5.1}s  {text}"));
    }

    /// Text as it is, above the bar.
    pub(super) fn show(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    pub(super) fn progress(&self, delivered: usize) {
        if self.bar.position() == 0 && delivered > 0 {
            self.bar.enable_steady_tick(Duration::from_millis(100));
        }
        self.bar.set_position(delivered as u64);
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
