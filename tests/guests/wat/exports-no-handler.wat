;; why: what it exports instead is said
;; expect: refused
;; says: no outboxd:plugin/handler
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (export "run" (func $f)))
