//! Tests that the WASI interfaces, which standard libraries need, give no access to the machine.

use std::sync::Arc;

use serde_json::json;

use super::{Bench, Host, TYPES, request, success};
use crate::{CallLimits, LogLevel, LogSource};

const WASI: &str = r#"
    (import "wasi:io/error@0.2.0" (instance $errors (export "error" (type (sub resource)))))
    (alias export $errors "error" (type $error))
    (import "wasi:io/streams@0.2.0" (instance $streams
        (export "output-stream" (type $stream (sub resource)))
        (alias outer 1 $error (type $error'))
        (export "error" (type $error (eq $error')))
        (type $failed' (variant (case "last-operation-failed" (own $error)) (case "closed")))
        (export "stream-error" (type $failed (eq $failed')))
        (export "[method]output-stream.blocking-write-and-flush"
            (func (param "self" (borrow $stream)) (param "contents" (list u8)) (result (result (error $failed)))))))
    (alias export $streams "output-stream" (type $stream))
    (import "wasi:cli/stdout@0.2.0" (instance $stdout
        (alias outer 1 $stream (type $stream'))
        (export "output-stream" (type $stream (eq $stream')))
        (export "get-stdout" (func (result (own $stream))))))
    (import "wasi:cli/stderr@0.2.0" (instance $stderr
        (alias outer 1 $stream (type $stream'))
        (export "output-stream" (type $stream (eq $stream')))
        (export "get-stderr" (func (result (own $stream))))))
    (import "wasi:cli/environment@0.2.0" (instance $environment
        (export "get-environment" (func (result (list (tuple string string)))))
        (export "get-arguments" (func (result (list string))))))
    (import "wasi:filesystem/types@0.2.0" (instance $files (export "descriptor" (type (sub resource)))))
    (alias export $files "descriptor" (type $descriptor))
    (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
        (alias outer 1 $descriptor (type $descriptor'))
        (export "descriptor" (type $descriptor (eq $descriptor')))
        (export "get-directories" (func (result (list (tuple (own $descriptor) string)))))))
    (import "wasi:sockets/network@0.2.0" (instance $network
        (type $code' (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
            "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit"
            "address-not-bindable" "address-in-use" "remote-unreachable" "connection-refused" "connection-reset"
            "connection-aborted" "datagram-too-large" "name-unresolvable" "temporary-resolver-failure"
            "permanent-resolver-failure"))
        (export "error-code" (type (eq $code')))
        (type $family' (enum "ipv4" "ipv6"))
        (export "ip-address-family" (type (eq $family')))))
    (alias export $network "error-code" (type $code))
    (alias export $network "ip-address-family" (type $family))
    (import "wasi:sockets/tcp@0.2.0" (instance $tcp (export "tcp-socket" (type (sub resource)))))
    (alias export $tcp "tcp-socket" (type $tcp-socket))
    (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $create-tcp
        (alias outer 1 $family (type $family')) (export "ip-address-family" (type $family (eq $family')))
        (alias outer 1 $code (type $code')) (export "error-code" (type $code (eq $code')))
        (alias outer 1 $tcp-socket (type $socket')) (export "tcp-socket" (type $socket (eq $socket')))
        (export "create-tcp-socket" (func (param "address-family" $family) (result (result (own $socket) (error $code)))))))
    (import "wasi:sockets/udp@0.2.0" (instance $udp (export "udp-socket" (type (sub resource)))))
    (alias export $udp "udp-socket" (type $udp-socket))
    (import "wasi:sockets/udp-create-socket@0.2.0" (instance $create-udp
        (alias outer 1 $family (type $family')) (export "ip-address-family" (type $family (eq $family')))
        (alias outer 1 $code (type $code')) (export "error-code" (type $code (eq $code')))
        (alias outer 1 $udp-socket (type $socket')) (export "udp-socket" (type $socket (eq $socket')))
        (export "create-udp-socket" (func (param "address-family" $family) (result (result (own $socket) (error $code)))))))
"#;

/// The lowered imports, under the names that the core module uses.
const LOWERED: &str = r#"
    (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush") (memory $memory)))
    (core func $stdout (canon lower (func $stdout "get-stdout")))
    (core func $stderr (canon lower (func $stderr "get-stderr")))
    (core func $variables (canon lower (func $environment "get-environment") (memory $memory) (realloc $realloc)))
    (core func $arguments (canon lower (func $environment "get-arguments") (memory $memory) (realloc $realloc)))
    (core func $folders (canon lower (func $preopens "get-directories") (memory $memory) (realloc $realloc)))
    (core func $tcp (canon lower (func $create-tcp "create-tcp-socket") (memory $memory)))
    (core func $udp (canon lower (func $create-udp "create-udp-socket") (memory $memory)))
"#;

const PLUGIN: &str = r#"
    (core module $plugin
        (import "host" "memory" (memory 2))
        (import "host" "write" (func $write (param i32 i32 i32 i32)))
        (import "host" "stdout" (func $stdout (result i32)))
        (import "host" "stderr" (func $stderr (result i32)))
        (import "host" "variables" (func $variables (param i32)))
        (import "host" "arguments" (func $arguments (param i32)))
        (import "host" "folders" (func $folders (param i32)))
        (import "host" "tcp" (func $tcp (param i32 i32)))
        (import "host" "udp" (func $udp (param i32 i32)))
        (data (i32.const 64) "[f,f,f,f,f,f,f]printed\nfailed")
        (func $digit (param $place i32) (param $value i32)
            (i32.store8 (local.get $place) (i32.add (i32.const 48) (local.get $value))))
        (func (export "execute") (param i32) (result i32)
            (call $write (call $stdout) (i32.const 79) (i32.const 8) (i32.const 128))
            (call $write (call $stderr) (i32.const 87) (i32.const 6) (i32.const 128))
            (call $variables (i32.const 128)) (call $digit (i32.const 65) (i32.load (i32.const 132)))
            (call $arguments (i32.const 128)) (call $digit (i32.const 67) (i32.load (i32.const 132)))
            (call $folders (i32.const 128)) (call $digit (i32.const 69) (i32.load (i32.const 132)))
            (call $tcp (i32.const 0) (i32.const 128))
            (call $digit (i32.const 71) (i32.load8_u (i32.const 128)))
            (call $digit (i32.const 73) (i32.load8_u (i32.const 132)))
            (call $udp (i32.const 1) (i32.const 128))
            (call $digit (i32.const 75) (i32.load8_u (i32.const 128)))
            (call $digit (i32.const 77) (i32.load8_u (i32.const 132)))
            (i32.store (i32.const 16) (i32.const 0))
            (i32.store (i32.const 20) (i32.const 64))
            (i32.store (i32.const 24) (i32.const 15))
            (i32.const 16)))
"#;

#[tokio::test]
async fn the_machine_is_not_visible_and_output_is_logged() {
    let wat = format!(
        r#"(component {TYPES} {WASI}
            (core module $libc
                (memory (export "memory") 2)
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536)))
            (core instance $libc (instantiate $libc))
            (alias core export $libc "memory" (core memory $memory))
            (alias core export $libc "cabi_realloc" (core func $realloc))
            {LOWERED} {PLUGIN}
            (core instance $plugin (instantiate $plugin (with "host" (instance
                (export "memory" (memory $memory)) (export "write" (func $write))
                (export "stdout" (func $stdout)) (export "stderr" (func $stderr))
                (export "variables" (func $variables)) (export "arguments" (func $arguments))
                (export "folders" (func $folders)) (export "tcp" (func $tcp)) (export "udp" (func $udp))))))
            (func $execute (param "request" $request) (result $result)
                (canon lift (core func $plugin "execute") (memory $memory) (realloc $realloc)))
            (instance $executor (export "execute" (func $execute)))
            (export "monstrum:plugin/executor@0.1.0" (instance $executor)))"#
    );
    let component = Bench::new().load(wat::parse_str(wat).unwrap()).await;
    let end = component.execute(request("{}"), CallLimits::default(), Arc::new(Host::default())).await;
    // There are no variables, arguments or directories. Both kinds of sockets fail with access-denied.
    assert_eq!(success(&end), json!([0, 0, 0, 1, 1, 1, 1]));
    let lines: Vec<_> = end.log.iter().map(|line| (line.source, line.level, line.message.as_str())).collect();
    assert_eq!(lines, [(LogSource::Stdout, LogLevel::Info, "printed"), (LogSource::Stderr, LogLevel::Warn, "failed")]);
}
