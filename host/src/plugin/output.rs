use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outboxd_core::safe_text;
use tokio::io::AsyncWrite;
use tracing::{debug, error, info, trace, warn};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::limits::Limits;
use super::redact::Redactor;

/// A longer line is cut into several.
const LINE_BYTES_MAX: usize = 4 << 10;
/// What a guest may write at once.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// How many of the last lines of stderr are kept for the error text: a panic message is two or three.
const TAIL_LINES_MAX: usize = 6;
const TAIL_LINE_BYTES_MAX: usize = 1 << 10;

/// Which attempt an output belongs to.
#[derive(Debug)]
pub(crate) struct CallFacts {
    pub(crate) plugin: Arc<str>,
    pub(crate) topic: String,
    pub(crate) message_id: String,
    pub(crate) attempt: u32,
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Stdout,
    Stderr,
    Log(Level),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// What a guest says, turned into log events: bounded, escaped, secrets struck out. Clones share their state.
#[derive(Clone)]
pub(crate) struct GuestOutput(Arc<Mutex<State>>);

struct State {
    facts: Arc<CallFacts>,
    redactor: Redactor,
    bytes_left: u64,
    lines_left: u32,
    /// A line did not fit: nothing more is logged.
    is_spent: bool,
    dropped: u64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    tail: VecDeque<String>,
}

impl GuestOutput {
    pub(crate) fn new(facts: Arc<CallFacts>, limits: &Limits, redactor: Redactor) -> Self {
        GuestOutput(Arc::new(Mutex::new(State::new(facts, limits, redactor))))
    }

    /// Starts anew for another message: streams that the guest has kept write there too.
    pub(crate) fn renew(&self, facts: Arc<CallFacts>, limits: &Limits, redactor: Redactor) {
        *self.lock() = State::new(facts, limits, redactor);
    }

    pub(crate) fn stdout(&self) -> GuestStream {
        GuestStream { output: self.clone(), origin: Origin::Stdout }
    }

    pub(crate) fn stderr(&self) -> GuestStream {
        GuestStream { output: self.clone(), origin: Origin::Stderr }
    }

    /// One entry of `wasi:logging`. The context is a field of the line, never a log target.
    pub(crate) fn log(&self, level: Level, context: &str, message: &str) {
        let mut state = self.lock();
        let mut text = String::new();
        if !context.is_empty() {
            text = format!("{}: ", cut(context, 128));
        }
        text.push_str(cut(message, WRITE_BYTES_MAX));
        state.dropped +=
            (context.len() - cut(context, 128).len() + message.len() - cut(message, WRITE_BYTES_MAX).len()) as u64;
        for line in text.lines() {
            for piece in line.as_bytes().chunks(LINE_BYTES_MAX) {
                state.line(Origin::Log(level), piece);
            }
        }
    }

    /// Ends the output: unfinished lines are written, and what was dropped is counted.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        for origin in [Origin::Stdout, Origin::Stderr] {
            let rest = std::mem::take(state.buffer(origin));
            if !rest.is_empty() {
                state.line(origin, &rest);
            }
        }
        if state.dropped > 0 {
            let State { facts, dropped, .. } = &*state;
            warn!(
                target: "guest", topic = %facts.topic, plugin = %facts.plugin, message.id = %facts.message_id,
                attempt = facts.attempt, dropped, "{dropped} bytes of output dropped"
            );
            metrics::counter!("outboxd_guest_output_dropped_bytes_total", "plugin" => facts.plugin.to_string())
                .increment(*dropped);
        }
        state.dropped = 0;
    }

    /// The last lines of stderr: where a panic message stands.
    pub(crate) fn tail(&self) -> String {
        let state = self.lock();
        let mut lines: Vec<&str> = state.tail.iter().map(String::as_str).collect();
        // What a Rust guest adds to every panic, and nobody can act upon here.
        lines.retain(|line| !line.starts_with("note: run with `RUST_BACKTRACE=1`"));
        lines.join("\n")
    }

    fn write(&self, origin: Origin, mut bytes: &[u8]) {
        let mut state = self.lock();
        if state.is_spent {
            // Of a flood only its end is looked at, and only where a panic message may stand.
            let end = if origin == Origin::Stderr { bytes.len().saturating_sub(LINE_BYTES_MAX) } else { bytes.len() };
            state.dropped += end as u64;
            bytes = &bytes[end..];
        }
        for &byte in bytes {
            let buffer = state.buffer(origin);
            if byte == b'\n' || buffer.len() >= LINE_BYTES_MAX {
                let line = std::mem::take(buffer);
                state.line(origin, &line);
            }
            if byte != b'\n' {
                state.buffer(origin).push(byte);
            }
        }
    }

    /// A poisoned lock only means that some other write panicked; what it guards is text.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(facts: Arc<CallFacts>, limits: &Limits, redactor: Redactor) -> Self {
        State {
            facts,
            redactor,
            bytes_left: limits.log_bytes,
            lines_left: limits.log_lines,
            is_spent: false,
            dropped: 0,
            stdout: vec![],
            stderr: vec![],
            tail: VecDeque::new(),
        }
    }

    fn buffer(&mut self, origin: Origin) -> &mut Vec<u8> {
        if origin == Origin::Stderr { &mut self.stderr } else { &mut self.stdout }
    }

    fn line(&mut self, origin: Origin, bytes: &[u8]) {
        let speaks = !self.is_spent && self.lines_left > 0 && self.bytes_left >= bytes.len() as u64;
        if !speaks {
            self.is_spent = true;
            self.dropped += bytes.len() as u64;
            // The tail goes on: after a flood the panic message still reaches the error text.
            if origin != Origin::Stderr {
                return;
            }
        }
        let text = self.redactor.strike_out(&String::from_utf8_lossy(bytes));
        let text = safe_text(text.trim_end_matches('\r'), 6 * LINE_BYTES_MAX);
        if origin == Origin::Stderr && !text.trim().is_empty() {
            if self.tail.len() == TAIL_LINES_MAX {
                self.tail.pop_front();
            }
            self.tail.push_back(cut(&text, TAIL_LINE_BYTES_MAX).to_string());
        }
        if speaks {
            self.lines_left -= 1;
            self.bytes_left -= bytes.len() as u64;
            emit(&self.facts, origin, &text);
        }
    }
}

