//! Compiles components in threads of lower priority than the threads of calls, with a time limit.
//!
//! A running compilation cannot be stopped. After the time limit, the caller no longer waits, and the compilation
//! continues in the background. The compilation keeps its semaphore permit until it ends, so that retries cannot exceed
//! the limit on concurrent compilations. The result is still stored in the cache.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::RuntimeError;

/// The time-out of a compilation, including the wait for a permit. `CPython`, a component of 20 MiB, needs a sixth of
/// this time on two cores.
pub(crate) const COMPILE_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of concurrent compilations. One compilation keeps most threads busy, and a second one uses the
/// threads that are idle.
const COMPILATIONS_MAX: usize = 2;

/// The niceness of the compiler threads relative to the threads of calls: half of the possible range.
const NICENESS: i32 = 10;

pub(crate) struct Compiler {
    threads: ThreadPool,
    permits: Arc<Semaphore>,
}

/// The reason why a compilation has no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotCompiled {
    TimedOut,
    /// The compiler panicked.
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
                    tracing::warn!(%error, "cannot lower the priority of the compiler threads; calls may be slower");
                }
            })
            .panic_handler(|_| tracing::error!("a compiler thread panicked"))
            .build()
            .map_err(|error| RuntimeError::Threads { source: error.into() })?;
        Ok(Compiler { threads, permits: Arc::new(Semaphore::new(COMPILATIONS_MAX)) })
    }

    /// Runs `work`, including its parallel parts, in the compiler threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotCompiled> {
        let compiled = timeout(limit, async {
            let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
            let (done, result) = oneshot::channel();
            self.threads.spawn(move || {
                let _permit = permit;
                // Sending fails if the caller no longer waits.
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
    async fn endless_work_times_out_and_keeps_its_permit() {
        let compiler = Compiler::new().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        for _ in 0..COMPILATIONS_MAX {
            let held = Arc::clone(&held);
            let endless = move || held.lock().unwrap().recv().is_ok();
            assert_eq!(compiler.run(Duration::from_millis(20), endless).await, Err(NotCompiled::TimedOut));
        }
        // No permit is free.
        assert_eq!(compiler.run(Duration::from_millis(20), || ()).await, Err(NotCompiled::TimedOut));
        drop(release);
        assert_eq!(compiler.run(COMPILE_TIMEOUT, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_is_reported_and_releases_its_permit() {
        let compiler = Compiler::new().unwrap();
        for _ in 0..=COMPILATIONS_MAX {
            let panicking = || -> () { panic!("deliberate panic of a test") };
            assert_eq!(compiler.run(COMPILE_TIMEOUT, panicking).await, Err(NotCompiled::Lost));
        }
    }

    #[tokio::test]
    async fn compiler_threads_have_a_lower_priority() {
        let of_this_thread = rustix::process::getpriority_process(None).unwrap();
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let of_compiler = Compiler::new().unwrap().run(COMPILE_TIMEOUT, priority).await.unwrap();
        assert_eq!(of_compiler, (of_this_thread + NICENESS).min(19));
    }
}
