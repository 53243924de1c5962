//! Hand-written components against the real engine: every limit has one that hits it.

mod caching;
mod calls;
mod limits;
mod loading;
mod wasi;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use monstrum_manifest::Capability;
use monstrum_types::{Failure, HttpRequest, HttpResponse, PluginName};
use tempfile::TempDir;

use crate::{
    CallEnd, CallLimits, Component, ExecuteRequest, ExecuteResult, HostCalls, LoadError, Runtime, RuntimeOptions, Stop,
};

/// The types of the contract, as a component sees them.
const TYPES: &str = r#"
    (import "monstrum:plugin/types@0.1.0" (instance $types
        (type $constraints' (record
            (field "allowed-tools" (option (list string))) (field "scope-constraints" (option string))))
        (export "delegate-constraints" (type $constraints (eq $constraints')))
        (type $request' (record
            (field "request-id" string) (field "bot-id" string) (field "task-id" string) (field "operation" string)
            (field "tool-name" string) (field "params" string) (field "scope" (option string))
            (field "resource-id" (option string)) (field "resource-config" string)
            (field "delegate" (option $constraints)) (field "locale" string) (field "deadline-ms" u32)
            (field "context" string)))
        (export "execute-request" (type $request (eq $request')))
        (type $result' (variant (case "success" string) (case "error" string) (case "scope-violation" string)))
        (export "execute-result" (type $result (eq $result')))
        (type $failure' (record
            (field "code" string) (field "message" string) (field "sent" bool) (field "retry-after-ms" (option u32))))
        (export "failure" (type $failure (eq $failure')))))
    (alias export $types "execute-request" (type $request))
    (alias export $types "execute-result" (type $result))
    (alias export $types "failure" (type $failure))
    (import "monstrum:plugin/log@0.1.0" (instance $log
        (type $level' (enum "debug" "info" "warn" "error"))
        (export "level" (type $level (eq $level')))
        (export "write" (func (param "level" $level) (param "message" string) (param "fields" string)))))
    (import "monstrum:plugin/http@0.1.0" (instance $http
        (alias outer 1 $failure (type $failure'))
        (export "failure" (type $failure (eq $failure')))
        (type $header' (tuple string string))
        (export "header" (type $header (eq $header')))
        (type $request' (record
            (field "method" string) (field "url" string) (field "query" (list (tuple string string)))
            (field "headers" (list $header)) (field "body" (option (list u8))) (field "timeout-ms" (option u32))
            (field "authenticate" bool) (field "options" (list (tuple string string)))))
        (export "request" (type $request (eq $request')))
        (type $response' (record (field "status" u16) (field "headers" (list $header)) (field "body" (list u8))))
        (export "response" (type $response (eq $response')))
        (export "send" (func (param "request" $request) (result (result $response (error $failure)))))))
    (import "monstrum:plugin/credentials@0.1.0" (instance $credentials (export "status" (func (result string)))))
    (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
"#;

/// A core module's imports and what every guest has. Its functions are to be appended, `execute` among them.
const PRELUDE: &str = r#"
    (import "host" "log" (func $log (param i32 i32 i32 i32 i32)))
    (import "host" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "host" "status" (func $status (param i32)))
    (import "host" "exit" (func $exit (param i32)))
    (import "host" "memory" (memory 2))
    (import "host" "cabi_realloc" (func $allocate (param i32 i32 i32 i32) (result i32)))
    ;; Hands back a result of the kind (0 success, 1 error, 2 scope violation) with a text.
    (func $answer (param $kind i32) (param $text i32) (param $length i32) (result i32)
        (i32.store (i32.const 16) (local.get $kind))
        (i32.store (i32.const 20) (local.get $text))
        (i32.store (i32.const 24) (local.get $length))
        (i32.const 16))
    ;; GET / without anything.
    (func $get
        (call $send (i32.const 64) (i32.const 3) (i32.const 67) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1)
            (i32.const 0) (i32.const 0) (i32.const 128)))
"#;

/// Gives out memory once, growing it where need be.
const ALLOCATOR: &str = r#"
    (local $place i32)
    (local.set $place (global.get $next))
    (global.set $next (i32.and (i32.add (i32.add (local.get $place) (local.get $size)) (i32.const 7)) (i32.const -8)))
    (block $fits (loop $more
        (br_if $fits (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
        (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))
        unreachable))
    (local.get $place)"#;

/// A component whose core module holds `functions`; `execute` takes the address of its request and gives back that of
/// its result. Bytes 64 to 95 of its memory hold `GET/`, then `{}` at 72.
fn guest(functions: &str) -> Vec<u8> {
    guest_with(ALLOCATOR, functions)
}

fn guest_with(allocator: &str, functions: &str) -> Vec<u8> {
    let wat = format!(
        r#"(component {TYPES}
            (core module $libc
                (memory (export "memory") 2)
                (data (i32.const 64) "GET/")
                (data (i32.const 72) "{{}}")
                (global $next (mut i32) (i32.const 65536))
                (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32) {allocator}))
            (core instance $libc (instantiate $libc))
            (alias core export $libc "memory" (core memory $memory))
            (alias core export $libc "cabi_realloc" (core func $realloc))
            (core func $log (canon lower (func $log "write") (memory $memory)))
            (core func $send (canon lower (func $http "send") (memory $memory) (realloc $realloc)))
            (core func $status (canon lower (func $credentials "status") (memory $memory) (realloc $realloc)))
            (core func $exit (canon lower (func $exit "exit")))
            (core module $plugin {PRELUDE} {functions})
            (core instance $plugin (instantiate $plugin (with "host" (instance
                (export "log" (func $log)) (export "send" (func $send)) (export "status" (func $status))
                (export "exit" (func $exit)) (export "memory" (memory $memory)) (export "cabi_realloc" (func $realloc))))))
            (func $execute (param "request" $request) (result $result)
                (canon lift (core func $plugin "execute") (memory $memory) (realloc $realloc)))
            (instance $executor (export "execute" (func $execute)))
            (export "monstrum:plugin/executor@0.1.0" (instance $executor)))"#
    );
    wat::parse_str(&wat).unwrap_or_else(|error| panic!("{error}"))
}

/// A guest that does `body` and then answers `{}`.
fn guest_doing(body: &str) -> Vec<u8> {
    guest(&format!(
        r#"(func (export "execute") (param $request i32) (result i32) (local $n i32)
            {body}
            (call $answer (i32.const 0) (i32.const 72) (i32.const 2)))"#
    ))
}

/// Answers its parameters.
const ECHO: &str = r#"
    (func (export "execute") (param $request i32) (result i32)
        (call $answer (i32.const 0) (i32.load offset=40 (local.get $request)) (i32.load offset=44 (local.get $request))))"#;

/// A runtime with a cache of its own.
struct Bench {
    runtime: Runtime,
    cache: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let cache = tempfile::tempdir().unwrap();
        let runtime = runtime(&cache, [7; 32]);
        Bench { runtime, cache }
    }

    async fn load(&self, wasm: Vec<u8>) -> Component {
        self.try_load(wasm).await.unwrap()
    }

    async fn try_load(&self, wasm: Vec<u8>) -> Result<Component, LoadError> {
        self.runtime.load(&plugin(), wasm, &[Capability::Http], MEMORY_BYTES).await
    }
}

fn runtime(cache: &TempDir, cache_mac_key: [u8; 32]) -> Runtime {
    Runtime::new(RuntimeOptions { cache_dir: cache.path().join("components"), cache_mac_key }).unwrap()
}

/// What a plugin has that asks for nothing.
const MEMORY_BYTES: u64 = 64 << 20;

fn plugin() -> PluginName {
    "probe".parse().unwrap()
}

fn request(params: &str) -> ExecuteRequest {
    ExecuteRequest {
        request_id: "request".to_owned(),
        bot_id: "bot".to_owned(),
        task_id: "task".to_owned(),
        operation: "thing.read".to_owned(),
        tool_name: "thing_read".to_owned(),
        params: params.to_owned(),
        scope: None,
        resource_id: None,
        resource_config: "{}".to_owned(),
        delegate: None,
        locale: "en-US".to_owned(),
        deadline_ms: 30_000,
        context: "{}".to_owned(),
    }
}

/// Loads a guest and calls it once under the default limits.
async fn call_once(wasm: Vec<u8>) -> CallEnd {
    call_with(wasm, CallLimits::default(), Arc::new(Host::default())).await
}

async fn call_with(wasm: Vec<u8>, limits: CallLimits, host: Arc<dyn HostCalls>) -> CallEnd {
    Bench::new().load(wasm).await.execute(request("{}"), limits, host).await
}

fn stop(end: &CallEnd) -> Stop {
    *end.outcome.as_ref().unwrap_err()
}

fn success(end: &CallEnd) -> &serde_json::Value {
    match end.outcome.as_ref().unwrap() {
        ExecuteResult::Success(value) => value,
        other => panic!("{other:?}"),
    }
}

/// A host that answers 204 and keeps what it was asked.
#[derive(Default)]
struct Host {
    requests: Mutex<Vec<HttpRequest>>,
    statuses: AtomicU32,
}

impl HostCalls for Host {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        self.requests.lock().unwrap().push(request);
        let response = HttpResponse { status: 204, headers: Vec::new(), body: Vec::new() };
        Box::pin(std::future::ready(Ok(response)))
    }

    fn credential_status(&self) -> String {
        self.statuses.fetch_add(1, Ordering::Relaxed);
        "ready".to_owned()
    }
}
