//! outboxd: a transactional-outbox relay whose delivery logic is a sandboxed WebAssembly component.

pub mod handler;
pub mod plugin;
pub mod toml_reader;
