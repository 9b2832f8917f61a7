//! What a plugin of outboxd is written with: a function that takes a typed payload and answers what became of it.
//!
//! ```no_run
//! use outboxd_plugin::{Failure, Message, http, setting};
//!
//! #[derive(serde::Deserialize, serde::Serialize)]
//! struct Order { id: u64 }
//!
//! outboxd_plugin::handler!(deliver);
//!
//! fn deliver(order: Order, _: &Message) -> Result<(), Failure> {
//!     http::post(&setting("url")?).json(&order)?.send()?.accepted()
//! }
//! # fn main() {}
//! ```

use std::time::Duration;

use serde::de::DeserializeOwned;

pub mod http;

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "plugin",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "outboxd_plugin::bindings",
    });
}

pub use bindings::outboxd::plugin::context;
pub use bindings::outboxd::plugin::messages::{Failure, Message};
pub use bindings::outboxd::plugin::secrets;
pub use bindings::wasi::logging::logging;

/// Makes a function the plugin's handler: `fn(T, &Message) -> Result<(), Failure>`, where `T` is what the payload is read as.
#[macro_export]
macro_rules! handler {
    ($deliver:path) => {
        fn outboxd_typed(message: &$crate::Message) -> ::std::result::Result<(), $crate::Failure> {
            $crate::handle(message, $deliver)
        }

        $crate::raw_handler!(outboxd_typed);
    };
}

/// Makes a function the plugin's handler that reads the payload itself: `fn(&Message) -> Result<(), Failure>`.
#[macro_export]
macro_rules! raw_handler {
    ($deliver:path) => {
        struct OutboxdHandler;

        impl $crate::bindings::exports::outboxd::plugin::handler::Guest for OutboxdHandler {
            fn handle(message: $crate::Message) -> ::std::result::Result<(), $crate::Failure> {
                $deliver(&message)
            }
        }

        $crate::bindings::export!(OutboxdHandler with_types_in $crate::bindings);
    };
}

/// Reads the payload and calls `deliver`. A payload of another shape never becomes right: it is cancelled.
#[doc(hidden)]
pub fn handle<T: DeserializeOwned>(
    message: &Message,
    deliver: fn(T, &Message) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let payload = serde_json::from_slice(&message.payload)
        .map_err(|error| cancel(format!("the payload is not what this plugin reads: {error}")))?;
    deliver(payload, message)
}

/// Never try again: the message is dead, with this text as its error, until a person redrives it.
pub fn cancel(reason: impl Into<String>) -> Failure {
    Failure::Cancel(cropped(reason.into()))
}

/// Try again, after `after` where the target says when, else by the topic's backoff.
pub fn retry(reason: impl Into<String>, after: Option<Duration>) -> Failure {
    let after_ms = after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    Failure::Retry(bindings::outboxd::plugin::messages::Retry { reason: cropped(reason.into()), after_ms })
}

/// What the host keeps of a reason. Bytes. Megabytes of one would end the call as a trap.
const REASON_BYTES_MAX: usize = 8 << 10;

fn cropped(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    reason
}

/// A value of `[settings]` in the manifest, where there is one.
pub fn optional_setting(name: &str) -> Option<String> {
    bindings::wasi::config::store::get(name).ok().flatten()
}

/// A value of `[settings]` in the manifest. Its absence is the operator's to correct, so the message waits.
pub fn setting(name: &str) -> Result<String, Failure> {
    match bindings::wasi::config::store::get(name) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(retry(format!("the manifest has no {name:?} in [settings]"), None)),
        Err(error) => Err(retry(format!("settings cannot be read: {error:?}"), None)),
    }
}
