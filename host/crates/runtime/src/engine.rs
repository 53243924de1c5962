//! The one engine of the process, and the [`Runtime`] that loads components into it.
//!
//! All runtimes of a process share the engine, because its pool reserves terabytes of address space. The engine is
//! dropped with the last runtime. A thread advances the epoch, and guests yield when the epoch advances.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use monstrum_manifest::Capability;
use monstrum_types::PluginName;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use wasmtime::component::Linker;
use wasmtime::{
    Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, ProfilingStrategy, WasmBacktraceDetails,
};

use crate::cache::Cache;
use crate::compile::{COMPILE_TIMEOUT, Compiler};
use crate::component::{self, Component, KnownComponent};
use crate::error::{LoadError, RuntimeError};
use crate::limits::{CORE_INSTANCES_MAX, MEMORIES_MAX, MEMORY_BYTES_MAX, TABLES_MAX};
use crate::store::{self, State};

/// The maximum number of concurrent calls, running or waiting in a host call. Further calls wait, within their own time
/// limit. At 64 MiB for each call, this number of calls uses 64 GiB, the memory of a large server.
const CALLS_MAX: u32 = 1024;

/// The time that a guest computes before it yields its thread.
const TICK: Duration = Duration::from_millis(10);

/// The maximum number of elements of one table. `CPython` has about 10 000 functions.
const TABLE_ELEMENTS_MAX: usize = 64 << 10;

/// The number of bytes that a slot of the pool keeps in memory for its next use. If a slot kept more bytes, clearing
/// them would take longer than the page faults that are avoided.
const MEMORY_KEEP_BYTES: usize = 1 << 20;
const TABLE_KEEP_BYTES: usize = 64 << 10;

/// The maximum number of unused slots that keep the memory of their last call. With wasmtime's default of 100 slots,
/// the memory use of a server with many plugins grew for half an hour. Fewer slots are enough for plugins in frequent
/// use.
const WARM_SLOTS_MAX: u32 = 32;

/// The address space of each memory. With 4 GiB, accesses need no bounds checks.
const RESERVATION_BYTES: u64 = 4 << 30;
const GUARD_BYTES: u64 = 32 << 20;

/// The address space of each memory on machines with little address space. Memories then move when they grow, and
/// accesses need bounds checks.
const SCARCE_RESERVATION_BYTES: u64 = 1 << 20;
const SCARCE_GUARD_BYTES: u64 = 64 << 10;

/// The settings of a runtime.
pub struct RuntimeOptions {
    /// The folder of compiled components. The runtime creates the folder if it does not exist. No other program may use
    /// the folder.
    pub cache_dir: PathBuf,
    /// The key that authenticates the files of the cache.
    pub cache_mac_key: [u8; 32],
}

/// Loads components. This type is cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) compile_timeout: Duration,
}

impl Runtime {
    /// Opens the cache, and creates the engine if this is the first runtime of the process.
    pub fn new(options: RuntimeOptions) -> Result<Runtime, RuntimeError> {
        let RuntimeOptions { cache_dir, cache_mac_key } = options;
        let engine = Engine::shared()?;
        let cache = Arc::new(Cache::open(cache_dir, &cache_mac_key, &engine.wasmtime)?);
        Ok(Runtime { engine, cache, compile_timeout: COMPILE_TIMEOUT })
    }

    /// Checks a component, compiles it or loads it from the cache, and starts it once as a trial. The trial has the
    /// memory limit of calls, a short time limit, and a host that fails all host calls.
    pub async fn load(
        &self,
        plugin: &PluginName,
        component: Vec<u8>,
        capabilities: &[Capability],
        memory_bytes: u64,
    ) -> Result<Component, LoadError> {
        component::load(self, plugin, component, capabilities, memory_bytes).await
    }

    /// Loads a component that [`load`] of this build has loaded before, without a trial. Returns `None` if its compiled
    /// form is not in the cache; call [`load`] then. Blocks the thread. Fails if the component has another digest.
    ///
    /// [`load`]: Runtime::load
    pub fn load_cached(
        &self,
        known: &KnownComponent,
        component: &Arc<Vec<u8>>,
    ) -> Result<Option<Component>, LoadError> {
        component::load_cached(self, known, component)
    }

    /// Returns a hash of this build, the settings of its engine, and the features of the machine. Results of an earlier
    /// [`Runtime::load`] are valid only under the same hash.
    #[must_use]
    pub fn build_id(&self) -> [u8; 32] {
        self.cache.build_id()
    }
}

