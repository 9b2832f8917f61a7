//! How results are shown: tables for people, JSON for programs. What came from outside is made safe for the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use outboxd_core::one_line;
use serde::Serialize;

use crate::logging;
pub use crate::times::{moment, relative, span};

/// Prints a line to stdout. A reader that went away (`| head`) ends the program quietly; a full disk ends it with 1.
pub fn line(text: impl std::fmt::Display) {
    let Err(error) = writeln!(io::stdout().lock(), "{text}") else { return };
    let code = if error.kind() == io::ErrorKind::BrokenPipe {
        0
    } else {
        logging::say(&format!("outboxd: cannot write to stdout: {error}"));
        1
    };
    logging::flush();
    std::process::exit(code);
}

/// Prints `value` as one JSON document.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Rows under a head, in columns as wide as their widest cell. Cells are made safe and cut: the last one, where errors
/// stand, at 200 characters, the others at 60.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cut = |(index, cell): (usize, &String)| one_line(cell, if index + 1 == head.len() { 200 } else { 60 });
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().enumerate().map(cut).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect()).chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text.truncate(text.trim_end().len());
    text
}

/// Whether stdout may hold colours: a terminal that knows them, and nobody who said no (<https://no-color.org>).
fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    io::stdout().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

pub fn green(text: &str) -> String {
    coloured(text, 32)
}

pub fn yellow(text: &str) -> String {
    coloured(text, 33)
}

pub fn red(text: &str) -> String {
    coloured(text, 31)
}

fn coloured(text: &str, code: u8) -> String {
    if has_colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["orders".to_owned(), "12".to_owned()], vec!["a".to_owned(), "3".to_owned()]];

        assert_eq!(table(&["topic", "n"], &rows), "topic   n\norders  12\na       3");
    }
}
