//! Runs one call in a fresh instance.
//!
//! A panic in a host call ends the call, but not the caller's task. If the caller drops the future, the guest is
//! discarded. The time limit includes the creation of the instance. The store enforces the limits on fuel and memory.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_guardian::Permit;
use tokio::time::timeout;
use wasmtime::{Store, Trap};

use crate::bindings::{ExecuteRequest, WitResult};
use crate::component::{Component, NoHost, StartError, Started};
use crate::host::HostCalls;
use crate::limits::CallLimits;
use crate::log::{LogLevel, LogLine, LogSource, SharedLog};
use crate::result::{ExecuteResult, StopReason, from_guest};
use crate::store::{self, State};

/// The end of a call, and its log, which is not yet redacted.
#[derive(Debug)]
pub struct CallEnd {
    /// The plugin's result, or the reason why the plugin returned none.
    pub outcome: Result<ExecuteResult, StopReason>,
    /// The fuel that the call used. Waiting in host calls uses no fuel. The value is 0 after an internal error of the
    /// host.
    pub fuel_used: u64,
    /// The plugin's log.
    pub log: Vec<LogLine>,
    /// The number of log lines that were dropped because the log exceeded its size limit.
    pub log_dropped: u64,
}

impl Component {
    /// Executes a tool call in a fresh instance. Dropping the future ends the guest.
    pub async fn call(
        &self,
        _: &Permit,
        request: ExecuteRequest,
        limits: CallLimits,
        host: Arc<dyn HostCalls>,
    ) -> CallEnd {
        self.execute(request, limits, host).await
    }

    pub(crate) async fn execute(
        &self,
        request: ExecuteRequest,
        limits: CallLimits,
        host: Arc<dyn HostCalls>,
    ) -> CallEnd {
        self.run(limits, host, |started, store| {
            Box::pin(async move { started.executor.call_execute(store, &request).await })
        })
        .await
    }

    /// Calls one of the component's functions in a fresh instance.
    pub async fn call_function(
        &self,
        _: &Permit,
        name: String,
        params: String,
        limits: CallLimits,
        host: Arc<dyn HostCalls>,
    ) -> CallEnd {
        self.execute_function(name, params, limits, host).await
    }

    pub(crate) async fn execute_function(
        &self,
        name: String,
        params: String,
        limits: CallLimits,
        host: Arc<dyn HostCalls>,
    ) -> CallEnd {
        self.run(limits, host, |started, store| {
            Box::pin(async move {
                let Some(functions) = started.functions else {
                    return Ok(WitResult::Error("the plugin has no functions".to_owned()));
                };
                let answer = functions.call_call(store, &name, &params).await?;
                Ok(answer.map_or_else(WitResult::Error, WitResult::Success))
            })
        })
        .await
    }

    async fn run<W>(&self, limits: CallLimits, host: Arc<dyn HostCalls>, work: W) -> CallEnd
    where
        W: for<'store> FnOnce(Started, &'store mut Store<State>) -> BoxFuture<'store, wasmtime::Result<WitResult>>,
        W: Send + 'static,
    {
        let attempt = Attempt { component: self.clone(), limits, host, log: SharedLog::default() };
        let log = attempt.log.clone();
        let ended = attempt.run(work).await;
        let (log, log_dropped) = log.with(|log| log.take());
        CallEnd {
            outcome: ended.answer.map_err(|failure| failure.reason).and_then(from_guest),
            fuel_used: ended.fuel_used,
            log,
            log_dropped,
        }
    }
}

/// The reason why a trial failed.
pub(crate) enum TrialError {
    /// An export does not have the type that `wit/` defines.
    WrongTypes(wasmtime::Error),
    /// The component did not start, for the reason in the text.
    NotStarted(String),
}

/// Starts an instance, reads the names of the functions that it exports, and discards the instance.
pub(crate) async fn trial(component: &Component, limits: CallLimits) -> Result<Vec<String>, TrialError> {
    let attempt = Attempt { component: component.clone(), limits, host: Arc::new(NoHost), log: SharedLog::default() };
    let names = attempt.run(|started, store| {
        Box::pin(async move {
            match started.functions {
                Some(functions) => functions.call_names(store).await,
                None => Ok(Vec::new()),
            }
        })
    });
    match names.await.answer {
        Ok(names) => Ok(names),
        Err(GuestFailure { cause: Some(Broken::Start(StartError::Exports(error))), .. }) => {
            Err(TrialError::WrongTypes(error))
        }
        Err(GuestFailure { reason: StopReason::Timeout { timeout }, .. }) => {
            Err(TrialError::NotStarted(format!("the start took longer than {} s", timeout.as_secs_f64())))
        }
        Err(GuestFailure { reason, cause: Some(cause) }) => {
            Err(TrialError::NotStarted(format!("{}: {}", reason.message(), cause.error().root_cause())))
        }
        Err(GuestFailure { reason, cause: None }) => Err(TrialError::NotStarted(reason.message())),
    }
}

