//! What a plugin can and cannot do, tried from the outside: each test is a sentence of `docs/sandbox.md`.

/// Two plugins and one topic.
mod collisions;
/// Where plugins are compiled, and what that may cost.
mod compiler;
/// What a plugin is told, and how.
mod contract;
/// The manual's promises lead to tests.
mod docs;
/// What leaves a plugin, and what comes back.
mod egress;
mod folder;
/// Golden messages: what goes live must pass them.
mod golden;
mod guest;
mod harness;
/// Everything a guest may try, one text each in `tests/guests/wat`.
mod hostile;
/// Everything that may lie in the folder and is no plugin.
mod hostile_folder;
/// How soon a version serves after a start, and after its last byte.
mod how_soon;
/// Fresh and reused instances, profiles, and who gets the threads.
mod instances;
/// Each limit, obeyed and violated.
mod limits;
/// Reloads by the hundred, or by the thousand: under load, and what they leave in memory.
mod many_reloads;
/// A folder that is ruined at random.
mod mutations;
/// What each way to end a call comes to.
mod outcomes;
/// The bugs that stand in the code on purpose are found.
#[cfg(feature = "planted-bugs")]
mod planted {
    #[test]
    fn every_planted_bug_is_found() {
        outboxd_test_support::planted::every_bug_is_found(outboxd_test_support::planted::Suite::Sandbox);
    }
}
/// What lies in the folder, and what serves.
mod reload;
/// What a restart finds.
mod restart;
/// A new version beside the old one.
mod rollout;
/// Signing and placeholders.
mod secrets;
mod server;
/// Addresses inside, in every form, against canaries.
mod ssrf;
/// Files that change faster than they can be compiled.
mod storm;
/// Bodies through `wasi:http`.
mod streams;
/// Raw connections, where they are granted.
mod tcp;
/// Pins and signatures.
mod trust;
