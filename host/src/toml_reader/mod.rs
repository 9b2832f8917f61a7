//! Reads a TOML file key by key and collects every mistake at once, each with file, line and key.
//!
//! A getter marks its key as known, present or not. So [`Reader::finish`] can name each key that nobody asked for,
//! together with the known key that looks most like it.

mod tree;
mod units;
mod values;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use toml::de::DeTable;

use tree::{Entry, Lines, Node, Value, join};
pub use units::{parse_duration, parse_rate, parse_size};

/// One mistake in a settings file. Shows itself as `outboxd.toml:12: unknown key "concurency"; did you mean "concurrency"?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: String,
    /// Counted from 1; 0 where no line is to blame.
    pub line: usize,
    /// The whole path, as `relay.concurrency`. Empty where the file as a whole is wrong.
    pub key: String,
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// One table of a settings file; [`Reader::parse`] gives the outermost. Clones share their state.
#[derive(Clone)]
pub struct Reader {
    source: Rc<Source>,
    node: Rc<Node>,
}

struct Source {
    file: String,
    errors: RefCell<Vec<ConfigError>>,
}

impl Reader {
    /// Reads `text`; `file` is the name that errors show. Fails with every syntax error in it.
    pub fn parse(file: &str, text: &str) -> Result<Reader, Vec<ConfigError>> {
        let lines = Lines::of(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let to_error = |error: toml::de::Error| ConfigError {
                file: file.into(),
                line: error.span().map_or(0, |span| lines.at(span)),
                key: String::new(),
                message: error.message().lines().collect::<Vec<_>>().join("; "),
            };
            return Err(errors.into_iter().map(to_error).collect());
        }
        let node = Rc::new(Node::of(table.get_ref(), String::new(), 1, &lines));
        let source = Rc::new(Source { file: file.into(), errors: RefCell::default() });
        Ok(Reader { source, node })
    }

    /// A reader over nothing: every getter answers that its key is absent.
    pub fn empty(file: &str) -> Reader {
        let source = Rc::new(Source { file: file.into(), errors: RefCell::default() });
        Reader { source, node: Rc::default() }
    }

    /// The file's name, as errors show it.
    pub fn file(&self) -> &str {
        &self.source.file
    }

    /// The table of that name, or nothing where it is absent (or no table, which is noted).
    pub fn table(&self, key: &str) -> Option<Reader> {
        let node = self.read(key, "a table", |value| match value {
            Value::Table(node) => Some(node.clone()),
            _ => None,
        })?;
        self.node.opened.borrow_mut().insert(key.into(), node.clone());
        Some(Reader { source: self.source.clone(), node })
    }

    /// The table of that name; an empty one where it is absent, so that its keys are known all the same.
    pub fn section(&self, key: &str) -> Reader {
        self.table(key).unwrap_or_else(|| {
            let node = Rc::new(Node { path: self.path_of(key), ..Node::default() });
            self.node.opened.borrow_mut().insert(key.into(), node.clone());
            Reader { source: self.source.clone(), node }
        })
    }

    /// Whether the key is there and holds a table.
    pub fn is_table(&self, key: &str) -> bool {
        matches!(self.node.entries.get(key), Some(Entry { value: Value::Table(_), .. }))
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.node.entries.contains_key(key)
    }

    /// Marks a key as known whose value nobody asks for.
    pub fn skip(&self, key: &str) {
        self.node.known.borrow_mut().insert(key.into());
    }

    /// The keys that are there, for tables whose keys are the user's own names.
    pub fn keys(&self) -> Vec<String> {
        self.node.entries.keys().cloned().collect()
    }

    /// Notes a mistake in the value of `key`. The key need not be in the file.
    pub fn error(&self, key: &str, message: impl fmt::Display) {
        let line = self.node.entries.get(key).map_or(self.node.line, |entry| entry.line);
        let path = self.path_of(key);
        self.note(line, path.clone(), format!("{path}: {message}"));
    }

