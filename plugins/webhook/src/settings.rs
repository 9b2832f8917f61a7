//! The manifest's `[settings]`, as the plugin means them.

use crate::template::Template;

/// What to do with a 4xx that does not ask for patience itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum On4xx {
    /// The message is dead: the target will not take it next time either.
    #[default]
    Cancel,
    /// Try again: the target is known to answer 4xx while it is being deployed, say.
    Retry,
}

/// Where to, signed with what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `url`: the target. Required.
    pub url: Template,
    /// `secret`: the names, in the manifest's grants, of the keys to sign with, parted by spaces: one, or the new and the
    /// old while keys are rotated. Without it the request is not signed.
    pub secrets: Vec<String>,
    /// `on_4xx`: `cancel` (default) or `retry`.
    pub on_4xx: On4xx,
    /// `timeout_ms`: for the whole exchange. Default: what is left of the call's deadline.
    pub timeout_ms: Option<u64>,
    /// `header.NAME`: one more header. `{{secret:NAME}}` in a value is filled in by the host.
    pub headers: Vec<(String, Template)>,
}

impl Settings {
    /// Reads the entries of `wasi:config/store`. A key that means nothing is an error: a misspelled `secret` must not
    /// turn signing off in silence.
    pub fn parse(entries: impl IntoIterator<Item = (String, String)>) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for (key, value) in entries {
            match key.as_str() {
                "url" => settings.url = template("url", &value)?,
                "secret" => settings.secrets = secrets(&value)?,
                "on_4xx" => settings.on_4xx = on_4xx(&value)?,
                "timeout_ms" => settings.timeout_ms = Some(timeout_ms(&value)?),
                _ => match key.strip_prefix("header.") {
                    Some(name) => settings.headers.push((header_name(name)?, template(&key, &value)?)),
                    None => {
                        return Err(format!(
                            "unknown setting {key:?}; known: url, secret, on_4xx, timeout_ms, header.NAME"
                        ));
                    }
                },
            }
        }
        if settings.url.is_empty() {
            return Err("setting `url` is missing: say where to POST, in [settings] of the manifest".into());
        }
        Ok(settings)
    }
}

fn template(key: &str, value: &str) -> Result<Template, String> {
    Template::parse(value).map_err(|why| format!("setting `{key}`: {why}"))
}

fn secrets(value: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
    match names.is_empty() {
        true => Err("setting `secret` names no secret; leave it out to send unsigned".into()),
        false => Ok(names),
    }
}

fn on_4xx(value: &str) -> Result<On4xx, String> {
    match value {
        "cancel" => Ok(On4xx::Cancel),
        "retry" => Ok(On4xx::Retry),
        _ => Err(format!("setting `on_4xx` is {value:?}; it can be \"cancel\" or \"retry\"")),
    }
}

fn timeout_ms(value: &str) -> Result<u64, String> {
    match value.parse() {
        Ok(ms) if ms > 0 => Ok(ms),
        _ => Err(format!("setting `timeout_ms` is {value:?}; it must be a number of milliseconds above 0")),
    }
}

/// What identifies and signs a message is not for settings to change.
fn header_name(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "" => Err("setting \"header.\" lacks the header's name".into()),
        _ if name.starts_with("webhook-") => {
            Err(format!("setting \"header.{name}\": webhook-… headers are the plugin's own"))
        }
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::parse(entries.iter().map(|(key, value)| (key.to_string(), value.to_string())))
    }

    #[test]
    fn a_url_is_enough() {
        let settings = parse(&[("url", "https://a.example/x")]).unwrap();

        assert_eq!(settings, Settings { url: Template::parse("https://a.example/x").unwrap(), ..Settings::default() });
    }

    #[test]
    fn every_setting_is_read() {
        let settings = parse(&[
            ("url", "https://a.example/{key}"),
            ("secret", "NEW_KEY  OLD_KEY"),
            ("on_4xx", "retry"),
            ("timeout_ms", "2500"),
            ("header.Authorization", "Bearer {{secret:TOKEN}}"),
        ]);

        let expected = Settings {
            url: Template::parse("https://a.example/{key}").unwrap(),
            secrets: vec!["NEW_KEY".into(), "OLD_KEY".into()],
            on_4xx: On4xx::Retry,
            timeout_ms: Some(2_500),
            headers: vec![("authorization".into(), Template::parse("Bearer {{secret:TOKEN}}").unwrap())],
        };
        assert_eq!(settings, Ok(expected));
    }

    #[test]
    fn mistakes_are_named() {
        let url = ("url", "https://a.example/x");

        assert!(parse(&[]).unwrap_err().contains("`url` is missing"));
        assert!(parse(&[url, ("secert", "K")]).unwrap_err().contains("\"secert\""));
        assert!(parse(&[url, ("secret", " ")]).unwrap_err().contains("names no secret"));
        assert!(parse(&[("url", "https://a.example/{kay}")]).unwrap_err().contains("setting `url`: {kay}"));
        assert!(parse(&[url, ("on_4xx", "drop")]).unwrap_err().contains("\"drop\""));
        assert!(parse(&[url, ("timeout_ms", "10s")]).unwrap_err().contains("milliseconds"));
        assert!(parse(&[url, ("header.Webhook-Id", "1")]).unwrap_err().contains("webhook-id"));
    }
}
