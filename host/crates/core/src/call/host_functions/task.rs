//! Work of a host function that runs as a task of its own.
//!
//! The engine polls a host function on the stack of the guest, and it keeps the memory that the deepest frames have
//! touched for as long as the guest lives. A request has deep frames: HTTP, TLS and searches for secrets. In a task, these
//! frames are on the stack of a worker thread, and the guest's stack stays small while the guest waits.

use futures::FutureExt as _;
use monstrum_types::{Failure, FailureCode};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::Instrument as _;

/// Runs `work` as a task. Dropping the returned future aborts the task; the task has ended when `tasks` no longer counts
/// it. A panic of the task continues in the caller, as if the caller had polled `work` itself.
pub(super) fn run<T: Send + 'static>(
    tasks: &TaskTracker,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> + Send + 'static {
    // The state of the work is created in the task, and not here on the stack of the guest.
    let boxed = async move { work.boxed().await };
    let task = AbortOnDropHandle::new(tasks.spawn(boxed.in_current_span()));
    async move {
        match task.await {
            Ok(result) => result,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(Failure::unsent(FailureCode::Internal, "the request was interrupted")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_result_of_the_task_is_returned() {
        let tasks = TaskTracker::new();
        assert_eq!(run(&tasks, async { Ok(7) }).await, Ok(7));
        let failure = Failure::sent(FailureCode::Protocol, "no");
        assert_eq!(run::<()>(&tasks, std::future::ready(Err(failure.clone()))).await, Err(failure));
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn a_panic_of_the_task_is_a_panic_of_the_caller() {
        let tasks = TaskTracker::new();
        let panicking = run::<()>(&tasks, async { panic!("the work failed") });
        let panic = AssertUnwindSafe(panicking).catch_unwind().await.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the work failed"));
        tasks.close();
        tasks.wait().await;
    }

    /// Checks that the task ends when its caller no longer waits, and that the tracker counts it until it has ended.
    #[tokio::test]
    async fn a_dropped_caller_aborts_the_task() {
        let tasks = TaskTracker::new();
        let (started, has_started) = oneshot::channel();
        let (held, mut ended) = oneshot::channel::<()>();
        let work = async move {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        };
        let waiting = run(&tasks, work);
        has_started.await.unwrap();
        assert_eq!(tasks.len(), 1);
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(waiting);
        tasks.close();
        tasks.wait().await;
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
