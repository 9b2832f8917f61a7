;; why: resources of the host are bounded in number
;; expect: trap
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
(func $main (result i32) (loop $l (drop (call $stdout)) (br $l)) unreachable)
