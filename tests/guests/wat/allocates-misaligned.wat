;; why: the allocator's word is checked
;; expect: trap
(module
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 3)
  (func (export "outboxd:plugin/handler@1.0.0#handle")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32) i32.const 0))
