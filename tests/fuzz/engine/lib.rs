//! Nothing: only the library that the build script of libfuzzer-sys makes is wanted.
