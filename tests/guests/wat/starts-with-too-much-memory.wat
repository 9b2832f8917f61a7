;; why: what cannot start within its limit is refused at load, in words
;; expect: refused
;; says: raise limits.memory
(memory $second 3000)
(func $main (result i32) (call $ok))
