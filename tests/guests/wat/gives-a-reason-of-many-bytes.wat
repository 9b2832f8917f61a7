;; why: a reason is cut to 8 KiB
;; expect: retry
;; longest: 8192
(func $main (result i32) (memory.fill (i32.const 65536) (i32.const 97) (i32.const 60000)) (call $retry (i32.const 65536) (i32.const 60000)))
