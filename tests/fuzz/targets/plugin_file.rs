use outboxd::plugin::fuzzing::component_kind;

use crate::assert_readable;

/// What is seen of a file before wasmtime reads it.
pub fn try_one(bytes: &[u8]) {
    match component_kind(bytes) {
        Ok(()) => assert!(bytes.starts_with(b"\0asm\x0d\0\x01\0"), "only a component is taken for one"),
        Err(error) => assert_readable(&error),
    }
}
