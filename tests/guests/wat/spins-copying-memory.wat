;; why: the same with memory.copy
;; expect: cpu
(func $main (result i32) (drop (memory.grow (i32.const 128)))
  (loop $l (memory.copy (i32.const 64) (i32.const 0) (i32.const 8000000)) (br $l)) unreachable)
