;; why: the same through a table
;; expect: trap
;; says: call stack exhausted
(type $f (func (result i32)))
(table $t 1 funcref) (elem (table $t) (i32.const 0) func $deep)
(func $deep (type $f) (i32.add (call_indirect $t (type $f) (i32.const 0)) (i32.const 1)))
(func $main (result i32) (call $deep))
