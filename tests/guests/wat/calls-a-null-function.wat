;; why: a trap
;; expect: trap
;; says: uninitialized
(type $f (func (result i32))) (table $t 4 funcref)
(func $main (result i32) (call_indirect $t (type $f) (i32.const 2)))
