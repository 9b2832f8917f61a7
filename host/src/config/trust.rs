//! `[trust]`: which plugins may be loaded at all.

use crate::plugin::{MinisignKey, Trust};
use crate::toml_reader::Reader;

pub(super) fn trust(reader: &Reader) -> Trust {
    let key = reader.string("minisign_key");
    let key = key.and_then(|text| MinisignKey::parse(&text).map_err(|why| reader.error("minisign_key", why)).ok());
    let pins = reader.lists("pins").unwrap_or_default();
    for (name, pin) in pins.iter().flat_map(|(name, pins)| pins.iter().map(move |pin| (name, pin))) {
        let is_digest = pin.len() == 64 && pin.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_digest {
            reader.error(
                "pins",
                format!("{name}: {pin:?} is no digest; copy what `outboxd plugin check {name}.wasm` shows"),
            );
        }
    }
    Trust { pins, require_pins: reader.bool("require_pins").unwrap_or(false), minisign_key: key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let reader = Reader::parse("outboxd.toml", text).expect("valid TOML");
        trust(&reader.section("trust"));
        let errors = reader.finish().err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pins_are_lists_of_whole_digests() {
        let digest = "0123456789abcdef".repeat(4);

        assert!(errors(&format!("[trust]\nrequire_pins = true\n[trust.pins]\nshop = [\"{digest}\"]")).is_empty());
        for wrong in [&digest[..12], &digest.to_uppercase(), ""] {
            let errors = errors(&format!("[trust.pins]\nshop = [\"{wrong}\"]"));
            assert!(errors.len() == 1 && errors[0].contains("plugin check shop.wasm"), "{errors:?}");
        }
    }

    #[test]
    fn a_key_that_is_none_is_an_error_by_line() {
        let errors = errors("[trust]\nminisign_key = \"minisign.pub\"");

        assert!(errors[0].starts_with("outboxd.toml:2: trust.minisign_key: "), "{errors:?}");
    }

    #[test]
    fn the_table_of_the_manual_is_one() {
        let manual = include_str!("../../../docs/reload.md");
        let tables = manual.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let table = tables.into_iter().find(|table| table.starts_with("[trust]")).expect("a table in the manual");

        assert_eq!(errors(table), Vec::<String>::new());
    }
}
