;; why: empty writes grow nothing (GHSA-5m8g)
;; expect: cpu
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.write" (func $write (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.check-write" (func $check (param i32 i32)))
(func $main (result i32) (local $s i32) (local.set $s (call $stdout))
  (loop $l (call $check (local.get $s) (i32.const 256)) (call $write (local.get $s) (i32.const 0) (i32.const 0) (i32.const 256)) (br $l)) unreachable)
