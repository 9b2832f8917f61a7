;; why: a header map ends at 64 KiB; appending past it is an error, not memory of the host
;; expect: trap
;; says: total size of fields
(import "wasi:http/types@0.2.12" "[constructor]fields" (func $fields (result i32)))
(import "wasi:http/types@0.2.12" "[method]fields.append" (func $append (param i32 i32 i32 i32 i32 i32)))
(data (i32.const 1024) "x-header")
(func $main (result i32) (local $f i32) (local.set $f (call $fields))
  (loop $l (call $append (local.get $f) (i32.const 1024) (i32.const 8) (i32.const 1024) (i32.const 8) (i32.const 256)) (br $l)) unreachable)
