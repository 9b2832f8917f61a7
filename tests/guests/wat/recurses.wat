;; why: the stack of a guest ends long before the host's
;; expect: trap
;; says: call stack exhausted
(func $deep (result i32) (i32.add (call $deep) (i32.const 1)))
(func $main (result i32) (call $deep))
