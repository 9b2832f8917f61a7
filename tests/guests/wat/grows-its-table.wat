;; why: a table ends at 100,000 elements
;; expect: memory
;; says: tables
(table $t 1 funcref)
(func $main (result i32) (loop $l (br_if $l (i32.ge_s (table.grow $t (ref.null func) (i32.const 1000)) (i32.const 0)))) unreachable)
