;; why: what an answer may copy out of a guest is bounded
;; expect: trap
(func $main (result i32) (drop (memory.grow (i32.const 130))) (call $retry (i32.const 65536) (i32.const 8000000)))
