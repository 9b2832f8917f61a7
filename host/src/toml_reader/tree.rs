//! The file as a tree whose every key remembers its line.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A table, and which of its keys somebody asked for.
#[derive(Default)]
pub(super) struct Node {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) known: RefCell<BTreeSet<String>>,
    /// Tables that were opened by a getter: their keys are checked too.
    pub(super) opened: RefCell<BTreeMap<String, Rc<Node>>>,
}

pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) value: Value,
}

pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Value>),
    Table(Rc<Node>),
    Other(&'static str),
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a number with a fraction",
            Value::Bool(_) => "a boolean",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }
}

impl Value {
    pub(super) fn of(value: &DeValue<'_>, path: &str, line: usize, lines: &Lines) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Value::Other("a number too large"), Value::Integer),
            DeValue::Float(number) => number.as_str().parse().map_or(Value::Other("no number"), Value::Float),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Array(items) => {
                Value::List(items.iter().map(|item| Value::of(item.get_ref(), path, line, lines)).collect())
            }
            DeValue::Table(table) => Value::Table(Rc::new(Node::of(table, path.into(), line, lines))),
            DeValue::Datetime(_) => Value::Other("a date or time"),
        }
    }

    pub(super) fn text(&self) -> Option<String> {
        match self {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn scalar(&self) -> Option<String> {
        match self {
            Value::Integer(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            other => other.text(),
        }
    }
}

impl Node {
    pub(super) fn of(table: &DeTable<'_>, path: String, line: usize, lines: &Lines) -> Node {
        let to_entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            let line = lines.at(key.span());
            let name = key.get_ref().to_string();
            let value = Value::of(value.get_ref(), &join(&path, &name), line, lines);
            (name, Entry { line, value })
        };
        Node { entries: table.iter().map(to_entry).collect(), path, line, ..Node::default() }
    }

    pub(super) fn collect_known(&self, known: &mut BTreeMap<String, BTreeSet<String>>) {
        known.insert(self.path.clone(), self.known.borrow().clone());
        for child in self.opened.borrow().values() {
            child.collect_known(known);
        }
    }
}

/// Where the lines of a text begin.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub(super) fn of(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The line of a span's start, counted from 1.
    pub(super) fn at(&self, span: Range<usize>) -> usize {
        self.0.partition_point(|end| *end < span.start) + 1
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}