/// The state that all runtimes of a process share.
pub(crate) struct Engine {
    pub(crate) wasmtime: wasmtime::Engine,
    pub(crate) linker: Linker<State>,
    pub(crate) calls: Semaphore,
    pub(crate) compiler: Compiler,
    _ticker: Ticker,
}

static SHARED: Mutex<Weak<Engine>> = Mutex::new(Weak::new());

impl Engine {
    fn shared() -> Result<Arc<Engine>, RuntimeError> {
        let mut shared = SHARED.lock();
        if let Some(engine) = shared.upgrade() {
            return Ok(engine);
        }
        let engine = Arc::new(Engine::new()?);
        *shared = Arc::downgrade(&engine);
        Ok(engine)
    }

    fn new() -> Result<Engine, RuntimeError> {
        let failed = |error: wasmtime::Error| RuntimeError::Engine { source: error.into() };
        let wasmtime = pooled_or_on_demand().map_err(failed)?;
        let linker = store::linker(&wasmtime).map_err(failed)?;
        let ticker = Ticker::start(&wasmtime).map_err(|source| RuntimeError::Ticker { source })?;
        Ok(Engine {
            wasmtime,
            linker,
            calls: Semaphore::new(CALLS_MAX as usize),
            compiler: Compiler::new()?,
            _ticker: ticker,
        })
    }
}

fn pooled_or_on_demand() -> wasmtime::Result<wasmtime::Engine> {
    let mut pooled = config();
    pooled.allocation_strategy(InstanceAllocationStrategy::Pooling(pool()));
    pooled.memory_reservation(RESERVATION_BYTES);
    pooled.memory_guard_size(GUARD_BYTES);
    match wasmtime::Engine::new(&pooled) {
        Ok(engine) => Ok(engine),
        Err(error) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "not enough address space for the instance pool; allocating instances on demand, which makes calls \
                 slower"
            );
            let mut on_demand = config();
            on_demand.allocation_strategy(InstanceAllocationStrategy::OnDemand);
            on_demand.memory_reservation(SCARCE_RESERVATION_BYTES);
            on_demand.memory_reservation_for_growth(SCARCE_RESERVATION_BYTES);
            on_demand.memory_guard_size(SCARCE_GUARD_BYTES);
            wasmtime::Engine::new(&on_demand)
        }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.concurrency_support(false);
    config.consume_fuel(true);
    config.epoch_interruption(true);
    // A call must have the same result and use the same amount of fuel on all machines.
    config.cranelift_nan_canonicalization(true);
    config.relaxed_simd_deterministic(true);
    // Plugins do not need 64-bit memories, and disabling them reduces the attack surface of the engine.
    config.wasm_memory64(false);
    config.memory_init_cow(true);
    // Without these calls, wasmtime would read the settings from environment variables.
    config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config.profiler(ProfilingStrategy::None);
    config
}

fn pool() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(CALLS_MAX);
    pool.total_stacks(CALLS_MAX);
    pool.total_core_instances(CALLS_MAX * CORE_INSTANCES_MAX);
    pool.max_core_instances_per_component(CORE_INSTANCES_MAX);
    pool.total_memories(CALLS_MAX * MEMORIES_MAX);
    pool.max_memories_per_component(MEMORIES_MAX);
    pool.max_memories_per_module(MEMORIES_MAX);
    pool.max_memory_size(usize::try_from(MEMORY_BYTES_MAX).unwrap_or(usize::MAX));
    pool.total_tables(CALLS_MAX * TABLES_MAX);
    pool.max_tables_per_component(TABLES_MAX);
    pool.max_tables_per_module(TABLES_MAX);
    pool.table_elements(TABLE_ELEMENTS_MAX);
    pool.max_unused_warm_slots(WARM_SLOTS_MAX);
    pool.pagemap_scan(Enabled::Auto);
    // If pagemap_scan is not available, all kept bytes are cleared after each use, even bytes that the guest did not
    // change.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.linear_memory_keep_resident(MEMORY_KEEP_BYTES);
        pool.table_keep_resident(TABLE_KEEP_BYTES);
    }
    pool
}

/// Advances the epoch until the ticker is dropped.
struct Ticker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(engine: &wasmtime::Engine) -> std::io::Result<Ticker> {
        let (stop, stopped) = mpsc::channel::<()>();
        let engine = engine.weak();
        let thread = std::thread::Builder::new().name("monstrum-epoch".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        })?;
        Ok(Ticker { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that interrupts plugins panicked");
        }
    }
}
