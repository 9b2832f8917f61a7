;; why: host code at the very end of the guest's stack has room of its own
;; expect: trap
;; says: call stack exhausted
(import "wasi:logging/logging@0.1.0-draft" "log" (func $log (param i32 i32 i32 i32 i32)))
(func $deep (result i32)
  (call $log (i32.const 0) (i32.const 1024) (i32.const 0) (i32.const 1024) (i32.const 0))
  (i32.add (call $deep) (i32.const 1)))
(func $main (result i32) (call $deep))
