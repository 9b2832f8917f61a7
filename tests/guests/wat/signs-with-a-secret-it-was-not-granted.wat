;; why: a secret that is not granted looks like one that does not exist; the host says so beside the guest's words
;; expect: retry
;; says: "API_KEY" is not granted
(import "outboxd:plugin/secrets@1.0.0" "hmac-sha256" (func $sign (param i32 i32 i32 i32 i32)))
(data (i32.const 1024) "API_KEY")
(func $main (result i32) (call $sign (i32.const 1024) (i32.const 7) (i32.const 1024) (i32.const 1) (i32.const 256))
  (if (i32.or (i32.ne (i32.load8_u (i32.const 256)) (i32.const 1)) (i32.load8_u (i32.const 260))) (then unreachable))
  (call $retry (i32.const 1024) (i32.const 0)))
