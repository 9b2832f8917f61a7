;; why: a URL ends at 8 KiB
;; expect: denied
;; says: longer than 8 KiB
(import "outboxd:plugin/http@1.0.0" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
(data (i32.const 1024) "GEThttps://")
(func $main (result i32) (drop (memory.grow (i32.const 20)))
  (memory.copy (i32.const 65536) (i32.const 1027) (i32.const 8)) (memory.fill (i32.const 65544) (i32.const 97) (i32.const 1048576))
  (call $send (i32.const 1024) (i32.const 3) (i32.const 65536) (i32.const 1048584) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 256))
  unreachable)
