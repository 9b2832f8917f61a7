;; why: wasi:http has the same guard; its refusal is an error code, and the body is drained
;; expect: retry
;; says: https://example.com is not granted
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(data (i32.const 1024) "example.com/")
(func $main (result i32) (local $r i32)
  (local.set $r (call $request (call $fields)))
  (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const 11)))
  (drop (call $path (local.get $r) (i32.const 1) (i32.const 1035) (i32.const 1)))
  (call $handle (local.get $r) (i32.const 0) (i32.const 0) (i32.const 256))
  (if (i32.load8_u (i32.const 256)) (then unreachable))
  (call $block (call $subscribe (i32.load (i32.const 264))))
  (call $retry (i32.const 1024) (i32.const 11)))
