;; why: an absolute URL in the request line names another host (GHSA-5qpp)
;; expect: success
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(import "wasi:http/types@0.2.12" "[method]outgoing-request.set-path-with-query" (func $path (param i32 i32 i32 i32) (result i32)))
(data (i32.const 1024) "http://169.254.169.254/")
(func $main (result i32) (if (i32.eqz (call $path (call $request (call $fields)) (i32.const 1) (i32.const 1024) (i32.const 23))) (then unreachable)) (call $ok))
