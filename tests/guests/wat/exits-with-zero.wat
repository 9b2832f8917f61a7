;; why: an exit is no answer
;; expect: trap
;; says: exit(0)
(import "wasi:cli/exit@0.2.12" "exit" (func $exit (param i32)))
(func $main (result i32) (call $exit (i32.const 0)) unreachable)
