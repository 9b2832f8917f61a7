;; why: memory ends at the limit of the manifest
;; expect: memory
;; says: limits.memory
(func $main (result i32) (loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)))) unreachable)
