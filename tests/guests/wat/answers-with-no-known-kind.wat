;; why: a discriminant that does not exist is a trap
;; expect: trap
(func $main (result i32) (i32.store8 (i32.const 64) (i32.const 9)) (i32.const 64))
