use outboxd_core::{TableName, quoted};

use crate::assert_readable;

pub fn try_one(text: &str) {
    let name = match TableName::parse(text) {
        Ok(name) => name,
        Err(error) => return assert_readable(&error),
    };
    assert_eq!(TableName::parse(&name.to_string()).as_ref(), Ok(&name), "a name is what it shows");
    let derived = name.derived("control");
    for part in [name.table(), name.schema_or_default(), &derived] {
        let inside = quoted(part);
        let inside = inside.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("quotes around it");
        assert!(!inside.replace("\"\"", "").contains(['"', '\0']), "{part:?} ends its quotes");
        assert!((1..=63).contains(&part.len()), "PostgreSQL would cut {part:?}");
    }
    assert!(name.channel().len() <= 63);
}
