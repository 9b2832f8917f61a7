;; why: output past the cap is dropped; the last words still reach the error text
;; expect: trap
;; says: last words
(import "wasi:cli/stderr@0.2.12" "get-stderr" (func $stderr (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(data (i32.const 1024) "a line that says nothing\nlast words\n")
(func $main (result i32) (local $s i32) (local $n i32) (local.set $s (call $stderr))
  (loop $l (call $write (local.get $s) (i32.const 1024) (i32.const 25) (i32.const 256))
    (local.set $n (i32.add (local.get $n) (i32.const 1))) (br_if $l (i32.lt_u (local.get $n) (i32.const 4000))))
  (call $write (local.get $s) (i32.const 1049) (i32.const 11) (i32.const 256)) unreachable)
