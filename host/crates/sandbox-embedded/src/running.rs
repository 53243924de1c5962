//! One sandbox that runs, as the host holds it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use monstrum_sandbox::{ExecRequest, SandboxError, Termination, WORKSPACE};
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

/// How long a sandbox may take to begin, far longer than it does on a machine under load.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// How long its end may take, with everything that it has to write to disk.
const END_MAX: Duration = Duration::from_secs(120);
/// How long the first command may take.
const PROBE_MAX: Duration = Duration::from_secs(30);
/// What is told of a shell that does not work.
const PROBE_BYTES_MAX: usize = 200;
/// Streams of commands in the background that are read for nobody: more services than a conversation has.
const READERS_MAX: usize = 64;
/// What they write is read in pieces of this size, one at a time in a sandbox and with this pause after each: 6 MiB a
/// second, for which the server wakes a hundred times.
const AWAY_BYTES: usize = 64 << 10;
const AWAY_PAUSE: Duration = Duration::from_millis(10);
/// Operations on files at once, fewer than the init may have processes.
const WORKERS_MAX: usize = 32;

/// Why a keeper did not start or stop its sandbox.
#[derive(Debug, thiserror::Error)]
enum KeeperError {
    /// In the keeper's words: it is another process.
    #[error("{0}")]
    Failed(String),
    #[error("the keeper reported that {0}")]
    Unexpected(&'static str),
    #[error("the keeper ended")]
    Gone,
    #[error("the keeper did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the connection to the keeper or the init failed")]
    Connection(#[from] io::Error),
}

impl From<Errno> for KeeperError {
    fn from(error: Errno) -> KeeperError {
        KeeperError::Connection(error.into())
    }
}

/// A sandbox that runs, or did until a moment ago.
pub struct Running {
    pub control: Arc<Control>,
    pub group: SandboxGroup,
    /// Who may work on its files.
    pub workers: Arc<Semaphore>,
    /// Its init, as the host sees it.
    pub pid: i32,
    /// Of its network.
    namespace: Option<OwnedFd>,
    keeper: AsyncFd<OwnedFd>,
    execs: AtomicUsize,
    /// Groups of commands that have left something running.
    lingering: Mutex<Vec<ExecGroup>>,
    /// Who reads what that writes, the oldest first.
    readers: Mutex<VecDeque<JoinHandle<()>>>,
    /// Held by the one of them that reads.
    reading_away: Arc<tokio::sync::Mutex<()>>,
    /// Root inside, to whom the pipes of commands belong.
    pub ids: IdRange,
}

/// Both ends of both sockets, before the launcher has taken two of them.
pub struct Sockets {
    keeper: OwnedFd,
    init: OwnedFd,
    pub launched: [OwnedFd; 2],
}

impl Sockets {
    /// Two fresh pairs.
    pub fn new() -> io::Result<Sockets> {
        let (keeper, of_keeper) = wire::pair()?;
        let (init, of_init) = wire::pair()?;
        Ok(Sockets { keeper, init, launched: [of_keeper, of_init] })
    }
}

impl Running {
    /// Follows a sandbox that the launcher has been asked for, until a command in it has answered.
    pub async fn begin(sockets: Sockets, group: SandboxGroup, ids: IdRange) -> Result<Arc<Running>, SandboxError> {
        let Sockets { keeper, init, launched } = sockets;
        drop(launched);
        let failed = |error: KeeperError| SandboxError::unavailable_because("the sandbox did not start", error);
        let keeper = sys::watched(keeper).map_err(|error| failed(error.into()))?;
        let (pid, namespace) = match timeout(BEGIN_MAX, control::receive::<FromKeeper>(&keeper)).await {
            Ok(Ok(Some(mut received))) => match received.message {
                FromKeeper::Ready { pid } => (pid, received.descriptors.pop()),
                FromKeeper::Failed(reason) => return Err(failed(KeeperError::Failed(reason))),
                FromKeeper::Stopped => return Err(failed(KeeperError::Unexpected("it stopped at once"))),
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
            reading_away: Arc::default(),
            ids,
        });
        Ok(running)
    }

    /// Gives it a network beyond itself.
    pub async fn connect(self: &Arc<Self>, network: Arc<FullNetwork>) -> Result<(), SandboxError> {
        let own = Arc::clone(self);
        let connected = tokio::task::spawn_blocking(move || {
            let namespace = own.namespace.as_ref().ok_or_else(|| {
                SandboxError::unavailable("the keeper of the sandbox did not send its network namespace")
            })?;
            // It goes with the namespace.
            network.attach(namespace.as_fd()).map(drop)
        });
        connected.await.expect("connecting does not panic")
    }

    /// Whether it answers. A new one runs a command; in any other the shell is what the sandbox has made of it, which
    /// nobody has asked to run now, so that a look at its files has to do.
    pub async fn probe(self: &Arc<Self>, is_new: bool) -> Result<(), SandboxError> {
        if !is_new {
            // It is there, so that a worker opens it and makes nothing.
            let looked = timeout(PROBE_MAX, super::files::mkdir(self, WORKSPACE)).await;
            let late = || SandboxError::unavailable("the sandbox does not answer");
            return looked.unwrap_or_else(|_| Err(late()));
        }
        let request = ExecRequest { output_bytes_max: PROBE_BYTES_MAX, ..ExecRequest::new("true").within(PROBE_MAX) };
        let output = super::exec::run(self, request, None).await?;
        match (output.exit_code, output.termination) {
            (0, Termination::Exited) => Ok(()),
            (code, termination) => {
                let (how, stderr) = (termination.as_str(), output.stderr.text);
                Err(SandboxError::unavailable(format!(
                    "the shell of the sandbox does not work: {how}, {code}: {stderr}"
                )))
            }
        }
    }

    /// Has everything in it ended, without waiting for it.
    pub fn give_up(&self) {
        if let Err(error) = self.tell_keeper() {
            tracing::error!(%error, "the keeper of a sandbox cannot be told to end it");
        }
    }

    fn tell_keeper(&self) -> Result<(), Errno> {
        match rustix::net::shutdown(self.keeper.as_fd(), Shutdown::Write) {
            // It ended by itself.
            Err(Errno::NOTCONN) => Ok(()),
            told => told,
        }
    }

    /// Ends everything in it. Returns when its image is whole and nothing of it is left.
    pub async fn end(&self) -> Result<(), SandboxError> {
        let failed = |error: KeeperError| SandboxError::unavailable_because("the sandbox did not stop", error);
        self.tell_keeper().map_err(|error| failed(error.into()))?;
        let told = timeout(END_MAX, control::receive::<FromKeeper>(&self.keeper)).await;
        self.readers().drain(..).for_each(|reader| reader.abort());
        match told {
            Ok(Ok(Some(received))) => match received.message {
                FromKeeper::Stopped => Ok(()),
                FromKeeper::Failed(reason) => Err(failed(KeeperError::Failed(reason))),
                FromKeeper::Ready { .. } => Err(failed(KeeperError::Unexpected("it became ready a second time"))),
            },
            // It has told its end before, or was ended itself: then the kernel has cleaned up.
            Ok(Ok(None)) => Ok(()),
            Ok(Err(error)) => Err(failed(error.into())),
            Err(_) => Err(failed(KeeperError::TimedOut(END_MAX))),
        }
    }

    /// Counts a command for as long as the returned value lives.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.execs.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// How many commands run.
    pub fn execs(&self) -> usize {
        self.execs.load(Ordering::Relaxed)
    }

    /// Takes the group of a command whose children go on, to remove it when they have ended.
    pub fn linger(&self, group: ExecGroup) {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).push(group);
    }

    /// Removes what has ended meanwhile.
    pub fn sweep(&self) {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).retain(|group| !group.remove().unwrap_or(true));
        self.readers().retain(|reader| !reader.is_finished());
    }

