;; why: handles of others cannot be guessed
;; expect: trap
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(func $main (result i32) (call $block (i32.const 77)) (call $ok))
