//! One call in an instance of its own, and its end.
//!
//! A panic behind one of its imports ends the call and not the caller, and a caller that goes away takes its guest along.
//! Time runs from before the instance is made; fuel, memory and the epoch are the store's.

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
use crate::result::{ExecuteResult, Stop, from_guest};
use crate::store::{self, State};

/// How a call ended, and what it left behind. Nothing of it has been redacted yet.
#[derive(Debug)]
pub struct CallEnd {
    /// The plugin's answer, or why there is none.
    pub outcome: Result<ExecuteResult, Stop>,
    /// Computing; waiting in host calls costs none. 0 where the host is at fault.
    pub fuel_used: u64,
    /// The plugin's log.
    pub log: Vec<LogLine>,
    /// Lines that were over the limit.
    pub log_dropped: u64,
}

impl Component {
    /// Executes one call in a fresh instance. Dropping the future ends the guest.
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

    /// Calls one of the component's functions in a fresh instance, like a tool.
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
            outcome: ended.answer.map_err(|stopped| stopped.stop).and_then(from_guest),
            fuel_used: ended.fuel_used,
            log,
            log_dropped,
        }
    }
}

/// Why a trial failed.
pub(crate) enum TrialError {
    /// An export has another type than the contract's.
    WrongTypes(wasmtime::Error),
    /// The start of the component failed, in words.
    Stopped(String),
}

/// Starts an instance, asks for the names of its functions, and throws it away.
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
        Err(Stopped { cause: Some(Broken::Start(StartError::Exports(error))), .. }) => {
            Err(TrialError::WrongTypes(error))
        }
        Err(Stopped { stop: Stop::Timeout { timeout }, .. }) => {
            Err(TrialError::Stopped(format!("it took longer than {} s", timeout.as_secs_f64())))
        }
        Err(Stopped { stop, cause: Some(cause) }) => {
            Err(TrialError::Stopped(format!("{}: {}", stop.message(), cause.error().root_cause())))
        }
        Err(Stopped { stop, cause: None }) => Err(TrialError::Stopped(stop.message())),
    }
}

/// What one instance needs to run.
struct Attempt {
    component: Component,
    limits: CallLimits,
    host: Arc<dyn HostCalls>,
    log: SharedLog,
}

struct Ended<T> {
    answer: Result<T, Stopped>,
    fuel_used: u64,
}

/// A stop and, where wasmtime told, its cause.
struct Stopped {
    stop: Stop,
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
    /// Starts the instance, does `work` with it, and discards it.
    async fn run<T, W>(self, work: W) -> Ended<T>
    where
        T: Send + 'static,
        W: for<'store> FnOnce(Started, &'store mut Store<State>) -> BoxFuture<'store, wasmtime::Result<T>>,
        W: Send + 'static,
    {
        // Nothing that a panic leaves half done outlives it: store, log and host belong to this call alone.
        AssertUnwindSafe(self.run_here(work)).catch_unwind().await.unwrap_or_else(|_| {
            // Not the panic's own words: nobody knows what a host call had in hand.
            tracing::error!("a host call has panicked");
            Ended { answer: Err(Stopped { stop: Stop::Internal, cause: None }), fuel_used: 0 }
        })
    }

    async fn run_here<T, W>(self, work: W) -> Ended<T>
    where
        T: Send,
        W: for<'store> FnOnce(Started, &'store mut Store<State>) -> BoxFuture<'store, wasmtime::Result<T>> + Send,
    {
        let Attempt { component, limits, host, log } = self;
        // Before the store, so that it is given back after the store has left the pool.
        let mut place = None;
        let mut store = match store::new(&component.engine().wasmtime, &limits, host, log.clone()) {
            Ok(store) => store,
            Err(error) => {
                return Ended { answer: Err(internal(Broken::Start(StartError::Instance(error)))), fuel_used: 0 };
            }
        };
        let requests = store.data().outgoing.tasks();
        let ended = timeout(limits.timeout, async {
            place = Some(component.engine().calls.acquire().await.expect("nobody closes this semaphore"));
            let started = component.start(&mut store).await.map_err(Broken::Start)?;
            work(started, &mut store).await.map_err(Broken::Call)
        })
        .await;
        let fuel_used = limits.fuel.saturating_sub(store.get_fuel().unwrap_or(0));
        let answer = match ended {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(broken)) => Err(why(broken, &store, &log)),
            Err(_) => Err(Stopped { stop: Stop::Timeout { timeout: limits.timeout }, cause: None }),
        };
        drop(store);
        // Dropping the store has aborted them. Nothing may leave after the end of the call.
        requests.close();
        requests.wait().await;
        drop(place);
        Ended { answer, fuel_used }
    }
}

/// The stop behind an error of wasmtime. The plugin's author finds the details in the plugin's log.
fn why(broken: Broken, store: &Store<State>, log: &SharedLog) -> Stopped {
    let error = broken.error();
    if matches!(broken, Broken::Start(StartError::Exports(_))) {
        // Loading says so; a component that has been loaded has the right ones.
        return Stopped { stop: Stop::Internal, cause: Some(broken) };
    }
    if is_the_hosts_fault(error) {
        return internal(broken);
    }
    let stop = if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        Stop::Fuel
    } else if store.data().limiter.refused() {
        Stop::Memory
    } else {
        Stop::Trap
    };
    log.with(|log| log.write(LogSource::Host, LogLevel::Error, &format!("{error:#}"), ""));
    Stopped { stop, cause: Some(broken) }
}

/// No place in the pool, no memory for the host, or a system call that failed.
fn is_the_hosts_fault(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::PoolConcurrencyLimitError>()
        || error.is::<wasmtime::OutOfMemory>()
        || error.is::<rustix::io::Errno>()
}

fn internal(broken: Broken) -> Stopped {
    tracing::error!(error = format!("{:#}", broken.error()), "the engine could not run a call");
    Stopped { stop: Stop::Internal, cause: Some(broken) }
}
