;; why: polling without waiting is the guest's time
;; expect: cpu
(import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.ready" (func $ready (param i32) (result i32)))
(global $p (mut i32) (i32.const 0))
(func $main (result i32)
  (global.set $p (call $after (i64.const 3600000000000)))
  (loop $l (drop (call $ready (global.get $p))) (br $l)) unreachable)
