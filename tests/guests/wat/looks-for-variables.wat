;; why: no variable and no argument is there
;; expect: success
(import "wasi:cli/environment@0.2.12" "get-environment" (func $env (param i32)))
(import "wasi:cli/environment@0.2.12" "get-arguments" (func $args (param i32)))
(func $main (result i32) (call $env (i32.const 256)) (call $args (i32.const 264))
  (if (i32.or (i32.load (i32.const 260)) (i32.load (i32.const 268))) (then unreachable)) (call $ok))
