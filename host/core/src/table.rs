use std::fmt;

/// PostgreSQL cuts longer names without a word; so nothing longer is let through. Bytes.
const NAME_BYTES_MAX: usize = 63;

/// The schema of a table that is named without one. Every statement is qualified: no search path decides.
const SCHEMA_DEFAULT: &str = "public";

/// The outbox table's name: `outbox`, `billing.outbox`, `"Odd name"."o.b"`. Default `outbox`.
///
/// A part without double quotes holds letters, digits, `_`, `$` and `-`, and keeps its case; in double quotes it may hold
/// anything but NUL. Each part has 1 to 63 bytes. Everything that leaves this type for a statement is quoted.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

impl Default for TableName {
    fn default() -> Self {
        TableName { schema: None, table: "outbox".into() }
    }
}

impl TableName {
    /// Reads `table` or `schema.table`, each bare or in double quotes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (first, rest) = part(text, text)?;
        let Some(rest) = rest else { return Ok(TableName { schema: None, table: first }) };
        let (table, rest) = part(rest, text)?;
        if rest.is_some() {
            return Err(format!("table {text:?} has more than two parts; write schema.table"));
        }
        Ok(TableName { schema: Some(first), table })
    }

    /// The schema as written, if one was.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The schema that PostgreSQL's statements name: `public` where none was written.
    pub fn schema_or_default(&self) -> &str {
        self.schema.as_deref().unwrap_or(SCHEMA_DEFAULT)
    }

    /// The table's own name, unquoted.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The unquoted name of something that belongs to the table: its index, its control table, its functions.
    /// A name that would grow too long is cut and made unique by a hash.
    pub fn derived(&self, suffix: &str) -> String {
        let whole = format!("{}_{suffix}", self.table);
        if whole.len() <= NAME_BYTES_MAX {
            return whole;
        }
        let hash = format!("_{:08x}_{suffix}", fnv1a(self.table.as_bytes()) as u32);
        let mut end = NAME_BYTES_MAX.saturating_sub(hash.len());
        while !self.table.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{hash}", &self.table[..end])
    }

    /// The channel that a publish notifies, unquoted. Other schemas and tables have other channels.
    pub fn channel(&self) -> String {
        let whole = format!("{}.{}", self.schema_or_default(), self.table);
        if whole.len() + "outboxd:".len() <= NAME_BYTES_MAX {
            format!("outboxd:{whole}")
        } else {
            format!("outboxd:{:016x}", fnv1a(whole.as_bytes()))
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = |part: &str| if part.chars().all(bare) { part.to_string() } else { quoted(part) };
        if let Some(schema) = &self.schema {
            write!(f, "{}.", written(schema))?;
        }
        f.write_str(&written(&self.table))
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A name as SQL's quoted identifier.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Takes one part from the start of `rest`; answers it and what follows its dot.
fn part<'a>(rest: &'a str, whole: &str) -> Result<(String, Option<&'a str>), String> {
    let (name, after) = match rest.strip_prefix('"') {
        Some(inside) => quoted_part(inside).ok_or_else(|| format!("table {whole:?} has an open double quote"))?,
        None => {
            let end = rest.find('.').unwrap_or(rest.len());
            (rest[..end].to_string(), &rest[end..])
        }
    };
    if !rest.starts_with('"') && !name.chars().all(bare) {
        return Err(format!(
            "table {whole:?}: a name with other characters than letters, digits, \"_\", \"$\" and \"-\" must stand in double quotes"
        ));
    }
    if name.is_empty() {
        return Err(format!("table {whole:?} has an empty part"));
    }
    if name.contains('\0') {
        return Err(format!("table {whole:?} contains a NUL"));
    }
    // The migrations quote function bodies with it.
    if name.contains("$outboxd_body$") {
        return Err(format!("table {whole:?} contains \"$outboxd_body$\""));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("table {whole:?}: a name has at most {NAME_BYTES_MAX} bytes"));
    }
    match after.strip_prefix('.') {
        Some(next) => Ok((name, Some(next))),
        None if after.is_empty() => Ok((name, None)),
        None => Err(format!("table {whole:?}: after the closing quote only a dot may follow")),
    }
}

/// The text up to the closing quote, with doubled quotes made single, and what follows it.
fn quoted_part(inside: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = inside.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if char != '"' {
            name.push(char);
        } else if chars.next_if(|&(_, next)| next == '"').is_some() {
            name.push('"');
        } else {
            return Some((name, &inside[at + 1..]));
        }
    }
    None
}

fn bare(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$' | '-')
}

/// FNV-1a, 64 bits: stable over versions, because names that stand in databases depend on it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_name_survives_quoting(schema in "[^\0]{1,15}", table in "[^\0]{1,15}") {
            let written = format!("{}.{}", quoted(&schema), quoted(&table));

            let name = TableName::parse(&written).unwrap();

            prop_assert_eq!(name.schema(), Some(schema.as_str()));
            prop_assert_eq!(name.table(), table.as_str());
            prop_assert_eq!(TableName::parse(&name.to_string()), Ok(name.clone()));
        }

        #[test]
        fn derived_names_fit(table in "\\PC{1,63}", suffix in "[a-z_]{1,20}") {
            if let Ok(name) = TableName::parse(&quoted(&table)) {
                prop_assert!(name.derived(&suffix).len() <= NAME_BYTES_MAX);
                prop_assert!(name.channel().len() <= NAME_BYTES_MAX);
            }
        }
    }

    #[test]
    fn long_names_that_begin_alike_stay_apart() {
        let [a, b] = ["a", "b"].map(|end| TableName::parse(&format!("{}{end}", "x".repeat(62))).unwrap());

        assert_ne!(a.derived("control"), b.derived("control"));
        assert_ne!(a.channel(), b.channel());
    }

    #[test]
    fn injections_and_broken_names_are_refused() {
        for text in [
            "outbox; drop table x",
            "a\"b",
            "\"open",
            "a.b.c",
            "",
            ".",
            "a.",
            ".a",
            "\"a\"b",
            "a b",
            "\"a\0\"",
            "a'--",
            &"x".repeat(64),
        ] {
            assert!(TableName::parse(text).is_err(), "{text:?}");
        }
    }
}
