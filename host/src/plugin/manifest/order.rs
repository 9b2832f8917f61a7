//! How messages of a key follow each other, and how fast calls begin.

use std::ops::RangeInclusive;
use std::time::Duration;

use outboxd_core::{OnDead, Order, Rate};

use crate::toml_reader::Reader;

/// A manifest allows no more calls of one key at once: they stand in its row.
const PER_KEY_MAX: u64 = 100;

/// Two calls of a key begin no closer together: the tables count in milliseconds.
const SPACING_MIN: Duration = Duration::from_millis(1);
/// Nor further apart: less often than once an hour is a schedule, not a limit.
const SPACING_MAX: Duration = Duration::from_secs(3600);

pub(super) fn spacing(limits: &Reader) -> Duration {
    let Some(rate) = limits.rate("per_key_rate") else { return Duration::ZERO };
    let spacing = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX);
    if !(SPACING_MIN..=SPACING_MAX).contains(&spacing) {
        limits.error("per_key_rate", "must lie between 1/h and 1000/s");
    }
    spacing.clamp(SPACING_MIN, SPACING_MAX)
}

/// Less often than once an hour is a schedule, not a limit; more often than that no relay calls anything.
const RATE_PER_SECOND: RangeInclusive<f64> = 1.0 / 3600.0..=100_000.0;

pub(super) fn rate(limits: &Reader) -> Option<Rate> {
    let calls = limits.rate("rate")?;
    if !RATE_PER_SECOND.contains(&calls) {
        limits.error("rate", "must lie between 1/h and 100000/s");
    }
    Rate::per_second(calls)
}

pub(super) fn order(reader: &Reader, limits: &Reader) -> Order {
    let on_dead = reader.word("on_dead", &["block", "skip"]);
    let per_key = limits.integer("per_key", 1..=PER_KEY_MAX).map(|number| number as u32);
    let ordered = reader.bool("ordered").unwrap_or(false);
    let is_spaced = limits.has("per_key_rate");
    if per_key.is_some() && ordered {
        limits.error("per_key", "messages of one key of an ordered topic run one at a time; leave it out");
    } else if per_key.is_some_and(|per_key| per_key > 1) && is_spaced {
        limits.error("per_key", "calls of one key that per_key_rate spaces run one at a time; leave it out");
    }
    if !ordered {
        if on_dead.is_some() {
            reader.error(
                "on_dead",
                "says what a dead letter does to the order of its key; set ordered = true, or leave it out",
            );
        }
        return match per_key {
            Some(per_key) => Order::Limited { per_key },
            None if is_spaced => Order::Limited { per_key: 1 },
            None => Order::None,
        };
    }
    let on_dead = match on_dead {
        Some("skip") => OnDead::Skip,
        _ => OnDead::Block,
    };
    Order::ByKey { on_dead }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn limits_by_key_are_read_and_what_contradicts_them_is_named() {
        let limited =
            |text: &str| parse(&format!("[limits]\n{text}\n")).map(|manifest| (manifest.order, manifest.spacing));
        let milliseconds = Duration::from_millis;

        assert_eq!(limited("per_key = 2"), Ok((Order::Limited { per_key: 2 }, Duration::ZERO)));
        assert_eq!(limited("per_key_rate = \"5/s\""), Ok((Order::Limited { per_key: 1 }, milliseconds(200))));
        let ordered = parse("ordered = true\n[limits]\nper_key_rate = \"30/m\"").unwrap();
        assert_eq!((ordered.order, ordered.spacing), (Order::ByKey { on_dead: OnDead::Block }, milliseconds(2000)));

        for (text, words) in [
            (
                "ordered = true\n[limits]\nper_key = 2",
                "limits.per_key: messages of one key of an ordered topic run one at a time",
            ),
            (
                "[limits]\nper_key = 2\nper_key_rate = \"5/s\"",
                "limits.per_key: calls of one key that per_key_rate spaces",
            ),
            (
                "ordered = true\n[limits]\nper_key = 2\nper_key_rate = \"5/s\"",
                "limits.per_key: messages of one key of an ordered topic run one at a time",
            ),
            ("[limits]\nper_key = 0", "limits.per_key: expected a whole number from 1 to 100, found 0"),
        ] {
            let errors = parse(text).unwrap_err();
            assert!(errors.len() == 1 && errors[0].contains(words), "{text:?}: {errors:?}");
        }
    }

    #[test]
    fn rates_lie_between_one_an_hour_and_what_can_be_kept() {
        let read = |key: &str, value: &str| parse(&format!("[limits]\n{key} = {value}\n"));

        for (key, most, more) in [("rate", "100000/s", "100001/s"), ("per_key_rate", "1000/s", "1001/s")] {
            for within in ["1/h", "60/h", "0.5/s", "30/m", most] {
                assert!(read(key, &format!("{within:?}")).is_ok(), "{key} = {within:?}");
            }
            for beyond in ["0.9/h", "1e-9/s", more, "1e300/s"] {
                let errors = read(key, &format!("{beyond:?}")).unwrap_err();
                let said = format!("limits.{key}: must lie between 1/h and {most}");
                assert!(errors.len() == 1 && errors[0].contains(&said), "{key} = {beyond:?}: {errors:?}");
            }
            for none in ["\"0/s\"", "\"-1/s\"", "\"inf/s\"", "\"NaN/s\"", "\"5\"", "\"5/d\"", "\"/s\"", "\"\"", "5"] {
                let errors = read(key, none).unwrap_err();
                assert!(errors.len() == 1 && errors[0].contains("a rate such as"), "{key} = {none}: {errors:?}");
            }
        }
    }

    #[test]
    fn the_dead_block_their_key_unless_the_manifest_says_otherwise() {
        assert_eq!(parse("").unwrap().order, Order::None);
        assert_eq!(parse("ordered = true").unwrap().order, Order::ByKey { on_dead: OnDead::Block });

        let errors = parse("on_dead = \"skip\"").unwrap_err();

        assert!(errors[0].starts_with("shop.toml:1: on_dead") && errors[0].contains("ordered = true"), "{errors:?}");
    }
}
