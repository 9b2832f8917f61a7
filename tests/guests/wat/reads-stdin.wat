;; why: stdin is closed
;; expect: success
(import "wasi:cli/stdin@0.2.12" "get-stdin" (func $stdin (result i32)))
(import "wasi:io/streams@0.2.12" "[method]input-stream.blocking-read" (func $read (param i32 i64 i32)))
(func $main (result i32) (call $read (call $stdin) (i64.const 100) (i32.const 256))
  (if (i32.eqz (i32.load8_u (i32.const 256))) (then unreachable)) (call $ok))
