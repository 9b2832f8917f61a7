;; why: a text that is none is a trap
;; expect: trap
(data (i32.const 1024) "\ff\fe\ed\a0\80")
(func $main (result i32) (call $retry (i32.const 1024) (i32.const 5)))
