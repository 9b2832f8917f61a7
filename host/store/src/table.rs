use std::sync::Arc;

use outboxd_core::{TableName, quoted};

/// What stands in a statement's `{braces}`: the table and all that belongs to it, quoted. Put in once, at start.
pub(crate) struct Names {
    values: Vec<(&'static str, String)>,
}

impl Names {
    /// PostgreSQL: everything is qualified by the schema.
    pub(crate) fn postgres(table: &TableName) -> Self {
        let schema = quoted(table.schema_or_default());
        let qualified = |name: &str| format!("{schema}.{}", quoted(name));
        // CREATE INDEX takes no schema: an index lies in its table's.
        let mut names = Names::new(table, qualified, quoted);
        names.values.push(("table_literal", literal(&qualified(table.table()))));
        for (part, suffix) in [
            ("asleep_literal", "asleep"),
            ("control_literal", "control"),
            ("keys_literal", "keys"),
            ("seq_literal", "seq"),
            ("sleepers_literal", "sleepers"),
            ("versions_literal", "versions"),
        ] {
            names.values.push((part, literal(&qualified(&table.derived(suffix)))));
        }
        names.values.push(("channel_literal", literal(&table.channel())));
        names
    }

    /// SQLite has one schema a file: `main`.
    pub(crate) fn sqlite(table: &TableName) -> Result<Self, String> {
        match table.schema() {
            None | Some("main") => {
                let qualified = |name: &str| format!("main.{}", quoted(name));
                Ok(Names::new(table, qualified, qualified))
            }
            Some(other) => Err(format!("table {table}: SQLite has no schema {other:?}; write the table's name alone")),
        }
    }

    fn new(table: &TableName, qualified: impl Fn(&str) -> String, index: impl Fn(&str) -> String) -> Self {
        let mut values = vec![
            ("table", qualified(table.table())),
            ("table_unqualified", quoted(table.table())),
            ("keys_unqualified", quoted(&table.derived("keys"))),
        ];
        for part in ["control", "keys", "seq", "versions", "sleepers", "asleep", "new_id", "wake", "publish", "alone"] {
            values.push((part, qualified(&table.derived(part))));
        }
        for (part, suffix) in [
            ("due_index", "due"),
            ("dedup_index", "dedup"),
            ("delivered_index", "delivered"),
            ("dead_index", "dead"),
            ("waiting_index", "waiting"),
            ("free_index", "free"),
            ("held_index", "held"),
            ("failing_index", "failing"),
        ] {
            values.push((part, index(&table.derived(suffix))));
        }
        Names { values }
    }

    /// The statement with each `{name}` put in. One pass: what is put in is not looked at again.
    pub(crate) fn write_into(&self, statement: &str) -> Arc<str> {
        let mut written = String::with_capacity(statement.len() + 256);
        let mut rest = statement;
        while let Some(open) = rest.find('{') {
            let (before, from) = rest.split_at(open);
            written.push_str(before);
            let found = self.values.iter().find(|(name, _)| from[1..].starts_with(&format!("{name}}}")));
            match found {
                Some((name, value)) => {
                    written.push_str(value);
                    rest = &from[name.len() + 2..];
                }
                // A brace that belongs to the statement: '{}'.
                None => {
                    written.push('{');
                    rest = &from[1..];
                }
            }
        }
        written.push_str(rest);
        written.into()
    }
}

/// A text as SQL's literal. Backslashes mean themselves: `standard_conforming_strings` is on unless a person turned it off,
/// and a name with a backslash then fails to parse, it does not escape.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// One field a statement file, each with the table's name put in.
macro_rules! statements {
    ($($name:ident)*) => {
        pub(crate) struct Statements {
            $(pub(crate) $name: ::std::sync::Arc<str>,)*
        }

        impl Statements {
            pub(crate) fn new(names: &$crate::table::Names) -> Self {
                Statements {
                    $($name: {
                        let file = include_str!(concat!("sql/", stringify!($name), ".sql"));
                        let text: ::std::borrow::Cow<'_, str> = ::outboxd_core::planted!(
                            1..,
                            $crate::planted::statement(module_path!(), stringify!($name), file),
                            file.into()
                        );
                        names.write_into(&text)
                    },)*
                }
            }
        }
    };
}
pub(crate) use statements;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_put_in_once_and_not_looked_at_again() {
        let names = Names::postgres(&TableName::parse("\"{control}\".\"a\"\"b\"").unwrap());

        assert_eq!(
            &*names.write_into("{table} '{}' {control}"),
            r#""{control}"."a""b" '{}' "{control}"."a""b_control""#
        );
    }
}
