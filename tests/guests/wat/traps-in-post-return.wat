;; why: an answer whose clean-up traps is no answer
;; expect: trap
(func (export "cabi_post_outboxd:plugin/handler@1.0.0#handle") (param i32) unreachable)
(func $main (result i32) (call $ok))
