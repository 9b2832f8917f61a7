/// Makes text that came from outside safe to store and to show: NUL is removed, other control characters but line feed and
/// tab are escaped, and the whole is cut to `bytes_max` at a character boundary. So no error text can make a settle fail,
/// forge a log line or drive a terminal.
pub fn safe_text(text: &str, bytes_max: usize) -> String {
    const CUT: &str = "…";
    let mut safe = String::with_capacity(text.len().min(bytes_max));
    for char in text.chars().filter(|&char| char != '\0') {
        let start = safe.len();
        if needs_escape(char) {
            safe.extend(char.escape_unicode());
        } else {
            safe.push(char);
        }
        if safe.len() + CUT.len() > bytes_max {
            safe.truncate(start);
            safe.push_str(CUT);
            break;
        }
    }
    safe
}

/// [`safe_text`] on one line of at most `chars_max` characters: for logs and tables.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let safe = safe_text(text.trim(), 4 * chars_max).replace('\n', "; ").replace('\t', " ");
    if safe.chars().count() <= chars_max {
        return safe;
    }
    safe.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

/// Control characters, and those that reorder the text around them.
fn needs_escape(char: char) -> bool {
    (char.is_control() && char != '\n' && char != '\t')
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn safe_text_is_bounded_and_has_no_control_characters(text: String, bytes_max in 8usize..200) {
            let safe = safe_text(&text, bytes_max);

            prop_assert!(safe.len() <= bytes_max);
            prop_assert!(!safe.chars().any(|char| char.is_control() && char != '\n' && char != '\t'));
        }
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("a\x1b[2Jb\nc", 60), "a\\u{1b}[2Jb; c");
        assert_eq!(one_line(&"x".repeat(9), 5), "xxxx…");
    }

    #[test]
    fn plain_text_is_left_alone() {
        assert_eq!(safe_text("connection refused: café\n", 8192), "connection refused: café\n");
    }

    #[test]
    fn escapes_terminal_codes_and_drops_nul() {
        assert_eq!(safe_text("a\0b\x1b[31m\u{202e}", 8192), "ab\\u{1b}[31m\\u{202e}");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        assert_eq!(safe_text(&"x".repeat(100), 10), format!("{}…", "x".repeat(7)));
    }
}
