//! Plugins: from a file in a folder to a sandboxed call.
//!
//! The life of one call: [`registry`] routes a topic to the version that serves it. [`instance`] makes a fresh store whose
//! data is [`state`], bounds it by [`limits`], `cpu` and a deadline, hands the message over and waits, all on [`threads`] of
//! the guests' own. Whatever the guest
//! sends passes [`egress`], whatever it prints passes `output`. [`outcome`] judges what was seen: the host names the
//! reason, the guest cannot. The version's health then says whose fault a fault is. The store is dropped, always.
//!
//! The life of one version: `folder` reads it, `validator` lets it through: [`trust`] admits it, `component` says what it is,
//! `cache` compiles it, [`version`] links it to the grants of its [`manifest`], a trial instance starts it. Then [`loader`]
//! swaps it in. `watch` says when to look again.
//!
//! Where the manifest asks for it, [`reuse`] keeps an instance for more than one message, and [`rollout`] gives a new version
//! only a share at first. [`golden`] plays messages through a version before it goes live, [`compiler`] compiles in a child.
//!
//! Absent on purpose: the database, and the decision what becomes of a message.

mod bindings;
mod cache;
mod clock;
mod compiler;
mod component;
mod cpu;
pub mod egress;
mod engine;
mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod golden;
mod grants;
#[cfg(test)]
#[path = "../../../tests/sandbox/guest.rs"]
#[allow(dead_code, reason = "what the black-box tests need and the tests in here do not")]
mod guest;
mod host;
mod instance;
mod limits;
mod loader;
mod manifest;
mod outcome;
mod output;
mod problems;
mod redact;
mod registry;
mod reuse;
mod rollout;
mod sandbox;
mod secrets;
mod sockets;
mod state;
mod threads;
mod trust;
mod usage;
mod validator;
mod version;
mod watch;

pub use compiler::{ChildCompiler, Compiler, child_main};
pub use component::COMPONENT_BYTES_MAX;
pub(crate) use component::{Kind, kind, one_line};
pub use egress::Exchange;
pub use engine::{MEMORY_BYTES_MAX, Pooling};
pub use folder::Content;
pub(crate) use folder::read_one;
pub use golden::{Golden, read as read_goldens};
pub use grants::{Ceiling, Grants};
pub use host::{CanaryInfo, Invoked, LimitsInfo, Measured, OnePlugin, PluginHost, PluginInfo, PluginOptions};
pub use limits::Limits;
pub use manifest::{Manifest, Profile, networks, peers};
pub use rollout::Rollout;
pub use sandbox::SandboxOptions;
pub use secrets::Secrets;
pub use trust::{MinisignKey, Trust};
pub use watch::{Watch, try_watching};

/// What runs the guests.
pub const ENGINE_NAME: &str = "wasmtime";

/// The engine that is compiled in.
pub const ENGINE_VERSION: &str = env!("OUTBOXD_WASMTIME");

/// The oldest engine without a known hole that a plugin could reach.
pub const ENGINE_VERSION_MIN: &str = "48.0.8";
