;; why: the host's own headers cannot even be set
;; expect: success
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[method]fields.append" (func $append (param i32 i32 i32 i32 i32 i32)))
(data (i32.const 1024) "hosttransfer-encodingproxy-authorization")
(func $main (result i32) (local $f i32) (local.set $f (call $fields))
  (call $append (local.get $f) (i32.const 1024) (i32.const 4) (i32.const 1024) (i32.const 4) (i32.const 256))
  (call $append (local.get $f) (i32.const 1028) (i32.const 17) (i32.const 1024) (i32.const 4) (i32.const 260))
  (call $append (local.get $f) (i32.const 1045) (i32.const 19) (i32.const 1024) (i32.const 4) (i32.const 264))
  (if (i32.eqz (i32.and (i32.and (i32.load8_u (i32.const 256)) (i32.load8_u (i32.const 260))) (i32.load8_u (i32.const 264)))) (then unreachable))
  (call $ok))
