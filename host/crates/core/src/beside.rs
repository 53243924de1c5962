//! Runs long work, such as compiling and parsing, on threads that serve no requests.
//!
//! These threads have a lower priority than the serving threads, so that small requests are answered quickly even while
//! long work uses every processor.

use std::ops::Deref;
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle, block_in_place};

/// The difference between the niceness of these threads and the niceness of the serving threads. When both compete for
/// a processor, a thread of low priority gets about a tenth of the processor time.
const NICENESS: i32 = 10;

/// Runs work on a thread of low priority.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    static THREADS: LazyLock<Runtime> = LazyLock::new(|| {
        let threads = Builder::new_current_thread().thread_name("beside").on_thread_start(lower_priority).build();
        threads.expect("a runtime without drivers needs no system resources")
    });
    THREADS.spawn_blocking(work)
}

/// Lowers the priority of the calling thread. On failure, the thread keeps its priority and competes equally with the
/// serving threads.
fn lower_priority() {
    // On Linux, this changes the priority of the calling thread, not of the whole process.
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of a background thread");
    }
}

/// Runs work on the calling thread. If `is_much` is set, the runtime first moves the other tasks of this worker to
/// another thread.
pub fn in_place<T>(is_much: bool, work: impl FnOnce() -> T) -> T {
    let moves_tasks = || Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_much && moves_tasks() { block_in_place(work) } else { work() }
}

/// A value that may be large, such as a JSON tree. A large value is freed on another thread.
pub struct FreedBeside<T: Send + 'static> {
    /// The value, which is `None` only during the drop.
    value: Option<T>,
    is_large: bool,
}

impl<T: Send + 'static> FreedBeside<T> {
    pub fn new(value: T, is_large: bool) -> Self {
        FreedBeside { value: Some(value), is_large }
    }
}

impl<T: Send + 'static> Deref for FreedBeside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value exists until the drop")
    }
}

impl<T: Send + 'static> Drop for FreedBeside<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.is_large {
            drop(spawn(move || drop(value)));
        }
    }
}

/// A limit on concurrent work of one kind: one thread for each processor.
pub struct Beside(OnceLock<Arc<Semaphore>>);

impl Beside {
    /// Creates a limit with no work in progress.
    pub const fn new() -> Beside {
        Beside(OnceLock::new())
    }

    /// Waits for a free place and runs the work. The work occupies the place until it ends, even if the returned future
    /// is dropped.
    ///
    /// # Errors
    /// Fails if the work panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        let room = || Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from)));
        let room = Arc::clone(self.0.get_or_init(room));
        let place = room.acquire_owned().await.expect("the semaphore is never closed");
        spawn(move || {
            let _place = place;
            work()
        })
        .await
    }
}

impl Default for Beside {
    fn default() -> Self {
        Beside::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn threads_have_a_lower_priority_than_the_one_that_asks() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let own = priority();
        let theirs = spawn(priority).await.unwrap();
        assert_eq!(theirs, (own + NICENESS).min(19));
        assert_eq!(priority(), own);
    }

    #[tokio::test]
    async fn a_large_value_is_freed_on_another_thread() {
        struct TellsThread(mpsc::Sender<std::thread::ThreadId>);
        impl Drop for TellsThread {
            fn drop(&mut self) {
                self.0.send(std::thread::current().id()).unwrap();
            }
        }
        let here = std::thread::current().id();
        let (tells, freed) = mpsc::channel();
        drop(FreedBeside::new(TellsThread(tells.clone()), false));
        assert_eq!(freed.recv(), Ok(here));
        drop(FreedBeside::new(TellsThread(tells), true));
        assert_ne!(freed.recv(), Ok(here));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn much_work_in_place_does_not_hold_up_other_tasks() {
        let (done, is_done) = mpsc::channel();
        tokio::spawn(async move {
            let other = tokio::spawn(async move { done.send(()).unwrap() });
            // The work can end only if the other task runs at the same time.
            in_place(true, || is_done.recv().unwrap());
            other.await.unwrap();
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn room_is_taken_until_the_work_ends() {
        let room = Beside::new();
        room.run(|| ()).await.unwrap();
        let places = room.0.get().unwrap().available_permits();
        let (begun, has_begun) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        {
            let mut work = std::pin::pin!(room.run(move || {
                begun.send(()).unwrap();
                ends.recv().unwrap_err()
            }));
            while has_begun.try_recv().is_err() {
                assert!(futures::poll!(work.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(room.0.get().unwrap().available_permits(), places - 1, "the work must outlive its future");
        drop(end);
        while room.0.get().unwrap().available_permits() < places {
            tokio::task::yield_now().await;
        }
    }
}
