;; why: a line without an end is cut, not kept
;; expect: success
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(func $main (result i32) (local $s i32) (local $n i32) (local.set $s (call $stdout)) (memory.fill (i32.const 4096) (i32.const 120) (i32.const 4096))
  (loop $l (call $write (local.get $s) (i32.const 4096) (i32.const 4096) (i32.const 256))
    (local.set $n (i32.add (local.get $n) (i32.const 1))) (br_if $l (i32.lt_u (local.get $n) (i32.const 400))))
  (call $ok))
