use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;

use crate::PublishError;

/// No wait is longer: timestamps have ends. Milliseconds.
const WAIT_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// A message to be published.
///
/// ```
/// # use std::time::Duration;
/// use outboxd_client::NewMessage;
///
/// let message = NewMessage::new("order.created", &serde_json::json!({ "order": 1042 }))
///     .key("customer-7")
///     .header("trace", "00-4bf9-01")
///     .dedup_key("order-1042")
///     .delay(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) payload: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) delay: Duration,
    pub(crate) expires: Option<Duration>,
}

impl NewMessage {
    /// A message of `topic` with this value as payload, due as soon as its transaction commits.
    pub fn new(topic: impl Into<String>, payload: &serde_json::Value) -> Self {
        Self::from_json(topic, payload.to_string())
    }

    /// The payload as JSON text; its very bytes reach the plugin. Whether it is JSON is checked when it is published.
    pub fn from_json(topic: impl Into<String>, payload: impl Into<String>) -> Self {
        NewMessage {
            topic: topic.into(),
            key: None,
            payload: payload.into(),
            headers: BTreeMap::new(),
            dedup_key: None,
            delay: Duration::ZERO,
            expires: None,
        }
    }

    /// Messages of one topic and key belong to one target: an endpoint, a tenant, an aggregate.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A second header of the same name replaces the first.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// While a message with the same topic and dedup key is in the table, this one inserts nothing.
    pub fn dedup_key(mut self, dedup_key: impl Into<String>) -> Self {
        self.dedup_key = Some(dedup_key.into());
        self
    }

    /// Due so long after its transaction began.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Dead, reason `expired`, instead of being delivered later than this after its transaction began.
    pub fn expires(mut self, expires: Duration) -> Self {
        self.expires = Some(expires);
        self
    }

    pub(crate) fn delay_ms(&self) -> i64 {
        milliseconds(self.delay)
    }

    pub(crate) fn expires_ms(&self) -> Option<i64> {
        self.expires.map(milliseconds)
    }

    pub(crate) fn headers_json(&self) -> String {
        serde_json::json!(self.headers).to_string()
    }

    /// Refuses what no relay could deliver, and says which field is wrong.
    pub(crate) fn check(&self, payload_max: u64) -> Result<(), PublishError> {
        let refuse = |text: String| Err(PublishError::Invalid(text));
        if self.topic.is_empty() {
            return refuse("the topic is empty".into());
        }
        let texts = [("topic", Some(&self.topic)), ("key", self.key.as_ref()), ("dedup key", self.dedup_key.as_ref())];
        for (field, text) in texts {
            if let Some(text) = text.filter(|text| text.contains('\0')) {
                return refuse(format!("the {field} {text:?} contains a NUL"));
            }
        }
        for (name, value) in &self.headers {
            if name.contains('\0') || value.contains('\0') {
                return refuse(format!("the header {name:?} contains a NUL"));
            }
        }
        let bytes = self.payload.len() as u64;
        if bytes > payload_max {
            return refuse(format!(
                "the payload has {bytes} bytes, more than the {payload_max} that are allowed; store the data elsewhere and publish a reference to it"
            ));
        }
        if let Err(error) = serde_json::from_str::<IgnoredAny>(&self.payload) {
            return refuse(format!("the payload is not JSON: {error}"));
        }
        Ok(())
    }
}

fn milliseconds(duration: Duration) -> i64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(WAIT_MS_MAX) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(message: NewMessage) -> String {
        message.check(16).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_delivered_is_refused_by_field() {
        assert_eq!(refusal(NewMessage::from_json("", "1")), "the topic is empty");
        assert_eq!(refusal(NewMessage::from_json("a\0", "1")), r#"the topic "a\0" contains a NUL"#);
        assert_eq!(refusal(NewMessage::from_json("a", "1").key("k\0")), r#"the key "k\0" contains a NUL"#);
        assert_eq!(refusal(NewMessage::from_json("a", "1").dedup_key("\0")), r#"the dedup key "\0" contains a NUL"#);
        assert_eq!(refusal(NewMessage::from_json("a", "1").header("h", "\0")), r#"the header "h" contains a NUL"#);
        assert!(refusal(NewMessage::from_json("a", "{")).starts_with("the payload is not JSON: EOF"));
        assert!(refusal(NewMessage::from_json("a", "1 2")).starts_with("the payload is not JSON: trailing"));
        assert!(
            refusal(NewMessage::from_json("a", "12345678901234567"))
                .starts_with("the payload has 17 bytes, more than the 16")
        );
        assert!(NewMessage::from_json("a", r#"{"b":1,"b":2}"#).check(16).is_ok());
    }
}
