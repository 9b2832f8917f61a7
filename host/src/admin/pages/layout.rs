//! What all pages share.

use axum::response::Html;
use maud::{DOCTYPE, Markup, html};
use outboxd_core::safe_text;
use serde::Deserialize;

use crate::times;

/// The notice after an action, from the URL: words and numbers that are known, never a text.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Notice {
    done: Option<Said>,
    changed: Option<u64>,
    more: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said {
    Redrive,
    RetryNow,
    Discard,
    Pause,
    Resume,
    Skip,
    ResumeKey,
}

impl Notice {
    pub fn text(self) -> Option<String> {
        let count = self.changed.unwrap_or(0);
        let text = match (self.done?, count) {
            (Said::Redrive, 0) => "No dead letter was redriven: only dead letters can be.".to_owned(),
            (Said::RetryNow, 0) => "No message was made due: only pending ones can be.".to_owned(),
            (Said::Discard, 0) => "No message was discarded: only live ones can be.".to_owned(),
            (Said::Redrive, count) => format!("Redriven: {count}. They go round again, 100 a second."),
            (Said::RetryNow, count) => format!("Due now: {count}."),
            (Said::Discard, count) => format!("Discarded: {count}. They are dead letters now."),
            (Said::Pause, 0) => "The topic was paused already.".to_owned(),
            (Said::Pause, _) => "The topic is paused, on every relay.".to_owned(),
            (Said::Resume, 0) => "The topic was not paused.".to_owned(),
            (Said::Resume, _) => "The topic is resumed.".to_owned(),
            (Said::ResumeKey, 0) => "The key was neither paused nor waiting.".to_owned(),
            (Said::ResumeKey, _) => "The key goes on.".to_owned(),
            (Said::Skip, 0) => "The key was not blocked.".to_owned(),
            (Said::Skip, _) => "The key goes on; the dead letter stays one.".to_owned(),
        };
        let more = if self.more == Some(true) { " More may match: do it again." } else { "" };
        Some(text + more)
    }
}

pub fn page(title: &str, notice: Option<String>, body: Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (safe_text(title, 200)) }
                link rel="icon" href="/assets/icon.svg";
                link rel="stylesheet" href="/assets/style.css";
                script src="/assets/page.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    nav aria-label="Pages" {
                        a.name href="/" { "outboxd" }
                        a href="/messages?state=dead" { "Dead letters" }
                        a href="/messages" { "Messages" }
                        a href="/keys" { "Keys" }
                        a href="/#plugins" { "Plugins" }
                    }
                }
                main #main tabindex="-1" {
                    @if let Some(notice) = notice { p.notice role="status" { (notice) } }
                    (body)
                }
            }
        }
    };
    Html(page.into_string())
}

/// A text from outside, cut to so many bytes: set apart, so that right-to-left writing turns nothing round it.
pub fn text(text: &str, bytes_max: usize) -> Markup {
    html! { bdi { (safe_text(text, bytes_max)) } }
}

pub fn moment(ms: i64) -> Markup {
    html! { time datetime=(times::moment(ms)) title=(times::moment(ms)) { (times::relative(ms)) } }
}

/// A path with its query; values are escaped.
pub fn link(path: &str, query: &[(&str, Option<&str>)]) -> String {
    let pairs: Vec<(&str, &str)> = query.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let mut link = path.to_owned();
    for (index, (name, value)) in pairs.into_iter().enumerate() {
        link.push(if index == 0 { '?' } else { '&' });
        link.push_str(name);
        link.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => link.push(char::from(byte)),
                _ => link.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_a_link_are_escaped() {
        assert_eq!(
            link("/messages", &[("topic", Some("a&b=ü\"")), ("after", None)]),
            "/messages?topic=a%26b%3D%C3%BC%22"
        );
    }
}