fn emit(facts: &CallFacts, origin: Origin, text: &str) {
    let CallFacts { plugin, topic, message_id, attempt } = facts;
    macro_rules! say {
        ($level:ident, $stream:literal) => {
            $level!(target: "guest", %topic, %plugin, message.id = %message_id, attempt, stream = $stream, "{text}")
        };
    }
    match origin {
        Origin::Stdout => say!(info, "stdout"),
        Origin::Stderr => say!(info, "stderr"),
        Origin::Log(Level::Trace) => say!(trace, "log"),
        Origin::Log(Level::Debug) => say!(debug, "log"),
        Origin::Log(Level::Info) => say!(info, "log"),
        Origin::Log(Level::Warn) => say!(warn, "log"),
        Origin::Log(Level::Error) => say!(error, "log"),
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// One of a guest's two streams. Our own: the stock adapter lets empty writes grow memory (GHSA-5m8g).
#[derive(Clone)]
pub(crate) struct GuestStream {
    output: GuestOutput,
    origin: Origin,
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.output.write(self.origin, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }
}

#[async_trait::async_trait]
impl Pollable for GuestStream {
    async fn ready(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(limits: Limits) -> GuestOutput {
        let facts = CallFacts { plugin: "p".into(), topic: "t".into(), message_id: "id".into(), attempt: 1 };
        GuestOutput::new(Arc::new(facts), &limits, Redactor::default())
    }

    #[test]
    fn the_panic_message_outlives_a_flood() {
        let output = output(Limits::default());
        let mut stderr = output.stderr();
        for _ in 0..10_000 {
            stderr.write(Bytes::from_static(b"noise noise noise\n")).unwrap();
        }
        stderr.write(Bytes::from_static(b"thread 'main' panicked at src/lib.rs:5:9:\nboom")).unwrap();

        output.finish();

        assert!(output.tail().ends_with("thread 'main' panicked at src/lib.rs:5:9:\nboom"));
        assert!(output.tail().len() < 8 << 10);
    }

    #[test]
    fn a_line_without_an_end_is_bounded_and_escaped() {
        let output = output(Limits::default());
        let mut stderr = output.stderr();
        stderr.write(Bytes::from(vec![0x1b; 60_000])).unwrap();
        stderr.write(Bytes::from_static(b"\xff\xfe\x00\n")).unwrap();

        assert!(!output.tail().contains('\x1b'));
        assert!(output.tail().len() <= TAIL_LINES_MAX * (TAIL_LINE_BYTES_MAX + 1));
    }

    #[test]
    fn beyond_the_limit_output_is_dropped_and_counted() {
        let output = output(Limits { log_lines: 2, ..Limits::default() });
        for _ in 0..5 {
            output.log(Level::Info, "ctx", "12345");
        }

        assert_eq!(output.lock().dropped, 3 * "ctx: 12345".len() as u64);
    }
}
