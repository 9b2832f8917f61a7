;; why: a missing import is named at load
;; expect: refused
;; says: acme:things/widget
(component
  (import "acme:things/widget@1.0.0" (instance $w (export "make" (func))))
  (type $message (record (field "id" string) (field "topic" string) (field "key" (option string)) (field "payload" (list u8))
    (field "headers" (list (tuple string string))) (field "attempt" u32) (field "created-at-ms" u64)))
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $h (export "handle" (func $f)))
  (export "outboxd:plugin/handler@1.0.0" (instance $h)))
