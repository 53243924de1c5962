//! Work that takes long for its size, such as compiling and parsing: on threads that serve no requests.

use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Room for as much work of one kind at once as there are processors.
pub struct Beside(OnceLock<Arc<Semaphore>>);

impl Beside {
    /// Room in which nothing runs.
    pub const fn new() -> Beside {
        Beside(OnceLock::new())
    }

    /// Does the work, waiting for room. The room is taken until the work ends, also where its caller goes away.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        let room = || Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from)));
        let room = Arc::clone(self.0.get_or_init(room));
        let place = room.acquire_owned().await.expect("the semaphore is never closed");
        spawn_blocking(move || {
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
        assert_eq!(room.0.get().unwrap().available_permits(), places - 1, "its caller has gone, and it goes on");
        drop(end);
        while room.0.get().unwrap().available_permits() < places {
            tokio::task::yield_now().await;
        }
    }
}
