;; why: a trap
;; expect: trap
;; says: conversion
(func $main (result i32) (i32.trunc_f64_s (f64.const nan)))
