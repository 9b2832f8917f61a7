;; why: a trap
;; expect: trap
;; says: type mismatch
(type $f (func (result i32))) (type $g (func (param i64)))
(table $t 1 funcref) (elem (table $t) (i32.const 0) func $other)
(func $other (type $g))
(func $main (result i32) (call_indirect $t (type $f) (i32.const 0)))
