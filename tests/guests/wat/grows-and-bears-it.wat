;; why: a refused growth is an answer, and a guest that can live with it succeeds
;; expect: success
(func $main (result i32) (drop (memory.grow (i32.const 65000))) (call $ok))
