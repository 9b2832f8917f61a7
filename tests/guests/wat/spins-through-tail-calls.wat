;; why: an endless chain of tail calls needs no stack and no loop
;; expect: cpu
(func $again (result i32) (return_call $again))
(func $main (result i32) (call $again))
