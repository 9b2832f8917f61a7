;; why: no error text can make a settle fail or turn a line around
;; expect: cancelled
;; says: a\u{202e}b
(data (i32.const 1024) "a\00\e2\80\aeb")
(func $main (result i32) (call $cancel (i32.const 1024) (i32.const 6)))
