;; why: unreachable is a trap
;; expect: trap
;; says: unreachable
(func $main (result i32) unreachable)
