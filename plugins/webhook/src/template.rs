//! Texts with places for a message to fill: `https://hooks.example.com/{key}`.

/// A text of settings, with `{id}`, `{topic}`, `{key}` and `{header.NAME}` where a message's own values go. What stands in
/// double braces, as `{{secret:NAME}}` does, is the host's to fill and stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(Field),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Topic,
    Key,
    /// Its name in lower case.
    Header(String),
}

/// What of a message can be asked for.
pub struct Fields<'a> {
    pub id: &'a str,
    pub topic: &'a str,
    pub key: Option<&'a str>,
    pub headers: &'a [(String, String)],
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut pieces = vec![];
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, braced) = rest.split_at(at);
            let closing = if braced.starts_with("{{") { "}}" } else { "}" };
            let end = braced.find(closing).ok_or_else(|| format!("{text:?} has a brace that is not closed"))?;
            let (braced, after) = braced.split_at(end + closing.len());
            pieces.push(Piece::Text(before.into()));
            pieces.push(match closing {
                "}" => Piece::Field(field(&braced[1..end])?),
                _ => Piece::Text(braced.into()),
            });
            rest = after;
        }
        pieces.push(Piece::Text(rest.into()));
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        Ok(Template(pieces))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a URL. A template that is one place and nothing else takes the value for a whole URL (the host's guard looks at
    /// it like at any other); elsewhere a value becomes one segment or parameter, its special characters encoded.
    pub fn url(&self, message: &Fields<'_>) -> Result<String, String> {
        match &self.0[..] {
            [Piece::Field(field)] => Ok(field.of(message)?.to_owned()),
            _ => self.fill(message, |field, value| match value {
                // They would climb out of the path they were put into.
                "." | ".." => Err(format!("the message's {} is {value:?}, which fits in no URL", field.name())),
                _ => Ok(percent_encoded(value)),
            }),
        }
    }

    /// As a header's value.
    pub fn header(&self, message: &Fields<'_>) -> Result<String, String> {
        self.fill(message, |field, value| {
            // Only settings may ask for a secret, never a message: not by one value, and not by the brace at the end of one
            // and what stands behind it. The settings' own text never ends within a pair of braces.
            let opens = value.contains("{{") || value.ends_with('{');
            match opens || value.chars().any(char::is_control) {
                true => Err(format!("the message's {} has characters that fit in no header", field.name())),
                false => Ok(value.to_owned()),
            }
        })
    }

    fn fill(
        &self,
        message: &Fields<'_>,
        written: impl Fn(&Field, &str) -> Result<String, String>,
    ) -> Result<String, String> {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => Ok(text.clone()),
                Piece::Field(field) => written(field, field.of(message)?),
            })
            .collect()
    }
}

fn field(name: &str) -> Result<Field, String> {
    match name {
        "id" => Ok(Field::Id),
        "topic" => Ok(Field::Topic),
        "key" => Ok(Field::Key),
        _ => match name.strip_prefix("header.") {
            Some(header) if !header.is_empty() => Ok(Field::Header(header.to_ascii_lowercase())),
            _ => Err(format!("{{{name}}} is no place for a value; known: {{id}}, {{topic}}, {{key}}, {{header.NAME}}")),
        },
    }
}

impl Field {
    fn name(&self) -> String {
        match self {
            Field::Id => "id".into(),
            Field::Topic => "topic".into(),
            Field::Key => "key".into(),
            Field::Header(name) => format!("header {name:?}"),
        }
    }

    /// The message's value: it must have one.
    fn of<'a>(&self, message: &Fields<'a>) -> Result<&'a str, String> {
        let value = match self {
            Field::Id => Some(message.id),
            Field::Topic => Some(message.topic),
            Field::Key => message.key,
            Field::Header(name) => {
                let header = message.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                header.map(|(_, value)| value.as_str())
            }
        };
        let value = value.filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("the message has no {}, which the settings ask for", self.name()))
    }
}

/// Everything but RFC 3986's unreserved characters as `%XX`.
fn percent_encoded(value: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<'a>(key: &'a str, headers: &'a [(String, String)]) -> Fields<'a> {
        Fields { id: "m-1", topic: "orders.created", key: Some(key), headers }
    }

    fn url(template: &str, key: &str) -> Result<String, String> {
        Template::parse(template).unwrap().url(&message(key, &[]))
    }

    #[test]
    fn a_url_takes_what_the_message_has() {
        let headers = [("Tenant".to_string(), "acme".to_string())];
        let template = Template::parse("https://{header.tenant}.example.com/{topic}/{key}?id={id}").unwrap();

        let url = template.url(&message("c-77", &headers));

        assert_eq!(url.as_deref(), Ok("https://acme.example.com/orders.created/c-77?id=m-1"));
    }

    #[test]
    fn a_value_cannot_leave_its_place_in_a_url() {
        assert_eq!(
            url("https://a.example/{key}/x", "../b?c#d e").as_deref(),
            Ok("https://a.example/..%2Fb%3Fc%23d%20e/x")
        );
        assert_eq!(
            url("https://{key}.a.example/", "evil.example/").as_deref(),
            Ok("https://evil.example%2F.a.example/")
        );
        assert!(url("https://a.example/{key}/x", "..").unwrap_err().contains("fits in no URL"));
    }

    #[test]
    fn a_place_alone_is_a_whole_url() {
        assert_eq!(url("{key}", "https://a.example/x?y").as_deref(), Ok("https://a.example/x?y"));
    }

    #[test]
    fn what_a_message_lacks_is_named() {
        let template = Template::parse("https://a.example/{header.Tenant}").unwrap();

        let error = template.url(&message("k", &[])).unwrap_err();

        assert_eq!(error, "the message has no header \"tenant\", which the settings ask for");
        assert!(url("https://a.example/{key}", "").is_err());
    }

    #[test]
    fn a_message_brings_neither_secrets_nor_line_breaks_into_a_header() {
        let template = Template::parse("key {key}, {{secret:TOKEN}}").unwrap();

        assert_eq!(template.header(&message("k", &[])).as_deref(), Ok("key k, {{secret:TOKEN}}"));
        for key in ["{{secret:TOKEN}}", "a\r\nb: c"] {
            assert!(template.header(&message(key, &[])).unwrap_err().contains("fit in no header"), "{key:?}");
        }
    }

    #[test]
    fn two_values_make_no_secret_either() {
        let headers = [("a".to_string(), "{secret:TOKEN}}".to_string())];
        let template = Template::parse("{key}{header.a}").unwrap();

        assert!(template.header(&message("{", &headers)).unwrap_err().contains("fit in no header"));
        assert_eq!(template.header(&message("k", &headers)).as_deref(), Ok("k{secret:TOKEN}}"));
    }

    #[test]
    fn wrong_places_are_named() {
        assert!(Template::parse("{kay}").unwrap_err().starts_with("{kay} is no place"));
        assert!(Template::parse("{header.}").is_err());
        assert!(Template::parse("https://a.example/{key").unwrap_err().contains("not closed"));
        assert!(Template::parse("{{secret:K}").is_err());
    }
}
