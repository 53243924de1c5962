//! Tests with hand-written components on the real engine. For each limit, a test runs a component that exceeds the
//! limit.

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
    CallEnd, CallLimits, Component, ExecuteRequest, ExecuteResult, HostCalls, LoadError, Runtime, RuntimeOptions,
    StopReason,
};

/// Pieces of WebAssembly text from which tests assemble components. The integration tests include the same files.
const TYPES: &str = include_str!("tests/wat/types.wat");
const ALLOCATOR: &str = include_str!("tests/wat/allocator.wat");
const GUEST: &str = include_str!("tests/wat/guest.wat");

/// Creates a component with `functions`; see `guest.wat`.
fn guest(functions: &str) -> Vec<u8> {
    guest_with(ALLOCATOR, functions)
}

fn guest_with(allocator: &str, functions: &str) -> Vec<u8> {
    let wat =
        GUEST.replace("(; types ;)", TYPES).replace("(; allocator ;)", allocator).replace("(; functions ;)", functions);
    wat::parse_str(&wat).unwrap_or_else(|error| panic!("{error}"))
}

/// Creates a guest that runs `body` and then returns `{}`.
fn guest_doing(body: &str) -> Vec<u8> {
    guest(&format!(
        r#"(func (export "execute") (param $request i32) (result i32) (local $n i32)
            {body}
            (call $answer (i32.const 0) (i32.const 72) (i32.const 2)))"#
    ))
}

/// A guest that returns its parameters.
const ECHO: &str = r#"
    (func (export "execute") (param $request i32) (result i32)
        (call $answer (i32.const 0) (i32.load offset=40 (local.get $request)) (i32.load offset=44 (local.get $request))))"#;

/// A runtime with a temporary cache folder, which no other test uses.
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

/// The memory limit with which tests load components: the default limit of a plugin.
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

/// Loads a guest and calls it once with the default limits.
async fn call_once(wasm: Vec<u8>) -> CallEnd {
    call_with(wasm, CallLimits::default(), Arc::new(Host::default())).await
}

async fn call_with(wasm: Vec<u8>, limits: CallLimits, host: Arc<dyn HostCalls>) -> CallEnd {
    Bench::new().load(wasm).await.execute(request("{}"), limits, host).await
}

fn stop(end: &CallEnd) -> StopReason {
    *end.outcome.as_ref().unwrap_err()
}

fn success(end: &CallEnd) -> serde_json::Value {
    match end.outcome.as_ref().unwrap() {
        ExecuteResult::Success(text) => text.value(),
        other => panic!("{other:?}"),
    }
}

/// A host that responds with status 204 and records the requests.
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
