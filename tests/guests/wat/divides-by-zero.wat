;; why: a trap
;; expect: trap
;; says: divide by zero
(func $main (result i32) (i32.div_u (i32.const 1) (global.get $attempt)) drop (i32.div_u (i32.const 1) (i32.const 0)))
