//! One request, one answer, to the hosts in the manifest's `[grants]`.

use std::time::Duration;

use serde::Serialize;

use crate::bindings::outboxd::plugin::http::{self, HttpError};
use crate::{Failure, cancel, context, retry};

/// A request that carries the message's id as `idempotency-key`, and its trace context where it has one.
pub struct Request(http::Request);

/// What came back, whatever its status. Redirects are not followed.
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A POST to an absolute URL.
pub fn post(url: &str) -> Request {
    request("POST", url)
}

/// A request of any method to an absolute URL.
pub fn request(method: &str, url: &str) -> Request {
    let mut headers = vec![("idempotency-key".to_owned(), context::idempotency_key())];
    headers.extend(context::traceparent().map(|parent| ("traceparent".to_owned(), parent)));
    Request(http::Request { method: method.into(), url: url.into(), headers, body: vec![], timeout_ms: None })
}

impl Request {
    /// Adds a header. `{{secret:NAME}}` in `value` is filled in by the host, where the manifest grants it.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.headers.push((name.into(), value.into()));
        self
    }

    /// For the whole exchange. The call's own deadline stands above it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sends these bytes.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.0.body = body.into();
        self
    }

    /// Sends `value` as JSON.
    pub fn json(self, value: &impl Serialize) -> Result<Self, Failure> {
        let body = serde_json::to_vec(value).map_err(|error| cancel(format!("the body is no JSON: {error}")))?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Sends it and waits for the whole answer. Where none comes the message is tried again.
    pub fn send(self) -> Result<Answer, Failure> {
        let http::Response { status, headers, body } =
            http::send(&self.0).map_err(|error| retry(no_answer(error), None))?;
        Ok(Answer { status, headers, body })
    }
}

impl Answer {
    /// Success where the status is 2xx, else another try, after `retry-after` where the target says it.
    pub fn accepted(&self) -> Result<(), Failure> {
        match self.status {
            200..=299 => Ok(()),
            status => Err(retry(format!("HTTP {status}: {}", self.text()), self.retry_after())),
        }
    }

    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// `retry-after` where it is a number of seconds; a date is not read.
    pub fn retry_after(&self) -> Option<Duration> {
        self.header("retry-after")?.trim().parse().ok().map(Duration::from_secs)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn no_answer(error: HttpError) -> String {
    match error {
        HttpError::Denied(what) => format!("denied: {what}"),
        HttpError::Dns => "no answer: the host's name could not be resolved".into(),
        HttpError::Connect => "no answer: connection refused or unreachable".into(),
        HttpError::Tls => "no answer: the TLS handshake failed".into(),
        HttpError::Timeout => "no answer in time".into(),
        HttpError::TooLarge => "the answer was too large".into(),
        HttpError::Protocol(what) => format!("no usable answer: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)]) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status, headers, body: b"no such order".to_vec() }
    }

    #[test]
    fn only_2xx_is_accepted_and_the_wait_is_the_targets() {
        assert!(answer(204, &[]).accepted().is_ok());
        let Err(Failure::Retry(retry)) = answer(503, &[("retry-after", " 30 ")]).accepted() else { panic!("accepted") };
        assert_eq!((&*retry.reason, retry.after_ms), ("HTTP 503: no such order", Some(30_000)));
    }

    #[test]
    fn of_a_long_answer_its_start_is_the_reason() {
        let Err(Failure::Retry(retry)) =
            (Answer { status: 503, headers: vec![], body: "€".repeat(1 << 20).into() }).accepted()
        else {
            panic!("accepted")
        };

        assert!(
            retry.reason.starts_with("HTTP 503: €") && retry.reason.len() == (8 << 10) - 1,
            "{}",
            retry.reason.len()
        );
    }

    #[test]
    fn a_wait_that_is_no_number_of_seconds_is_none() {
        for odd in ["", "soon", "-1", "1.5", "99999999999999999999999", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(answer(503, &[("retry-after", odd)]).retry_after(), None, "{odd}");
        }
    }
}
