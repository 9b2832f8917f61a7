;; why: names are not resolved for guests
;; expect: success
(import "wasi:sockets/instance-network@0.2.12" "instance-network" (func $network (result i32)))
(import "wasi:sockets/ip-name-lookup@0.2.12" "resolve-addresses" (func $resolve (param i32 i32 i32 i32)))
(data (i32.const 1024) "localhost")
(func $main (result i32) (call $resolve (call $network) (i32.const 1024) (i32.const 9) (i32.const 256))
  (if (i32.eqz (i32.load8_u (i32.const 256))) (then unreachable)) (call $ok))
