;; why: a trap; the guard pages hold
;; expect: trap
;; says: out of bounds
(func $main (result i32) (i32.load (i32.const -8)))
