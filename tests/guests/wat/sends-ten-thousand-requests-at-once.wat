;; why: requests are bounded in number, refused ones included in no queue
;; expect: denied
;; manifest: [limits]
;; manifest: cpu = "5s"
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-authority" (func $authority (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(import "wasi:http/outgoing-handler@0.2.12" "handle" (func $handle (param i32 i32 i32 i32)))
(data (i32.const 1024) "example.com/")
(func $main (result i32) (local $r i32) (local $n i32)
  (loop $l
    (local.set $r (call $request (call $fields)))
    (drop (call $authority (local.get $r) (i32.const 1) (i32.const 1024) (i32.const 11)))
    (drop (call $path (local.get $r) (i32.const 1) (i32.const 1035) (i32.const 1)))
    (call $handle (local.get $r) (i32.const 0) (i32.const 0) (i32.const 256))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $l (i32.lt_u (local.get $n) (i32.const 10000))))
  unreachable)
