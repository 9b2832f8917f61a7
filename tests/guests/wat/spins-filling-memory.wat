;; why: a bulk instruction is checked at its start only, so the memory cap bounds the slice
;; expect: cpu
(func $main (result i32) (drop (memory.grow (i32.const 128)))
  (loop $l (memory.fill (i32.const 0) (i32.const 7) (i32.const 8000000)) (br $l)) unreachable)
