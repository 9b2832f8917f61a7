;; why: the clean-up after an answer is guest code too
;; expect: cpu
(func (export "cabi_post_outboxd:plugin/handler@1.0.0#handle") (param i32) (loop $l (br $l)))
(func $main (result i32) (call $ok))
