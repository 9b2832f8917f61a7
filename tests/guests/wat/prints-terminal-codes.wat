;; why: control characters are escaped in every sink
;; expect: trap
;; says: \u{1b}[31m\u{7}
(import "wasi:cli/stderr@0.2.12" "get-stderr" (func $stderr (result i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(data (i32.const 1024) "\1b[31m\07\00\e2\80\ae!\ff\n")
(func $main (result i32) (call $write (call $stderr) (i32.const 1024) (i32.const 13) (i32.const 256)) unreachable)
