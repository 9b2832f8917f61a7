;; why: resources of the host are bounded in number
;; expect: trap
(import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
(func $main (result i32) (loop $l (drop (call $after (i64.const 1))) (br $l)) unreachable)
