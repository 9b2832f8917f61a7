;; why: a flood of log entries is dropped past the cap and counted, and its time is the guest's
;; expect: cpu
(import "wasi:logging/logging@0.1.0-draft" "log" (func $log (param i32 i32 i32 i32 i32)))
(data (i32.const 1024) "the same line again and again")
(func $main (result i32) (loop $l (call $log (i32.const 2) (i32.const 1024) (i32.const 3) (i32.const 1024) (i32.const 29)) (br $l)) unreachable)
