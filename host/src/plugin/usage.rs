use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Histogram, histogram};

use crate::metrics::TOPICS_MAX;

/// What the calls of one version use, as metrics. They are looked up once for each of the
/// first [`TOPICS_MAX`] topics: that costs more than recording. The rest share one.
pub(crate) struct Usage {
    plugin: Arc<str>,
    by_topic: Mutex<HashMap<String, OfTopic>>,
}

struct OfTopic {
    cpu: Histogram,
    memory: Histogram,
}

impl Usage {
    pub(crate) fn new(plugin: Arc<str>) -> Usage {
        Usage { plugin, by_topic: Mutex::default() }
    }

    /// Notes one call: what it computed, and the most bytes of memory it held.
    pub(crate) fn note(&self, topic: &str, cpu: Duration, memory: usize) {
        // Sound if a holder panicked: every change is a single step.
        let mut by_topic = self.by_topic.lock().unwrap_or_else(PoisonError::into_inner);
        let topic = if by_topic.len() < TOPICS_MAX || by_topic.contains_key(topic) { topic } else { "other" };
        if !by_topic.contains_key(topic) {
            by_topic.insert(topic.to_string(), self.of(topic));
        }
        let OfTopic { cpu: seconds, memory: bytes } = &by_topic[topic];
        seconds.record(cpu.as_secs_f64());
        bytes.record(memory as f64);
    }

    fn of(&self, topic: &str) -> OfTopic {
        let labels = [("topic", topic.to_string()), ("plugin", self.plugin.to_string())];
        OfTopic {
            cpu: histogram!("outboxd_guest_cpu_seconds", &labels),
            memory: histogram!("outboxd_guest_memory_bytes", &labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn topics_past_the_first_two_hundred_are_counted_together() {
        let recorder = PrometheusBuilder::new().build_recorder();

        metrics::with_local_recorder(&recorder, || {
            let usage = Usage::new("p".into());
            for n in 0..TOPICS_MAX + 50 {
                usage.note(&format!("t{n}"), Duration::from_millis(1), 1 << 20);
            }
            usage.note("t0", Duration::from_millis(1), 1 << 20);
        });

        let rendered = recorder.handle().render();
        let count = |topic| format!("outboxd_guest_memory_bytes_count{{topic=\"{topic}\",plugin=\"p\"}}");
        assert!(rendered.contains(&format!("{} 2\n", count("t0"))), "{rendered}");
        assert!(rendered.contains(&format!("{} 50\n", count("other"))), "{rendered}");
        assert!(!rendered.contains(&count("t200")), "{rendered}");
    }
}
