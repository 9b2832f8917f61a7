;; why: a wish is only a wish; the policy clamps it
;; expect: retry
(func $main (result i32) (drop (call $retry (i32.const 1024) (i32.const 0)))
  (i32.store8 (i32.const 88) (i32.const 1)) (i64.store (i32.const 96) (i64.const -1)) (i32.const 64))
