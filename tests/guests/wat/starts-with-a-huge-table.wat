;; why: such a table is refused at load
;; expect: refused
;; says: table
(table $t 5000000 funcref)
(func $main (result i32) (call $ok))
