;; why: a handle that is gone is gone
;; expect: trap
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
(import "wasi:io/streams@0.2.12" "[resource-drop]output-stream" (func $drop (param i32)))
(func $main (result i32) (local $s i32) (local.set $s (call $stdout)) (call $drop (local.get $s)) (call $drop (local.get $s)) (call $ok))
