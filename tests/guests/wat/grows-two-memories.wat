;; why: the limit is on the sum of all memories
;; expect: memory
(memory $second 1)
(func $main (result i32)
  (loop $l (br_if $l (i32.ge_s (i32.or (memory.grow (i32.const 16)) (memory.grow $second (i32.const 16))) (i32.const 0)))) unreachable)
