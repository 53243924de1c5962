//! A running sandbox, from the host's side.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use monstrum_sandbox::{ExecRequest, SandboxError, Termination, WORKSPACE};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cgroups::{ExecGroup, SandboxGroup};
use crate::control::{self, Control};
use crate::ids::IdRange;
use crate::network::FullNetwork;
use crate::sys;
use crate::wire::{self, FromKeeper};

/// The maximum time for the start of a sandbox. Even on a machine under load, a start takes far less time.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// The maximum time for the stop of a sandbox, including writing to disk.
const END_MAX: Duration = Duration::from_secs(120);
/// The time-out of the first command.
const PROBE_MAX: Duration = Duration::from_secs(30);
/// The maximum number of bytes of a broken shell's output that an error message quotes.
const PROBE_BYTES_MAX: usize = 200;
/// The maximum number of background output streams that are drained. The services of one conversation have fewer
/// streams.
const DRAINED_MAX: usize = 64;
/// Draining reads pieces of this size, one at a time for each sandbox, and pauses after each piece. At this rate it
/// reads 6 MiB a second and wakes the server a hundred times a second.
const DRAIN_BYTES: usize = 64 << 10;
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of concurrent file functions, lower than the process limit of the init.
const WORKERS_MAX: usize = 32;

/// The reason why a keeper did not start or stop its sandbox.
#[derive(Debug, thiserror::Error)]
enum KeeperError {
    /// The error message that the keeper sent.
    #[error("{0}")]
    Failed(String),
    #[error("the keeper sent an unexpected message: {0}")]
    Unexpected(&'static str),
    #[error("the keeper ended unexpectedly")]
    Gone,
    #[error("the keeper did not respond within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the connection to the keeper or the init failed")]
    Connection(#[from] io::Error),
}

impl From<Errno> for KeeperError {
    fn from(error: Errno) -> KeeperError {
        KeeperError::Connection(error.into())
    }
}

/// A sandbox that is running or has just ended.
pub(crate) struct Running {
    pub control: Arc<Control>,
    pub group: SandboxGroup,
    /// Limits the number of concurrent workers.
    pub workers: Arc<Semaphore>,
    /// The pid of the init on the host.
    pub pid: i32,
    /// The network namespace.
    namespace: Option<OwnedFd>,
    keeper: AsyncFd<OwnedFd>,
    execs: AtomicUsize,
    /// The groups of commands whose background programs may still be running.
    lingering: Mutex<Vec<ExecGroup>>,
    /// The tasks that drain the output of background programs, the oldest first.
    readers: Mutex<VecDeque<JoinHandle<()>>>,
    /// The lock of the task that is currently reading.
    draining: Arc<tokio::sync::Mutex<()>>,
    /// The ids of the sandbox. The pipes of commands belong to the sandbox's root user.
    pub ids: IdRange,
}

/// The socket pairs of the keeper and of the init. The host keeps one end of each pair, and the launcher receives the
/// other end.
pub(crate) struct Sockets {
    keeper: OwnedFd,
    init: OwnedFd,
    pub launched: [OwnedFd; 2],
}

impl Sockets {
    /// Creates both pairs.
    pub(crate) fn new() -> io::Result<Sockets> {
        let (keeper, of_keeper) = wire::pair()?;
        let (init, of_init) = wire::pair()?;
        Ok(Sockets { keeper, init, launched: [of_keeper, of_init] })
    }
}

impl Running {
    /// Waits until the keeper reports that the init is ready.
    pub(crate) async fn begin(
        sockets: Sockets,
        group: SandboxGroup,
        ids: IdRange,
    ) -> Result<Arc<Running>, SandboxError> {
        let Sockets { keeper, init, launched } = sockets;
        drop(launched);
        let failed = |error: KeeperError| SandboxError::unavailable_because("the sandbox did not start", error);
        let keeper = sys::watched(keeper).map_err(|error| failed(error.into()))?;
        let (pid, namespace) = match timeout(BEGIN_MAX, control::receive::<FromKeeper>(&keeper)).await {
            Ok(Ok(Some(mut received))) => match received.message {
                FromKeeper::Ready { pid } => (pid, received.descriptors.pop()),
                FromKeeper::Failed(reason) => return Err(failed(KeeperError::Failed(reason))),
                FromKeeper::Stopped => {
                    return Err(failed(KeeperError::Unexpected("the sandbox stopped during its start")));
                }
            },
            Ok(Ok(None)) => return Err(failed(KeeperError::Gone)),
            Ok(Err(error)) => return Err(failed(error.into())),
            Err(_) => return Err(failed(KeeperError::TimedOut(BEGIN_MAX))),
        };
        let control = Control::new(init).map_err(|error| failed(error.into()))?;
        let running = Arc::new(Running {
            control,
            group,
            workers: Arc::new(Semaphore::new(WORKERS_MAX)),
            pid,
            namespace,
            keeper,
            execs: AtomicUsize::new(0),
            lingering: Mutex::default(),
            readers: Mutex::default(),
            draining: Arc::default(),
            ids,
        });
        Ok(running)
    }

    /// Connects the sandbox to a network.
    pub(crate) async fn connect(self: &Arc<Self>, network: Arc<FullNetwork>) -> Result<(), SandboxError> {
        let own = Arc::clone(self);
        let connected = tokio::task::spawn_blocking(move || {
            let namespace = own.namespace.as_ref().ok_or_else(|| {
                SandboxError::unavailable("the keeper of the sandbox did not send its network namespace")
            })?;
            // The interface disappears with the namespace.
            network.attach(namespace.as_fd()).map(drop)
        });
        connected.await.expect("connecting does not panic")
    }

    /// Checks that the sandbox answers. In a new sandbox, runs a command. In a resumed sandbox, runs a file function
    /// instead, because the sandbox may have replaced its shell and the caller has not requested a command.
    pub(crate) async fn probe(self: &Arc<Self>, is_new: bool) -> Result<(), SandboxError> {
        if !is_new {
            // The folder exists, so the worker opens it and creates nothing.
            let looked = timeout(PROBE_MAX, super::files::mkdir(self, WORKSPACE)).await;
            let late = || SandboxError::unavailable("the sandbox does not respond");
            return looked.unwrap_or_else(|_| Err(late()));
        }
        let request =
            ExecRequest { output_bytes_max: PROBE_BYTES_MAX, ..ExecRequest::new("true").with_timeout(PROBE_MAX) };
        let output = super::exec::run(self, request, None).await?;
        match (output.exit_code, output.termination) {
            (0, Termination::Exited) => Ok(()),
            (code, termination) => {
                let (how, stderr) = (termination.as_str(), output.stderr.text);
                Err(SandboxError::unavailable(format!(
                    "the shell of the sandbox does not work ({how}, exit code {code}): {stderr}"
                )))
            }
        }
    }

    /// Requests the end of the sandbox, but does not wait for it.
    pub(crate) fn terminate(&self) {
        if let Err(error) = self.close_keeper() {
            tracing::error!(%error, "the socket of a keeper could not be closed");
        }
    }

    fn close_keeper(&self) -> Result<(), Errno> {
        match rustix::net::shutdown(self.keeper.as_fd(), Shutdown::Write) {
            // The keeper has already ended.
            Err(Errno::NOTCONN) => Ok(()),
            closed => closed,
        }
    }

    /// Stops the sandbox and waits until its image is detached and its control groups are removed.
    pub(crate) async fn end(&self) -> Result<(), SandboxError> {
        let failed = |error: KeeperError| SandboxError::unavailable_because("the sandbox did not stop", error);
        self.close_keeper().map_err(|error| failed(error.into()))?;
        let reported = timeout(END_MAX, control::receive::<FromKeeper>(&self.keeper)).await;
        self.readers.lock().drain(..).for_each(|reader| reader.abort());
        match reported {
            Ok(Ok(Some(received))) => match received.message {
                FromKeeper::Stopped => Ok(()),
                FromKeeper::Failed(reason) => Err(failed(KeeperError::Failed(reason))),
                FromKeeper::Ready { .. } => {
                    Err(failed(KeeperError::Unexpected("the sandbox became ready a second time")))
                }
            },
            // The keeper has already reported the end, or the keeper was killed and the kernel has cleaned up.
            Ok(Ok(None)) => Ok(()),
            Ok(Err(error)) => Err(failed(error.into())),
            Err(_) => Err(failed(KeeperError::TimedOut(END_MAX))),
        }
    }

    /// Counts a command until the returned value is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.execs.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Returns the number of running commands.
    pub(crate) fn execs(&self) -> usize {
        self.execs.load(Ordering::Relaxed)
    }

    /// Keeps the group of a command with background programs, so that the group can be removed when they have ended.
    pub(crate) fn linger(&self, group: ExecGroup) {
        self.lingering.lock().push(group);
    }

    /// Removes groups and tasks that have ended.
    pub(crate) fn sweep(&self) {
        self.lingering.lock().retain(|group| !group.remove().unwrap_or(true));
        self.readers.lock().retain(|reader| !reader.is_finished());
    }

    /// Drains a stream, because a signal kills a program that writes to a pipe without a reader. If too many streams
    /// are open, closes the oldest streams, because each stream uses a descriptor of the host.
    pub(crate) fn drain(&self, from: Receiver) {
        let turn = Arc::clone(&self.draining);
        let reader = tokio::spawn(async move {
            while from.readable().await.is_ok() {
                let _turn = turn.lock().await;
                match from.try_read(&mut [0; DRAIN_BYTES]) {
                    Ok(0) => return,
                    Ok(_) => tokio::time::sleep(DRAIN_PAUSE).await,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        });
        let mut readers = self.readers.lock();
        readers.retain(|reader| !reader.is_finished());
        while readers.len() >= DRAINED_MAX {
            readers.pop_front().into_iter().for_each(|reader| reader.abort());
        }
        readers.push_back(reader);
    }
}

/// Counts a running command until it is dropped.
pub(crate) struct Busy(Arc<Running>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.execs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.readers.lock().drain(..).for_each(|reader| reader.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use monstrum_sandbox::Limits;

    use super::*;
    use crate::cgroups::Cgroups;
    use crate::ids::Ids;

    #[tokio::test]
    async fn failed_start_has_the_reason_as_its_source() {
        let root = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(root.path().join("cgroup.controllers"), "memory pids").expect("it is written");
        let cgroups = Cgroups::find(root.path(), "t").expect("it looks like version 2");
        let group = cgroups.group("ms-1-1", &Limits::default());
        let ids = Ids::of("t").take().expect("a range is free");
        // The call of `begin` drops the keeper's end of the socket, which has the same effect as an ended keeper.
        let sockets = Sockets::new().expect("they are made");
        let error = Running::begin(sockets, group, ids).await.err().expect("nothing answers");
        assert_eq!(error.to_string(), "the sandbox did not start");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the keeper ended unexpectedly"));
    }
}
