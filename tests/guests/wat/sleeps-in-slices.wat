;; why: many short waits are one long one
;; expect: deadline
;; manifest: [limits]
;; manifest: deadline = "300ms"
(import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(import "wasi:io/poll@0.2.12" "[resource-drop]pollable" (func $drop (param i32)))
(func $main (result i32) (local $p i32)
  (loop $l (local.set $p (call $after (i64.const 1000000))) (call $block (local.get $p)) (call $drop (local.get $p)) (br $l)) unreachable)
