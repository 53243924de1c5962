//! The floor: a call of a component with wasmtime alone, under the engine settings and limits of the host's runtime
//! crate (pool, fuel, epoch, memory limiter, async). Everything else that the host does for a call is the cost of
//! governing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use wasmtime::component::{Component, HasSelf, Linker, ResourceTable};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, ProfilingStrategy, ResourceLimiter,
    Store, WasmBacktraceDetails,
};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

wasmtime::component::bindgen!({
    path: "../wit/0.1.0",
    world: "plugin",
    imports: { default: async | trappable },
    exports: { default: async },
});

pub use monstrum::plugin::types::ExecuteRequest;

use exports::monstrum::plugin::executor::ExecuteResult;
use monstrum::plugin::{credentials, http, log, types};

// The values are those of host/crates/runtime, so that both sides do the same work.
const CALLS_MAX: u32 = 1024;
const CORE_INSTANCES_MAX: u32 = 128;
const MEMORIES_MAX: u32 = 4;
const TABLES_MAX: u32 = 16;
const TABLE_ELEMENTS_MAX: usize = 64 << 10;
const HANDLES_MAX: usize = 1024;
const FUEL: u64 = 1_000_000_000;
const FUEL_REPORT_INTERVAL: u64 = 5_000_000;
const MEMORY_BYTES: usize = 64 << 20;
const TICK: Duration = Duration::from_millis(10);

/// A component that is ready to be called. It has an engine that the host does not use.
pub struct Bare {
    engine: Engine,
    plugin: PluginPre<State>,
}

impl Bare {
    /// Compiles the component in the file `wasm`.
    pub fn load(wasm: &Path) -> Result<Bare> {
        let engine = Engine::new(&config())?;
        let wasm = std::fs::read(wasm).with_context(|| format!("cannot read {}", wasm.display()))?;
        let component = Component::from_binary(&engine, &wasm)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        Plugin::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
        let plugin = PluginPre::new(linker.instantiate_pre(&component)?)?;
        let ticked = engine.weak();
        std::thread::spawn(move || {
            while let Some(engine) = ticked.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        });
        Ok(Bare { engine, plugin })
    }

    /// Executes one call in a fresh instance and returns the data of its success as text.
    pub async fn call(&self, request: &ExecuteRequest) -> Result<String> {
        let mut store = self.store()?;
        let plugin = self.plugin.instantiate_async(&mut store).await?;
        match plugin.monstrum_plugin_executor().call_execute(&mut store, request).await? {
            ExecuteResult::Success(data) => Ok(data),
            ExecuteResult::Error(message) | ExecuteResult::ScopeViolation(message) => bail!("the plugin: {message}"),
        }
    }

    fn store(&self) -> Result<Store<State>> {
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(HANDLES_MAX);
        let state = State { limiter: Limiter { bytes: 0 }, wasi: WasiCtxBuilder::new().build(), handles };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_fuel(FUEL)?;
        store.fuel_async_yield_interval(Some(FUEL_REPORT_INTERVAL))?;
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        store.set_hostcall_fuel(MEMORY_BYTES);
        store.set_max_component_handles(HANDLES_MAX);
        Ok(store)
    }
}

/// Reconstructs the host's request to the component from the component's echo.
pub fn request_of_echo(seen: &Value) -> Result<ExecuteRequest> {
    let text =
        |name: &str| seen[name].as_str().map(str::to_owned).with_context(|| format!("the echo has no field {name}"));
    let raw = |name: &str| seen[name].to_string();
    Ok(ExecuteRequest {
        request_id: text("request_id")?,
        bot_id: text("bot_id")?,
        task_id: text("task_id")?,
        operation: text("operation")?,
        tool_name: text("tool_name")?,
        params: raw("params"),
        scope: Some(raw("scope")),
        resource_id: Some(text("resource_id")?),
        resource_config: raw("resource_config"),
        delegate: None,
        locale: text("locale")?,
        deadline_ms: u32::try_from(seen["deadline_ms"].as_u64().unwrap_or_default())?,
        context: raw("context"),
    })
}

fn config() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(CALLS_MAX);
    pool.total_stacks(CALLS_MAX);
    pool.total_core_instances(CALLS_MAX * CORE_INSTANCES_MAX);
    pool.max_core_instances_per_component(CORE_INSTANCES_MAX);
    pool.total_memories(CALLS_MAX * MEMORIES_MAX);
    pool.max_memories_per_component(MEMORIES_MAX);
    pool.max_memories_per_module(MEMORIES_MAX);
    pool.max_memory_size(1 << 30);
    pool.total_tables(CALLS_MAX * TABLES_MAX);
    pool.max_tables_per_component(TABLES_MAX);
    pool.max_tables_per_module(TABLES_MAX);
    pool.table_elements(TABLE_ELEMENTS_MAX);
    pool.pagemap_scan(Enabled::Auto);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.linear_memory_keep_resident(1 << 20);
        pool.table_keep_resident(64 << 10);
    }
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.concurrency_support(false);
    config.consume_fuel(true);
    config.epoch_interruption(true);
    config.cranelift_nan_canonicalization(true);
    config.relaxed_simd_deterministic(true);
    config.wasm_memory64(false);
    config.memory_init_cow(true);
    config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config.profiler(ProfilingStrategy::None);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config.memory_reservation(4 << 30);
    config.memory_guard_size(32 << 20);
    config
}

struct State {
    limiter: Limiter,
    wasi: WasiCtx,
    handles: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.handles }
    }
}

/// Limits the total size of the memories and tables of one call.
struct Limiter {
    bytes: usize,
}

impl Limiter {
    fn grow(&mut self, more: usize) -> bool {
        self.bytes = self.bytes.saturating_add(more);
        self.bytes <= MEMORY_BYTES
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current).saturating_mul(size_of::<usize>())))
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

impl types::Host for State {}

impl http::Host for State {
    async fn send(&mut self, _: http::Request) -> wasmtime::Result<Result<http::Response, types::Failure>> {
        Err(wasmtime::Error::msg("requests are not supported in benches"))
    }
}

impl credentials::Host for State {
    async fn status(&mut self) -> wasmtime::Result<String> {
        Ok("none".to_owned())
    }
}

impl log::Host for State {
    async fn write(&mut self, _: log::Level, _: String, _: String) -> wasmtime::Result<()> {
        Ok(())
    }
}
