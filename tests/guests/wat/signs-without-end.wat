;; why: a call may sign 64 times
;; expect: denied
;; says: 64 signatures
(import "outboxd:plugin/secrets@1.0.0" "hmac-sha256" (func $sign (param i32 i32 i32 i32 i32)))
(func $main (result i32) (loop $l (call $sign (i32.const 1024) (i32.const 1) (i32.const 1024) (i32.const 1) (i32.const 256)) (br $l)) unreachable)
