;; why: a module with more memories than the pool gives to one is refused at load
;; expect: refused
;; says: memories
(memory $second 1) (memory $third 1)
(func $main (result i32) (call $ok))
