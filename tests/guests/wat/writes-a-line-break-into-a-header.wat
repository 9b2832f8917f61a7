;; why: a header cannot become two
;; expect: success
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[method]fields.append" (func $append (param i32 i32 i32 i32 i32 i32)))
(data (i32.const 1024) "x-a\0d\0ahost: evil")
(func $main (result i32) (call $append (call $fields) (i32.const 1024) (i32.const 3) (i32.const 1024) (i32.const 16) (i32.const 256))
  (if (i32.eqz (i32.load8_u (i32.const 256))) (then unreachable)) (call $ok))
