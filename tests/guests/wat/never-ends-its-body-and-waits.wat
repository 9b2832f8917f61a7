;; why: a refusal reaches a guest whose body is still open
;; expect: retry
;; says: not granted
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.body" (func $body (param i32 i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-body.write" (func $stream (param i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(import "wasi:http/types@0.2.12" "[method]future-incoming-response.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(data (i32.const 1024) "example.com/")
(func $main (result i32) (local $r i32) (local $n i32)
  (local.set $r (call $request (call $fields)))
  (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const 11)))
  (drop (call $path (local.get $r) (i32.const 1) (i32.const 1035) (i32.const 1)))
  (call $body (local.get $r) (i32.const 256))
  (call $stream (i32.load (i32.const 260)) (i32.const 264))
  (call $handle (local.get $r) (i32.const 0) (i32.const 0) (i32.const 272))
  ;; A closed stream here would break guests of several languages.
  (loop $l
    (call $write (i32.load (i32.const 268)) (i32.const 4096) (i32.const 4096) (i32.const 288))
    (if (i32.load8_u (i32.const 288)) (then unreachable))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $l (i32.lt_u (local.get $n) (i32.const 100))))
  (call $block (call $subscribe (i32.load (i32.const 280))))
  (call $retry (i32.const 1024) (i32.const 11)))
