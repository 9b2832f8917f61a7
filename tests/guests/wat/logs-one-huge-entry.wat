;; why: what one host call may copy out of a guest is bounded
;; expect: trap
(import "wasi:logging/logging@0.1.0-draft" "log" (func $log (param i32 i32 i32 i32 i32)))
(func $main (result i32) (drop (memory.grow (i32.const 500)))
  (memory.fill (i32.const 65536) (i32.const 97) (i32.const 30000000))
  (call $log (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 65536) (i32.const 30000000)) (call $ok))
