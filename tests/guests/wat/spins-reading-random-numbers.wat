;; why: a loop of host calls is still the guest's time
;; expect: cpu
(import "wasi:random/random@0.2.12" "get-random-u64" (func $random (result i64)))
(func $main (result i32) (loop $l (drop (call $random)) (br $l)) unreachable)
