//! The store of one call, with all state that the guest can access.

use std::sync::Arc;

use wasmtime::Store;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::WasiHttpCtx;

use crate::bindings::{credentials, events, http, log, sandbox, tools, types};
use crate::host::HostCalls;
use crate::limits::{CallLimits, HANDLES_MAX, MemoryLimiter, RANDOM_BYTES_MAX};
use crate::log::{LogStream, SharedLog, Stream};
use crate::wasi_http::{self, Outgoing};

/// The amount of fuel after which the host records the usage of a guest that makes no host calls. If such a guest times
/// out, up to this amount of fuel is not counted: 0.5 % of the default budget.
const FUEL_REPORT_INTERVAL: u64 = 5_000_000;

/// The host's state of one call.
pub(crate) struct State {
    pub(crate) outgoing: Outgoing,
    pub(crate) log: SharedLog,
    pub(crate) limiter: MemoryLimiter,
    pub(crate) wasi_http: WasiHttpCtx,
    pub(crate) handles: ResourceTable,
    wasi: WasiCtx,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.handles }
    }
}

/// Creates a store with `limits`.
pub(crate) fn new(
    engine: &wasmtime::Engine,
    limits: &CallLimits,
    host: Arc<dyn HostCalls>,
    log: SharedLog,
) -> wasmtime::Result<Store<State>> {
    let mut handles = ResourceTable::new();
    handles.set_max_capacity(HANDLES_MAX);
    let state = State {
        outgoing: Outgoing::new(host),
        wasi_http: wasi_http::context(),
        wasi: inert_wasi(&log),
        log,
        limiter: MemoryLimiter::new(limits),
        handles,
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_fuel(limits.fuel)?;
    store.fuel_async_yield_interval(Some(FUEL_REPORT_INTERVAL))?;
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    store.set_hostcall_fuel(limits.hostcall_bytes());
    store.set_max_component_handles(HANDLES_MAX);
    Ok(store)
}

/// Creates the WASI context for standard libraries: clocks, random numbers, and standard streams that write to the log.
/// The context has no files, sockets, name look-ups, environment variables or arguments. These settings are also
/// wasmtime's defaults; the calls make them explicit.
fn inert_wasi(log: &SharedLog) -> WasiCtx {
    WasiCtxBuilder::new()
        .stdout(LogStream::new(log.clone(), Stream::Stdout))
        .stderr(LogStream::new(log.clone(), Stream::Stderr))
        .max_random_size(RANDOM_BYTES_MAX)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .socket_addr_check(|_, _| Box::pin(std::future::ready(false)))
        .build()
}

/// Creates a linker with all interfaces that this host provides, for components whose imports were checked.
pub(crate) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    types::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    http::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    tools::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    sandbox::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    events::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    credentials::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    log::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}
