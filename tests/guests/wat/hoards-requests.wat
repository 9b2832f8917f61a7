;; why: resources of the host are bounded in number
;; expect: trap
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
(func $main (result i32) (loop $l (drop (call $request (call $fields))) (br $l)) unreachable)
