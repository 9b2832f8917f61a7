//! A component of another world: a program instead of a plugin, as `cargo new` without `--lib` gives it.

fn main() {}
