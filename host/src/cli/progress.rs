//! How far long work has come: a line on stderr where that is a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Goes away when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// `doing` stands before the count, as in "redriving".
    pub fn new(doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {msg}: {human_pos} after {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }

    /// So many messages are done.
    pub fn at(&self, count: u64) {
        self.0.set_position(count);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
