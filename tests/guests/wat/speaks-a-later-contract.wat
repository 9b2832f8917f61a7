;; why: what it was built for and what this host speaks is said in words
;; expect: refused
;; says: built for outboxd:plugin 2.0.0; this host speaks 1.0
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $h (export "handle" (func $f)))
  (export "outboxd:plugin/handler@2.0.0" (instance $h)))
