;; why: a trap; the guard pages hold, with the largest offset too
;; expect: trap
;; says: out of bounds
(func $main (result i32) (i64.store offset=4294967295 (i32.const -1) (i64.const 1)) (call $ok))
