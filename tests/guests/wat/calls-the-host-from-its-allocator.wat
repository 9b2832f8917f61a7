;; why: a guest may not leave while the host writes into it
;; expect: trap
(module
  (import "wasi:clocks/monotonic-clock@0.2.12" "now" (func $now (result i64)))
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (drop (call $now)) (i32.const 1024))
  (func (export "outboxd:plugin/handler@1.0.0#handle")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32) i32.const 0))
