;; why: a start function is guest code too: it is bounded before the first message
;; expect: refused
;; says: spent its CPU budget
(func $init (loop $l (br $l))) (start $init)
(func $main (result i32) (call $ok))