    /// Reads on, for nobody: who writes to a pipe without a reader is ended by a signal. So is who has been left behind by
    /// the oldest commands, where there are too many: each costs the host a descriptor.
    pub fn read_away(&self, from: Receiver) {
        let turn = Arc::clone(&self.reading_away);
        let reader = tokio::spawn(async move {
            while from.readable().await.is_ok() {
                let _turn = turn.lock().await;
                match from.try_read(&mut [0; AWAY_BYTES]) {
                    Ok(0) => return,
                    Ok(_) => tokio::time::sleep(AWAY_PAUSE).await,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        });
        let mut readers = self.readers();
        readers.retain(|reader| !reader.is_finished());
        while readers.len() >= READERS_MAX {
            readers.pop_front().into_iter().for_each(|reader| reader.abort());
        }
        readers.push_back(reader);
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, VecDeque<JoinHandle<()>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command under way.
pub struct Busy(Arc<Running>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.execs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.readers().drain(..).for_each(|reader| reader.abort());
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
        // The keeper's end is closed when `begin` drops it: there is no keeper.
        let sockets = Sockets::new().expect("they are made");
        let error = Running::begin(sockets, group, ids).await.err().expect("nothing answers");
        assert_eq!(error.to_string(), "the sandbox did not start");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the keeper ended"));
    }
}
