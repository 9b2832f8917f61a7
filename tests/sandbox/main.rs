//! What a plugin can and cannot do, tried from the outside: each test is a sentence of `docs/sandbox.md`.

/// What leaves a plugin, and what comes back.
mod egress;
mod guest;
mod harness;
/// Everything a guest may try, one text each in `tests/guests/wat`.
mod hostile;
/// What each way to end a call comes to.
mod outcomes;
/// What lies in the folder, and what serves.
mod reload;
mod server;
