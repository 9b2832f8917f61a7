;; why: the host names the reason: what follows a refusal is denied, whatever the guest does
;; expect: denied
;; says: http://169.254.169.254 is not granted
(import "outboxd:plugin/http@1.0.0" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
(data (i32.const 1024) "GEThttp://169.254.169.254/latest/meta-data/")
(func $main (result i32)
  (call $send (i32.const 1024) (i32.const 3) (i32.const 1027) (i32.const 40) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 256))
  unreachable)
