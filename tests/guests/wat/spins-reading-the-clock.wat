;; why: a loop of host calls is still the guest's time
;; expect: cpu
(import "wasi:clocks/monotonic-clock@0.2.12" "now" (func $now (result i64)))
(func $main (result i32) (loop $l (drop (call $now)) (br $l)) unreachable)
