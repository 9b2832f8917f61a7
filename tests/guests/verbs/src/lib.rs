//! A guest that does what the payload says: `{"do": "retry", "reason": "busy"}`. One verb a behaviour, so that every
//! limit can be obeyed and violated by the message alone.
//!
//! Verbs that look at something answer with `cancel`, what they saw as the text: a test reads it as the message's error.

mod look;
mod misbehave;
mod reach;

use serde_json::Value;

wit_bindgen::generate!({ path: "../../../wit/v1", world: "plugin", generate_all });

use exports::outboxd::plugin::handler::{Failure, Guest, Message};
use outboxd::plugin::messages::Retry;

struct Verbs;

export!(Verbs);

impl Guest for Verbs {
    fn handle(message: Message) -> Result<(), Failure> {
        let order = match serde_json::from_slice(&message.payload) {
            Ok(order) => Order(order),
            Err(error) => return Err(Failure::Cancel(format!("payload is no JSON: {error}"))),
        };
        match order.verb() {
            "succeed" => Ok(()),
            "retry" => Err(retry(order.text("reason", "asked to retry"), None)),
            // "ms": the wait that is wished for.
            "retry-after" => Err(retry(order.text("reason", "asked to retry later"), Some(order.number("ms", 1_000)))),
            "cancel" => Err(Failure::Cancel(order.text("reason", "asked to cancel").into())),
            // "times": how many attempts fail before one succeeds.
            "fail-first" if u64::from(message.attempt) <= order.number("times", 1) => {
                Err(retry(&format!("attempt {} fails", message.attempt), order.optional_number("ms")))
            }
            "fail-first" => Ok(()),

            "panic" => misbehave::panic(order.text("reason", "asked to panic")),
            "trap" => misbehave::trap(),
            "exit" => misbehave::exit(),
            "overflow" => misbehave::overflow(order.number("depth", u64::MAX)),
            // "ms" of computing, and then success.
            "burn" => misbehave::burn(order.number("ms", 100)),
            "spin" => misbehave::spin(),
            "hoard" => misbehave::hoard(),
            "sleep" => misbehave::sleep(order.number("ms", 600_000)),
            "flood" => misbehave::flood(order.number("lines", 100_000)),
            "print" => misbehave::print(order.number("lines", 100_000)),
            // "bytes" of text as the reason, with a NUL and control characters among it.
            "babble" => Err(retry(&misbehave::babble(order.number("bytes", 1 << 20)), None)),

            "http" => reach::post_id(&message, order.text("url", "")),
            "requests" => reach::many(order.text("url", ""), order.number("count", 100)),
            "echo-http" => Err(reach::echo(&order)),
            "file" => Err(reach::file(order.text("path", "/etc/passwd"))),
            "tcp" => Err(reach::tcp(&order)),
            "look-up" => Err(reach::look_up(&order)),
            "tcp-kept" => Err(reach::tcp_kept(&order)),
            "listen" => Err(reach::listen(&order)),

            "echo" => Err(look::message(&message)),
            "context" => Err(look::context()),
            "setting" => Err(look::setting(order.text("key", ""))),
            "sign" => Err(look::sign(order.text("secret", ""), order.text("data", ""))),
            "environment" => Err(look::environment()),
            "log" => look::log(order.text("text", "hello")),
            "pause-key" => look::pause_key(order.number("ms", 1_000)),
            "count" => Err(look::count()),
            verb => Err(Failure::Cancel(format!("no such verb: {verb:?}"))),
        }
    }
}

fn retry(reason: &str, after_ms: Option<u64>) -> Failure {
    Failure::Retry(Retry { reason: reason.into(), after_ms })
}

/// The payload.
struct Order(Value);

impl Order {
    fn verb(&self) -> &str {
        self.text("do", "succeed")
    }

    fn text<'a>(&'a self, field: &str, default: &'a str) -> &'a str {
        self.0[field].as_str().unwrap_or(default)
    }

    fn number(&self, field: &str, default: u64) -> u64 {
        self.optional_number(field).unwrap_or(default)
    }

    fn optional_number(&self, field: &str) -> Option<u64> {
        self.0[field].as_u64()
    }
}
