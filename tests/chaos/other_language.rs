//! An application in Python beside those in Rust: `producer.py`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use outboxd_test_support::process::Starter;
use outboxd_test_support::tools::tool;
use uuid::Uuid;

use crate::producer::Records;
use crate::stage::TOPIC;

/// Sells on PostgreSQL until it is told to stop.
pub struct OtherLanguage {
    child: Child,
    /// It stops when this closes.
    input: Option<ChildStdin>,
    reader: JoinHandle<usize>,
    _starter: Starter,
}

impl OtherLanguage {
    /// Nothing where Python or its driver cannot be had.
    pub fn start(url: &str, seed: u64, records: Arc<Records>) -> Option<OtherLanguage> {
        let python = tool("python")?.join("bin/python");
        let script = outboxd_test_support::repository().join("tests/chaos/producer.py");
        let mut command = Command::new(python);
        command.arg(script).args([url, TOPIC, &seed.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let starter = Starter::new();
        let mut child = starter.start(command).expect("python starts");
        let output = child.stdout.take().expect("a pipe");
        let input = child.stdin.take();
        let reader = thread::spawn(move || {
            let mut count = 0;
            for line in BufReader::new(output).lines() {
                let line = line.expect("its output is text");
                let told = line.split_once(' ').and_then(|(fate, id)| Some((fate, Uuid::parse_str(id).ok()?)));
                let (fate, id) = told.unwrap_or_else(|| panic!("producer.py says {line:?}"));
                records.told(fate, id);
                count += 1;
            }
            count
        });
        Some(OtherLanguage { child, input, reader, _starter: starter })
    }

    /// Waits for its last transaction, and answers how many messages it has told of.
    pub fn stop(mut self) -> usize {
        drop(self.input.take());
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "producer.py: {status}");
        self.reader.join().expect("it says what can be read")
    }
}
