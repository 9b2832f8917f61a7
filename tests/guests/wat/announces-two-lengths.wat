;; why: a request has one content-length or none
;; expect: success
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[method]fields.append" (func $append (param i32 i32 i32 i32 i32 i32)))
(data (i32.const 1024) "content-length12")
(func $main (result i32) (local $f i32) (local.set $f (call $fields))
  (call $append (local.get $f) (i32.const 1024) (i32.const 14) (i32.const 1038) (i32.const 1) (i32.const 256))
  (call $append (local.get $f) (i32.const 1024) (i32.const 14) (i32.const 1039) (i32.const 1) (i32.const 260))
  (if (i32.or (i32.load8_u (i32.const 256)) (i32.eqz (i32.load8_u (i32.const 260)))) (then unreachable)) (call $ok))
