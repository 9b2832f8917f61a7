//! What a key may hold: each getter says what it wants, and notes what it found instead.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::tree::{Entry, Value};
use super::{Reader, nearest, parse_duration, parse_rate, parse_size};

/// No time in a settings file is longer: clocks have ends.
const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

impl Reader {
    pub fn string(&self, key: &str) -> Option<String> {
        self.read(key, "a string", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// One of a few words.
    pub fn word(&self, key: &str, words: &[&'static str]) -> Option<&'static str> {
        let text = self.string(key)?;
        let word = words.iter().find(|word| **word == text).copied();
        if word.is_none() {
            let hint = nearest(&text, words.iter().copied()).map(|word| format!("; did you mean {word:?}?"));
            self.error(key, format!("{text:?} is not one of {}{}", quoted(words), hint.unwrap_or_default()));
        }
        word
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        self.read(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A whole number within `range`.
    pub fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(key, &wanted, |value| match value {
            Value::Integer(number) => u64::try_from(*number).ok().filter(|number| range.contains(number)),
            _ => None,
        })
    }

    /// A number within `range`, with or without a fraction.
    pub fn number(&self, key: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.read(key, &wanted, |value| match value {
            Value::Integer(number) => Some(*number as f64).filter(|number| range.contains(number)),
            Value::Float(number) => Some(*number).filter(|number| range.contains(number)),
            _ => None,
        })
    }

    /// A list of strings.
    pub fn strings(&self, key: &str) -> Option<Vec<String>> {
        self.read(key, "a list of strings", |value| match value {
            Value::List(items) => items.iter().map(Value::text).collect(),
            _ => None,
        })
    }

    /// A time in human units: `"5s"`, `"10m"`, `"1h 30m"`, `"7d"`, `"0s"`.
    pub fn duration(&self, key: &str) -> Option<Duration> {
        let duration = self.read(key, r#"a time such as "500ms", "5s", "10m" or "7d""#, |value| match value {
            Value::Text(text) => parse_duration(text),
            _ => None,
        })?;
        self.bounded(key, duration)
    }

    /// The time, unless adding it to a clock could overflow, which is noted.
    fn bounded(&self, key: &str, duration: Duration) -> Option<Duration> {
        if duration > DURATION_MAX {
            self.error(key, "is longer than 100 years");
            return None;
        }
        Some(duration)
    }

    /// A time in human units, or `"never"`, which is `Some(None)`.
    pub fn duration_or_never(&self, key: &str) -> Option<Option<Duration>> {
        let duration = self.read(key, r#"a time such as "5s" or "7d", or "never""#, |value| match value {
            Value::Text(text) if text == "never" => Some(None),
            Value::Text(text) => parse_duration(text).map(Some),
            _ => None,
        })?;
        match duration {
            Some(duration) => self.bounded(key, duration).map(Some),
            None => Some(None),
        }
    }

    /// So many a second: `"100/s"`, `"30/m"`.
    pub fn rate(&self, key: &str) -> Option<f64> {
        self.read(key, r#"a rate such as "100/s", "0.5/s" or "30/m""#, |value| match value {
            Value::Text(text) => parse_rate(text),
            _ => None,
        })
    }

    /// A size in bytes: `"64MiB"`, `"1 KiB"`, `"512B"`, `"10MB"`.
    pub fn size(&self, key: &str) -> Option<u64> {
        self.read(key, r#"a size such as "512KiB", "64MiB" or "1GiB""#, |value| match value {
            Value::Text(text) => parse_size(text),
            _ => None,
        })
    }

    /// A table of the user's own names, each with a string; numbers and booleans are taken as written.
    pub fn map(&self, key: &str) -> Option<BTreeMap<String, String>> {
        self.read(key, "a table of strings", |value| match value {
            Value::Table(node) => {
                node.entries.iter().map(|(name, entry)| Some((name.clone(), entry.value.scalar()?))).collect()
            }
            _ => None,
        })
    }

    /// A table of the user's own names, each with a list of strings.
    pub fn lists(&self, key: &str) -> Option<BTreeMap<String, Vec<String>>> {
        self.read(key, "a table of lists of strings", |value| match value {
            Value::Table(node) => {
                let to_list = |(name, entry): (&String, &Entry)| match &entry.value {
                    Value::List(items) => Some((name.clone(), items.iter().map(Value::text).collect::<Option<_>>()?)),
                    _ => None,
                };
                node.entries.iter().map(to_list).collect()
            }
            _ => None,
        })
    }

    /// Marks the key as known, and takes its value if that is what is `wanted`.
    pub(super) fn read<T>(&self, key: &str, wanted: &str, take: impl Fn(&Value) -> Option<T>) -> Option<T> {
        self.node.known.borrow_mut().insert(key.into());
        let entry = self.node.entries.get(key)?;
        let taken = take(&entry.value);
        if taken.is_none() {
            let found = match &entry.value {
                Value::Text(text) => format!("{text:?}"),
                Value::Integer(number) => number.to_string(),
                other => other.kind().into(),
            };
            self.error(key, format!("expected {wanted}, found {found}"));
        }
        taken
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}