    /// Every mistake noted so far, and every key of an opened table that no getter asked for. In the order of their lines.
    pub fn finish(&self) -> Result<(), Vec<ConfigError>> {
        let mut known = BTreeMap::new();
        self.node.collect_known(&mut known);
        self.report_unknown(&self.node, &known);
        let mut errors = self.source.errors.take();
        errors.sort_by(|a, b| (a.line, &a.key).cmp(&(b.line, &b.key)));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn report_unknown(&self, node: &Node, known: &BTreeMap<String, BTreeSet<String>>) {
        let here = node.known.borrow();
        for (key, entry) in node.entries.iter().filter(|(key, _)| !here.contains(*key)) {
            let place = if node.path.is_empty() { String::new() } else { format!(" in [{}]", node.path) };
            let hint = match nearest(key, here.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => match known.iter().find(|(path, keys)| **path != node.path && keys.contains(key)) {
                    Some((path, _)) if path.is_empty() => {
                        format!("{key:?} belongs at the top, before the first [section]")
                    }
                    Some((path, _)) => format!("{key:?} belongs in [{path}]"),
                    None => format!("known here: {}", here.iter().cloned().collect::<Vec<_>>().join(", ")),
                },
            };
            self.note(entry.line, join(&node.path, key), format!("unknown key {key:?}{place}; {hint}"));
        }
        for child in node.opened.borrow().values() {
            self.report_unknown(child, known);
        }
    }

    fn note(&self, line: usize, key: String, message: String) {
        self.source.errors.borrow_mut().push(ConfigError { file: self.source.file.clone(), line, key, message });
    }

    fn path_of(&self, key: &str) -> String {
        join(&self.node.path, key)
    }
}

/// The candidate that looks most like `word`, if any looks like it at all.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = (word.chars().count() / 3).max(2);
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase(), candidate), candidate))
        .filter(|(distance, candidate)| *distance <= far && *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn errors(reader: &Reader) -> Vec<String> {
        reader.finish().err().unwrap_or_default().iter().map(ConfigError::to_string).collect()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_key() {
        let reader = Reader::parse("outboxd.toml", "# top\ntable = \"outbox\"\n[relay]\nconcurency = 4\n").unwrap();
        reader.string("table");
        reader.table("relay").unwrap().integer("concurrency", 1..=10);

        assert_eq!(
            errors(&reader),
            [r#"outboxd.toml:4: unknown key "concurency" in [relay]; did you mean "concurrency"?"#]
        );
    }

    #[test]
    fn a_key_in_the_wrong_table_is_sent_to_the_right_one() {
        let reader = Reader::parse("f", "poll_interval = \"1s\"\n").unwrap();
        reader.section("relay").duration("poll_interval");

        assert_eq!(errors(&reader), [r#"f:1: unknown key "poll_interval"; "poll_interval" belongs in [relay]"#]);
    }

    #[test]
    fn all_mistakes_are_reported_at_once_in_the_order_of_their_lines() {
        let reader = Reader::parse("f", "a = 1\nb = \"soon\"\nc = -1\nd = \"big\"\n").unwrap();
        reader.size("d");
        reader.integer("c", 0..=9);
        reader.duration("b");
        reader.string("a");

        let errors = errors(&reader);

        assert_eq!(errors.len(), 4);
        assert_eq!(errors[0], "f:1: a: expected a string, found 1");
        assert_eq!(errors[1], r#"f:2: b: expected a time such as "500ms", "5s", "10m" or "7d", found "soon""#);
        assert_eq!(errors[2], "f:3: c: expected a whole number from 0 to 9, found -1");
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let errors = Reader::parse("f", "a = 1\nb = = 2\n").err().unwrap();

        assert_eq!(errors[0].line, 2);
    }

    #[test]
    fn the_users_own_names_are_not_unknown_keys() {
        let reader = Reader::parse("f", "[settings]\nurl = \"u\"\n[secrets]\nK = [\"https://a\"]\n").unwrap();

        assert_eq!(reader.map("settings").unwrap()["url"], "u");
        assert_eq!(reader.lists("secrets").unwrap()["K"], ["https://a"]);
        assert!(errors(&reader).is_empty());
    }

    #[test]
    fn a_misspelt_word_is_answered_with_the_words_that_are_known() {
        let reader = Reader::parse("f", "watch = \"atuo\"\n").unwrap();

        assert_eq!(reader.word("watch", &["auto", "off"]), None);
        assert_eq!(errors(&reader), [r#"f:1: watch: "atuo" is not one of "auto", "off"; did you mean "auto"?"#]);
    }

    #[test]
    fn never_is_a_time_only_where_it_is_asked_for() {
        let reader = Reader::parse("f", "dead = \"never\"\nlease = \"never\"\n").unwrap();

        assert_eq!(reader.duration_or_never("dead"), Some(None));
        assert_eq!(reader.duration("lease"), None);
    }

    #[test]
    fn sizes_have_units_and_do_not_overflow() {
        assert_eq!(parse_size("64MiB"), Some(64 << 20));
        assert_eq!(parse_size("1 KiB"), Some(1024));
        assert_eq!(parse_size("10MB"), Some(10_000_000));
        assert_eq!(parse_size("0B"), Some(0));
        for wrong in ["", "64", "MiB", "-1MiB", "1.5MiB", "99999999999999999999B", "18446744073709551615GiB", "1 TiB"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_in_human_units() {
        assert_eq!(parse_duration("5s"), Some(Duration::from_secs(5)));
        assert_eq!(parse_duration("10m"), Some(Duration::from_secs(600)));
        assert_eq!(parse_duration("7d"), Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_duration("0s"), Some(Duration::ZERO));
        assert_eq!(parse_duration("5"), None);
        assert_eq!(parse_duration("-5s"), None);
    }
}
