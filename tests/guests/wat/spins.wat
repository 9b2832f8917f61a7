;; why: an endless loop is interrupted at its CPU budget
;; expect: cpu
;; says: limits.cpu
(func $main (result i32) (loop $l (br $l)) unreachable)
