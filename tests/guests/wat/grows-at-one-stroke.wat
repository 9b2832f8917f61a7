;; why: one huge growth is refused like many small ones
;; expect: memory
(func $main (result i32) (if (i32.lt_s (memory.grow (i32.const 65000)) (i32.const 0)) (then unreachable)) (call $ok))
