//! Compiling: in threads of its own, which yield to those of the calls, and within a time limit.
//!
//! A compilation cannot be stopped. One that takes too long is given up by whoever waits for it and goes on alone; it
//! keeps its place until it ends, so that no number of attempts can have more of them going. What it finishes is kept in
//! the cache all the same.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::RuntimeError;

/// How long a component may take, waiting for a place included: CPython's 20 MiB take a sixth of it on two cores.
pub(crate) const COMPILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Components that are compiled at the same time. One compilation keeps all threads busy by itself; a second fills the
/// gaps.
const COMPILATIONS_MAX: usize = 2;

/// How much further back in the queue for a processor than calls: half of the way.
const NICENESS: i32 = 10;

pub(crate) struct Compiler {
    threads: ThreadPool,
    places: Arc<Semaphore>,
}

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotCompiled {
    TimedOut,
    /// The compiler has panicked.
    Lost,
}

impl Compiler {
    pub(crate) fn new() -> Result<Compiler, RuntimeError> {
        let cores = available_parallelism().map_or(1, usize::from);
        let threads = ThreadPoolBuilder::new()
            .num_threads(cores.max(COMPILATIONS_MAX))
            .thread_name(|number| format!("monstrum-compile-{number}"))
            .start_handler(|_| {
                if let Err(error) = rustix::process::nice(NICENESS) {
                    tracing::warn!(%error, "compiling cannot be put behind calls");
                }
            })
            .panic_handler(|_| tracing::error!("compiling a component has panicked"))
            .build()
            .map_err(|error| RuntimeError::Threads { source: error.into() })?;
        Ok(Compiler { threads, places: Arc::new(Semaphore::new(COMPILATIONS_MAX)) })
    }

    /// Does `work`, and all that it does in parallel, in the threads of the compiler.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotCompiled> {
        let compiled = timeout(limit, async {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("nobody closes this semaphore");
            let (done, result) = oneshot::channel();
            self.threads.spawn(move || {
                let _place = place;
                // Nobody may be waiting any more.
                drop(done.send(work()));
            });
            result.await
        });
        match compiled.await {
            Ok(result) => result.map_err(|_| NotCompiled::Lost),
            Err(_) => Err(NotCompiled::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_never_ends_is_given_up_and_keeps_its_place() {
        let compiler = Compiler::new().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        for _ in 0..COMPILATIONS_MAX {
            let held = Arc::clone(&held);
            let endless = move || held.lock().unwrap().recv().is_ok();
            assert_eq!(compiler.run(Duration::from_millis(20), endless).await, Err(NotCompiled::TimedOut));
        }
        // No place is left, whoever asks.
        assert_eq!(compiler.run(Duration::from_millis(20), || ()).await, Err(NotCompiled::TimedOut));
        drop(release);
        assert_eq!(compiler.run(COMPILE_TIMEOUT, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_is_told_and_gives_its_place_back() {
        let compiler = Compiler::new().unwrap();
        for _ in 0..=COMPILATIONS_MAX {
            let panicking = || -> () { panic!("as the test wants") };
            assert_eq!(compiler.run(COMPILE_TIMEOUT, panicking).await, Err(NotCompiled::Lost));
        }
    }

    #[tokio::test]
    async fn its_threads_stand_behind_those_of_calls() {
        let of_this_thread = rustix::process::getpriority_process(None).unwrap();
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let of_compiler = Compiler::new().unwrap().run(COMPILE_TIMEOUT, priority).await.unwrap();
        assert_eq!(of_compiler, (of_this_thread + NICENESS).min(19));
    }
}
