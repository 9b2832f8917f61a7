;; why: bytes that the host writes into the guest's allocator are the guest's memory
;; expect: memory
;; manifest: [limits]
;; manifest: memory = "4MiB"
;; manifest: cpu = "3s"
(import "wasi:random/random@0.2.12" "get-random-bytes" (func $bytes (param i64 i32)))
(func $main (result i32) (loop $l (call $bytes (i64.const 60000) (i32.const 256)) (br $l)) unreachable)
