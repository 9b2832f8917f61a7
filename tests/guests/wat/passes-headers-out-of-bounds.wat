;; why: lists are checked like everything else
;; expect: trap
(import "outboxd:plugin/http@1.0.0" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
(func $main (result i32)
  (call $send (i32.const 1024) (i32.const 0) (i32.const 1024) (i32.const 0) (i32.const 65536) (i32.const 100000000) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 256))
  (call $ok))
