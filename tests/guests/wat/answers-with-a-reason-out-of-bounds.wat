;; why: the text of a failure is checked
;; expect: trap
(func $main (result i32) (call $retry (i32.const 65536) (i32.const 2147483647)))
