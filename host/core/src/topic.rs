use std::fmt;

/// A topic's name, or all topics that begin alike: `orders.*` is every topic that begins with `orders.`; `*` is every topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicPattern {
    Exact(String),
    Prefix(String),
}

impl TopicPattern {
    /// A star may stand only at the end.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a topic must not be empty".into());
        }
        if text.contains('\0') {
            return Err(format!("topic {text:?} contains a NUL"));
        }
        match text.strip_suffix('*') {
            Some(prefix) if !prefix.contains('*') => Ok(TopicPattern::Prefix(prefix.into())),
            None if !text.contains('*') => Ok(TopicPattern::Exact(text.into())),
            _ => Err(format!("topic {text:?}: \"*\" may stand only at the end, as in \"orders.*\"")),
        }
    }

    pub fn matches(&self, topic: &str) -> bool {
        match self {
            TopicPattern::Exact(name) => topic == name,
            TopicPattern::Prefix(prefix) => topic.starts_with(prefix.as_str()),
        }
    }

    /// Whether some topic matches both.
    pub fn overlaps(&self, other: &TopicPattern) -> bool {
        use TopicPattern::{Exact, Prefix};
        match (self, other) {
            (Exact(a), Exact(b)) => a == b,
            (Prefix(prefix), Exact(name)) | (Exact(name), Prefix(prefix)) => name.starts_with(prefix.as_str()),
            (Prefix(a), Prefix(b)) => a.starts_with(b.as_str()) || b.starts_with(a.as_str()),
        }
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicPattern::Exact(name) => f.write_str(name),
            TopicPattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> TopicPattern {
        TopicPattern::parse(text).expect(text)
    }

    #[test]
    fn a_star_matches_whatever_follows() {
        assert!(pattern("orders.*").matches("orders.created"));
        assert!(!pattern("orders.*").matches("orders"));
        assert!(pattern("*").matches("anything"));
        assert!(!pattern("orders").matches("orders.created"));
    }

    #[test]
    fn a_star_in_the_middle_is_refused() {
        assert!(TopicPattern::parse("a.*.b").is_err());
        assert!(TopicPattern::parse("a**").is_err());
        assert!(TopicPattern::parse("").is_err());
    }

    #[test]
    fn overlap_is_found_in_both_directions() {
        assert!(pattern("orders.*").overlaps(&pattern("orders.created")));
        assert!(pattern("orders.created").overlaps(&pattern("orders.*")));
        assert!(pattern("orders.eu.*").overlaps(&pattern("orders.*")));
        assert!(!pattern("orders.*").overlaps(&pattern("invoices.*")));
    }
}
