;; why: polling an empty list is an error of the guest, not a panic of the host
;; expect: trap
(import "wasi:io/poll@0.2.12" "poll" (func $poll (param i32 i32 i32)))
(func $main (result i32) (call $poll (i32.const 1024) (i32.const 0) (i32.const 256)) (call $ok))
