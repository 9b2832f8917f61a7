;; why: the contract's types are compared exactly
;; expect: refused
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $h (export "handle" (func $f)))
  (export "outboxd:plugin/handler@1.0.0" (instance $h)))
