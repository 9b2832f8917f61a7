//! POSTs each message's payload to a URL, signed as [Standard Webhooks](https://www.standardwebhooks.com) asks.
//!
//! What an answer means, what is signed and how settings are read is plain Rust, tested by `cargo test` on any machine;
//! only [`plugin`] touches the host, and is compiled for WebAssembly alone.

pub mod answer;
#[cfg(target_family = "wasm")]
pub mod plugin;
pub mod settings;
pub mod signature;
pub mod template;
