//! The real binary, from outside: what a user is promised, on every database.

mod admin_page;
mod bad_input;
mod canary;
mod cli;
mod deliver;
mod demo;
mod doctor;
mod edges;
mod fairness;
mod health;
mod idempotency_page;
mod json;
mod keys;
mod layering;
mod limits;
mod night;
mod operations;
mod outcomes;
mod page;
mod plugin_folder;
mod plugin_list;
mod promises;
mod publish_page;
mod readme;
mod ready;
mod redis;
mod service;
mod signatures;
mod stage;
mod swaps;
mod templates;
#[cfg(feature = "otel")]
mod traces;
mod wake;
mod webhook;