/// One run of an instance.
struct Attempt {
    component: Component,
    limits: CallLimits,
    host: Arc<dyn HostCalls>,
    log: SharedLog,
}

/// The end of a guest: its result or the reason for its failure, and the fuel that it used.
struct GuestEnd<T> {
    answer: Result<T, GuestFailure>,
    fuel_used: u64,
}

/// The reason why a guest has no result, and the error of the engine, if any.
struct GuestFailure {
    reason: StopReason,
    cause: Option<Broken>,
}

/// The point at which an instance failed.
enum Broken {
    Start(StartError),
    Call(wasmtime::Error),
}

impl Broken {
    fn error(&self) -> &wasmtime::Error {
        match self {
            Broken::Start(StartError::Instance(error) | StartError::Exports(error)) | Broken::Call(error) => error,
        }
    }
}

impl Attempt {
    /// Starts the instance, runs `work` with it, and discards it.
    async fn run<T, W>(self, work: W) -> GuestEnd<T>
    where
        T: Send + 'static,
        W: for<'store> FnOnce(Started, &'store mut Store<State>) -> BoxFuture<'store, wasmtime::Result<T>>,
        W: Send + 'static,
    {
        // The closure is unwind safe, because only this call uses the store, the log and the host.
        AssertUnwindSafe(self.run_here(work)).catch_unwind().await.unwrap_or_else(|_| {
            // The panic's message is not logged, because it may contain data of the call.
            tracing::error!("a host call panicked");
            GuestEnd { answer: Err(GuestFailure { reason: StopReason::Internal, cause: None }), fuel_used: 0 }
        })
    }

    async fn run_here<T, W>(self, work: W) -> GuestEnd<T>
    where
        T: Send,
        W: for<'store> FnOnce(Started, &'store mut Store<State>) -> BoxFuture<'store, wasmtime::Result<T>> + Send,
    {
        let Attempt { component, limits, host, log } = self;
        // The permit is declared before the store, so the permit is released after the store has released its slot of
        // the pool.
        let mut permit = None;
        let mut store = match store::new(&component.engine().wasmtime, &limits, host, log.clone()) {
            Ok(store) => store,
            Err(error) => {
                return GuestEnd { answer: Err(internal(Broken::Start(StartError::Instance(error)))), fuel_used: 0 };
            }
        };
        let requests = store.data().outgoing.tasks();
        let ended = timeout(limits.timeout, async {
            permit = Some(component.engine().calls.acquire().await.expect("the semaphore is never closed"));
            let started = component.start(&mut store).await.map_err(Broken::Start)?;
            work(started, &mut store).await.map_err(Broken::Call)
        })
        .await;
        let fuel_used = limits.fuel.saturating_sub(store.get_fuel().unwrap_or(0));
        let answer = match ended {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(broken)) => Err(why(broken, &store, &log)),
            Err(_) => Err(GuestFailure { reason: StopReason::Timeout { timeout: limits.timeout }, cause: None }),
        };
        drop(store);
        // Dropping the store has aborted the requests. Waiting for them ensures that no request is sent after the end
        // of the call.
        requests.close();
        requests.wait().await;
        drop(permit);
        GuestEnd { answer, fuel_used }
    }
}

/// Converts an error of wasmtime. If the plugin caused the error, the details are written to the plugin's log, for the
/// author of the plugin.
fn why(broken: Broken, store: &Store<State>, log: &SharedLog) -> GuestFailure {
    let error = broken.error();
    if matches!(broken, Broken::Start(StartError::Exports(_))) {
        // Loading rejects components with wrong types, so this error cannot be the fault of a loaded component.
        return GuestFailure { reason: StopReason::Internal, cause: Some(broken) };
    }
    if is_internal(error) {
        return internal(broken);
    }
    let reason = if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        StopReason::Fuel
    } else if store.data().limiter.refused() {
        StopReason::Memory
    } else {
        StopReason::Trap
    };
    log.with(|log| log.write(LogSource::Host, LogLevel::Error, &format!("{error:#}"), ""));
    GuestFailure { reason, cause: Some(broken) }
}

/// Returns whether the host caused the error: the pool is full, the host is out of memory, or a system call failed.
fn is_internal(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::PoolConcurrencyLimitError>()
        || error.is::<wasmtime::OutOfMemory>()
        || error.is::<rustix::io::Errno>()
}

fn internal(broken: Broken) -> GuestFailure {
    tracing::error!(error = format!("{:#}", broken.error()), "the WebAssembly engine failed to run a call");
    GuestFailure { reason: StopReason::Internal, cause: Some(broken) }
}
