;; why: a guest that waits for the host is ended by its deadline, not by its CPU budget
;; expect: deadline
;; manifest: [limits]
;; manifest: deadline = "300ms"
;; says: limits.deadline
(import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(func $main (result i32) (call $block (call $after (i64.const -1))) (call $ok))
