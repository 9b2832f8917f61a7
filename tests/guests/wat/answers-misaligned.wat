;; why: the address of the answer is checked
;; expect: trap
(func $main (result i32) (i32.const 65))
