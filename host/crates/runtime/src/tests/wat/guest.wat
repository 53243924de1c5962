;; A component whose core module contains `functions`; `execute` receives the address of its request and returns the
;; address of its result. Bytes 64 to 95 of its memory contain `GET/`, then `{}` at 72. Tests replace the
;; (; block comments ;).
(component
    (; types ;)
    (core module $libc
        (memory (export "memory") 2)
        (data (i32.const 64) "GET/")
        (data (i32.const 72) "{}")
        (global $next (mut i32) (i32.const 65536))
        (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
            (; allocator ;)))
    (core instance $libc (instantiate $libc))
    (alias core export $libc "memory" (core memory $memory))
    (alias core export $libc "cabi_realloc" (core func $realloc))
    (core func $log (canon lower (func $log "write") (memory $memory)))
    (core func $send (canon lower (func $http "send") (memory $memory) (realloc $realloc)))
    (core func $status (canon lower (func $credentials "status") (memory $memory) (realloc $realloc)))
    (core func $exit (canon lower (func $exit "exit")))
    (core module $plugin
        (import "host" "log" (func $log (param i32 i32 i32 i32 i32)))
        (import "host" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
        (import "host" "status" (func $status (param i32)))
        (import "host" "exit" (func $exit (param i32)))
        (import "host" "memory" (memory 2))
        (import "host" "cabi_realloc" (func $allocate (param i32 i32 i32 i32) (result i32)))
        ;; Stores a result with a kind (0: success, 1: error, 2: scope violation) and a text. Returns its address.
        (func $answer (param $kind i32) (param $text i32) (param $length i32) (result i32)
            (i32.store (i32.const 16) (local.get $kind))
            (i32.store (i32.const 20) (local.get $text))
            (i32.store (i32.const 24) (local.get $length))
            (i32.const 16))
        ;; Sends `GET /` with no query parameters, no headers and no body.
        (func $get
            (call $send (i32.const 64) (i32.const 3) (i32.const 67) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1)
                (i32.const 0) (i32.const 0) (i32.const 128)))
        (; functions ;))
    (core instance $plugin (instantiate $plugin (with "host" (instance
        (export "log" (func $log)) (export "send" (func $send)) (export "status" (func $status))
        (export "exit" (func $exit)) (export "memory" (memory $memory)) (export "cabi_realloc" (func $realloc))))))
    (func $execute (param "request" $request) (result $result)
        (canon lift (core func $plugin "execute") (memory $memory) (realloc $realloc) (; after ;)))
    (instance $executor (export "execute" (func $execute)))
    (export "monstrum:plugin/executor@0.1.0" (instance $executor)))
