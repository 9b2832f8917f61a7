//! Where log lines go: into a bounded queue, and from there by a thread to stderr. Whoever reads stderr may stand still or go
//! away: the relay works on, lines are dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// So much waits for a reader at most. Bytes.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// How long the end of the process waits for a reader.
const LAST_WORDS: Duration = Duration::from_millis(500);

static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// Logs to stderr. `OUTBOXD_LOG` filters as in `debug` or `outboxd=debug,guest=info`; default `info`. Called once.
pub fn start() {
    use std::io::IsTerminal as _;

    let queue = QUEUE.get_or_init(|| {
        let queue = Arc::new(Queue::default());
        let written = queue.clone();
        std::thread::spawn(move || written.write_to(io::stderr()));
        queue
    });
    let filter = std::env::var("OUTBOXD_LOG").ok().filter(|filter| !filter.trim().is_empty());
    let filter = filter.unwrap_or_else(|| "info".into());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        say(&format!("outboxd: OUTBOXD_LOG={filter:?} is no filter ({error}); using \"info\""));
        EnvFilter::new("info")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Writer(queue.clone()))
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// Writes one line to stderr, behind the log lines that wait.
pub fn say(text: &str) {
    match QUEUE.get() {
        Some(queue) => queue.push(format!("{text}\n").as_bytes()),
        // A reader that went away can be told nothing.
        None => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Waits a moment until what was logged is written. Called where the process ends.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.drained(LAST_WORDS);
    }
}

#[derive(Default)]
struct Queue {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    /// A line was taken and is not written yet.
    writing: bool,
}

impl Queue {
    /// Never waits for the reader of stderr.
    fn push(&self, line: &[u8]) {
        let mut lines = self.lines();
        if lines.bytes + line.len() > WAITING_BYTES_MAX {
            lines.dropped += 1;
            metrics::counter!("outboxd_log_lines_dropped_total").increment(1);
            return;
        }
        lines.bytes += line.len();
        lines.waiting.push_back(line.to_vec());
        self.changed.notify_all();
    }

    /// Writes every line, for ever. An error is a reader that went away: its lines are lost.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let (line, dropped) = self.take();
            let _ = out.write_all(&line);
            if dropped > 0 {
                let told = format!("outboxd: {dropped} log lines were dropped: nothing read stderr for a while\n");
                let _ = out.write_all(told.as_bytes());
            }
            self.lines().writing = false;
            self.changed.notify_all();
        }
    }

    fn take(&self) -> (Vec<u8>, u64) {
        let mut lines = self.lines();
        loop {
            if let Some(line) = lines.waiting.pop_front() {
                lines.bytes -= line.len();
                lines.writing = true;
                // Told when the backlog from before the gap is written.
                let dropped = if lines.waiting.is_empty() { std::mem::take(&mut lines.dropped) } else { 0 };
                return (line, dropped);
            }
            lines = self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn drained(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut lines = self.lines();
        while lines.writing || !lines.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            lines = self.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // The lines stay sound if a holder panicked.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer(Arc<Queue>);

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { queue: &self.0, text: Vec::new() }
    }
}

/// One log line: it goes into the queue as a whole when it is complete.
struct Line<'a> {
    queue: &'a Queue,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.queue.push(&self.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that takes a line when it is told to.
    struct Reader {
        go: mpsc::Receiver<()>,
        read: mpsc::Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.go.recv().map_err(io::Error::other)?;
            let _ = self.read.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stands_still_stops_nobody_and_hears_of_what_was_dropped() {
        let queue = Arc::new(Queue::default());
        let (go, wait) = mpsc::channel();
        let (read, heard) = mpsc::channel();
        let written = queue.clone();
        std::thread::spawn(move || written.write_to(Reader { go: wait, read }));
        let line = vec![b'x'; 100 << 10];

        (0..30).for_each(|_| queue.push(&line));
        queue.drained(Duration::from_millis(10));

        for _ in 0..1000 {
            let _ = go.send(());
        }
        let lines: Vec<String> = std::iter::from_fn(|| heard.recv_timeout(Duration::from_secs(10)).ok())
            .take_while(|line| !line.contains("dropped"))
            .collect();
        assert!((10..=11).contains(&lines.len()), "{}", lines.len());
        queue.drained(Duration::from_secs(10));
        assert_eq!(queue.lines().bytes, 0);
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let queue = Arc::new(Queue::default());
        let (go, wait) = mpsc::channel();
        let (read, _) = mpsc::channel();
        drop(go);
        let written = queue.clone();
        std::thread::spawn(move || written.write_to(Reader { go: wait, read }));

        queue.push(b"nobody hears this\n");

        queue.drained(Duration::from_secs(10));
        assert!(queue.lines().waiting.is_empty());
    }
}
