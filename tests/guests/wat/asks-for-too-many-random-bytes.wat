;; why: one request for random bytes ends at 64 KiB
;; expect: trap
(import "wasi:random/random@0.2.12" "get-random-bytes" (func $bytes (param i64 i32)))
(func $main (result i32) (call $bytes (i64.const 100000000) (i32.const 256)) (call $ok))
