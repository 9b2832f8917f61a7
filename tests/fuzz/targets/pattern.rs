use outboxd::plugin::egress::{Destination, HostPattern};
use outboxd_core::TopicPattern;

use crate::assert_readable;

/// Two patterns, and what both may match: a line each.
pub fn try_one(text: &str) {
    let mut lines = text.split('\n');
    let [first, second, third] = [(); 3].map(|()| lines.next().unwrap_or_default());
    topics(first, second, third);
    hosts(first, second, third);
}

fn topics(first: &str, second: &str, topic: &str) {
    let (Ok(a), Ok(b)) = (TopicPattern::parse(first), TopicPattern::parse(second)) else { return };
    assert_eq!(TopicPattern::parse(&a.to_string()).as_ref(), Ok(&a), "a pattern is what it shows");
    assert_eq!(a.overlaps(&b), b.overlaps(&a));
    assert!(!(a.matches(topic) && b.matches(topic)) || a.overlaps(&b), "{a} and {b} match {topic:?}");
}

fn hosts(first: &str, second: &str, url: &str) {
    let wide = match HostPattern::parse(first) {
        Ok(wide) => wide,
        Err(error) => return assert_readable(&error),
    };
    assert_eq!(HostPattern::parse(&wide.to_string()).as_ref(), Ok(&wide), "a pattern is what it shows");
    assert!(wide.covers(&wide) && HostPattern::everything().covers(&wide));
    let Ok(narrow) = HostPattern::parse(second) else { return };
    let Some(destination) = url.parse().ok().and_then(|uri| Destination::of(&uri).ok()) else { return };
    if wide.covers(&narrow) && narrow.matches(&destination) {
        assert!(wide.matches(&destination), "{wide} covers {narrow}, which matches {destination}");
    }
}
