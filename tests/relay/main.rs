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
mod layering;
mod operations;
mod outcomes;
mod page;
mod promises;
mod publish_page;
mod readme;
mod ready;
mod service;
mod signatures;
mod stage;
mod templates;
mod wake;
mod webhook;
