;; why: no socket reaches anything
;; expect: success
(import "wasi:sockets/instance-network@0.2.12" "instance-network" (func $network (result i32)))
(import "wasi:sockets/tcp-create-socket@0.2.12" "create-tcp-socket" (func $socket (param i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.start-connect" (func $connect (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(func $main (result i32)
  (call $socket (i32.const 0) (i32.const 256))
  (if (i32.load8_u (i32.const 256)) (then (return (call $ok))))
  (call $connect (i32.load (i32.const 260)) (call $network) (i32.const 0) (i32.const 80) (i32.const 127) (i32.const 0) (i32.const 0) (i32.const 1)
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 264))
  (if (i32.eqz (i32.load8_u (i32.const 264))) (then unreachable)) (call $ok))
