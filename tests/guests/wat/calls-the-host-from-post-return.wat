;; why: nor may it in its clean-up
;; expect: trap
(import "wasi:clocks/monotonic-clock@0.2.12" "now" (func $now (result i64)))
(func (export "cabi_post_outboxd:plugin/handler@1.0.0#handle") (param i32) (drop (call $now)))
(func $main (result i32) (call $ok))
