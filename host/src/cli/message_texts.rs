//! Longer texts for people: the story of a message.

use std::fmt::Write as _;

use outboxd_core::{one_line, safe_text};
use outboxd_store::{HistoryEntry, MessageDetail};

use super::output::{moment, relative, span};

/// Everything about one message, as a person reads it.
pub fn story(message: &MessageDetail) -> String {
    let summary = &message.summary;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("message", summary.id.clone());
    line("topic", one_line(&summary.topic, 200));
    if let Some(key) = &summary.key {
        line("key", one_line(key, 200));
    }
    line("state", state(message));
    line("published", format!("{} ({})", moment(summary.created_at_ms), relative(summary.created_at_ms)));
    if let Some(expires) = summary.expires_at_ms {
        line("expires", format!("{} ({})", moment(expires), relative(expires)));
    }
    line("attempts", format!("{}, leases lost {}", summary.attempts, summary.lapses));
    if let Some(dedup_key) = &message.dedup_key {
        line("dedup key", one_line(dedup_key, 200));
    }
    if message.headers.as_object().is_some_and(|headers| !headers.is_empty()) {
        line("headers", one_line(&message.headers.to_string(), 2000));
    }
    if let Some(error) = &summary.last_error {
        line("error", safe_text(error, 8 << 10));
    }
    match &message.payload {
        Some(payload) => line("payload", safe_text(payload, 64 << 10)),
        None => line("payload", format!("{} bytes, too large to show", message.payload_bytes)),
    }
    if message.history.is_empty() {
        line("history", "no attempt yet".into());
    }
    for entry in &message.history {
        let _ = writeln!(text, "\n{}", attempt(entry));
    }
    text.truncate(text.trim_end().len());
    text
}

fn state(message: &MessageDetail) -> String {
    let summary = &message.summary;
    let when = match summary.state.as_str() {
        "pending" => match relative(summary.available_at_ms) {
            past if past.ends_with(" ago") => format!(", due since {past}"),
            ahead => format!(", next try {ahead}"),
        },
        "processing" => format!(", its lease ends {}", relative(summary.available_at_ms)),
        "delivered" => summary.delivered_at_ms.map(|at| format!(", {}", relative(at))).unwrap_or_default(),
        "dead" => summary.dead_at_ms.map(|at| format!(", {}", relative(at))).unwrap_or_default(),
        _ => String::new(),
    };
    let reason = summary.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{}{reason}{when}", summary.state)
}

fn attempt(entry: &HistoryEntry) -> String {
    let mut text =
        format!("attempt {:<3} {}  {} after {}", entry.attempt, moment(entry.at_ms), entry.result, span(entry.took_ms));
    if let Some(reason) = &entry.reason {
        let _ = write!(text, ", {reason}");
    }
    if let Some(status) = entry.http_status {
        let _ = write!(text, ", the target answered {status}");
    }
    if let Some(digest) = &entry.digest {
        let _ = write!(text, ", plugin {}", digest.chars().take(12).collect::<String>());
    }
    for (name, value) in [("error", &entry.error), ("answer", &entry.response)] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            let _ = write!(text, "\n    {name}: {}", safe_text(value, 2000));
        }
    }
    text
}

/// Which database that is, for everyone on this host: an SQLite file by its whole path, and no password.
pub fn whole_name(url: &str) -> String {
    let Some(path) = url.strip_prefix("sqlite:") else { return without_password(url) };
    let path = path.strip_prefix("//").unwrap_or(path);
    let whole = std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string());
    format!("sqlite:{whole}")
}

/// A database URL that can be shown: its password is replaced.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    // By the last `@`: a password that is not escaped may hold any other character, `/` and `?` too.
    let rest = match rest.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{user}:…@{host}"),
        None => rest.into(),
    };
    let mut shown = format!("{scheme}://");
    let mut rest = rest.as_str();
    while let Some(at) = rest.find("password=") {
        let (before, value) = rest.split_at(at + "password=".len());
        shown.push_str(before);
        shown.push('…');
        rest = &value[value.find('&').unwrap_or(value.len())..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_never_shown() {
        for (url, shown) in [
            ("postgres://shop:canary@db/shop", "postgres://shop:…@db/shop"),
            ("postgres://shop:can@ary@db/shop", "postgres://shop:…@db/shop"),
            ("postgres:///shop?host=/tmp&password=canary&user=a", "postgres:///shop?host=/tmp&password=…&user=a"),
            ("postgres://db?password=canary", "postgres://db?password=…"),
            ("postgres://shop:can/ary@db/shop", "postgres://shop:…@db/shop"),
            ("postgres://shop:can?ary@db/shop", "postgres://shop:…@db/shop"),
            ("postgres:///shop?password=can@ary&sslpassword=canary", "postgres:///shop?password=…&sslpassword=…"),
            ("postgres://shop@db/shop", "postgres://shop@db/shop"),
            ("sqlite:outbox.db", "sqlite:outbox.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn two_files_of_one_name_are_two_databases() {
        let here = std::env::current_dir().unwrap();

        for url in ["sqlite:outbox.db", "sqlite://outbox.db"] {
            assert_eq!(whole_name(url), format!("sqlite:{}", here.join("outbox.db").display()));
        }
        assert_eq!(whole_name("postgres://shop:canary@db/shop"), "postgres://shop:…@db/shop");
    }
}
