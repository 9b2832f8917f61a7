;; why: a stream takes 4 KiB at a blocking write; more is the guest's mistake
;; expect: trap
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(func $main (result i32) (call $write (call $stdout) (i32.const 0) (i32.const 100000) (i32.const 256)) (call $ok))
