;; why: a data segment beyond memory fails the trial, not the first message
;; expect: refused
;; says: cannot be started
(data (i32.const 10000000) "x")
(func $main (result i32) (call $ok))
