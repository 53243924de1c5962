//! The launcher, which starts sandboxes, and the keepers of sandboxes.
//!
//! The launcher is a second process of this program. It has one thread, so that it can fork, and an empty environment,
//! and it holds no data of the server. For each sandbox, the launcher forks a keeper. The keeper attaches the image,
//! forks the init, and cleans up when the init has ended or the host is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::cgroups::{self, SandboxGroup};
use crate::init::{self, Prepared};
use crate::sys;
use crate::wire::{self, FromKeeper, Launch, Received};

/// The process name of the launcher and its children.
pub(crate) const ARGUMENT: &str = "init";
/// The number of ids of one sandbox, the usual size of a container's user namespace.
pub(crate) const IDS: u32 = 65_536;
/// The maximum number of inotify instances of a user: the default of the kernel.
const INOTIFY_INSTANCES_MAX: &str = "128";
/// The maximum time for writing the image to disk when a sandbox ends. A disk needs far less time to write 2 GiB.
const DETACH_MAX: Duration = Duration::from_secs(60);
/// The poll interval while the image is detached.
const DETACH_POLL: Duration = Duration::from_millis(2);

/// Whether this program becomes the launcher when it is started as the launcher.
static CAN_LAUNCH: AtomicBool = AtomicBool::new(false);

/// Becomes the launcher if this process was started as the launcher. Call this function first in `main`.
pub fn run_if_launcher() {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|name| name == ARGUMENT) && arguments.next().is_none() {
        sys::exit(match launcher() {
            Ok(()) => 0,
            Err(_) => 1,
        });
    }
    CAN_LAUNCH.store(true, Ordering::Relaxed);
}

/// Whether this program's `main` called [`run_if_launcher`]; other programs cannot be started as the launcher.
pub(crate) fn can_launch() -> bool {
    CAN_LAUNCH.load(Ordering::Relaxed)
}

fn launcher() -> io::Result<()> {
    let host = io::stdin().as_fd().try_clone_to_owned()?;
    if rustix::net::sockopt::socket_type(&host)? != rustix::net::SocketType::SEQPACKET {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::fcntl_setfd(&host, rustix::io::FdFlags::CLOEXEC)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Sandboxes must not inherit an exemption of the server from the OOM killer.
    std::fs::write("/proc/self/oom_score_adj", "0")?;
    let children = sys::signals_of_children()?;
    let mut folders = BTreeSet::new();
    loop {
        let mut polled = [PollFd::new(&host, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        wait_for(&mut polled)?;
        let came = polled[0].revents();
        reap(&children);
        if came.is_empty() {
            continue;
        }
        let Some(Received { message, descriptors, .. }) = wire::receive::<Launch>(&host)? else {
            // Each keeper detects that the host is gone. The launcher removes the shared control groups after the last
            // keeper has ended.
            while rustix::process::wait(WaitOptions::empty()).is_ok() {}
            folders.iter().for_each(|folder: &PathBuf| cgroups::remove_if_empty(folder));
            return Ok(());
        };
        folders.extend(message.cgroups.folders());
        let Ok([keepers, inits]) = <[OwnedFd; 2]>::try_from(descriptors) else { continue };
        let forked = sys::fork(|| Keeper { launch: message, host: keepers.as_fd() }.run(inits.as_fd()));
        if let Err(error) = forked {
            let failed = FromKeeper::Failed(format!("the keeper of the sandbox could not be started: {error}"));
            let _gone = wire::send(&keepers, &failed, &[], &[]);
        }
    }
}

fn wait_for(polled: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(polled, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Collects all children that have ended.
pub(crate) fn reap(children: &OwnedFd) -> Vec<(Pid, rustix::process::WaitStatus)> {
    let mut signals = [0_u8; 1024];
    // The signals carry no further information and only have to be read from the descriptor.
    while rustix::io::read(children, &mut signals).is_ok_and(|read| read > 0) {}
    let mut ended = Vec::new();
    while let Ok(Some(child)) = rustix::process::wait(WaitOptions::NOHANG) {
        ended.push(child);
    }
    ended
}

/// The parent of an init. It has the rights of the host and is in the host's namespaces.
struct Keeper<'a> {
    launch: Launch,
    host: BorrowedFd<'a>,
}

impl Keeper<'_> {
    fn run(self, socket_of_init: BorrowedFd<'_>) -> i32 {
        let outcome = sys::keep_only(&[self.host, socket_of_init]).and_then(|()| self.keep(socket_of_init));
        let (message, code) = match outcome {
            Ok(()) => (FromKeeper::Stopped, 0),
            Err(error) => (FromKeeper::Failed(error.to_string()), 1),
        };
        // If the host is gone, nothing receives the message.
        let _gone = wire::send(self.host, &message, &[], &[]);
        code
    }

    fn keep(&self, socket_of_init: BorrowedFd<'_>) -> io::Result<()> {
        let image = self.locked_image()?;
        let ids = user_namespace(self.launch.id_base).map_err(during("creating a user namespace"))?;
        let device = LoopDevice::attach(&image).map_err(during("attaching the image to a loop device"))?;
        let group = self.launch.cgroups.create(&self.launch.name, &self.launch.limits);
        let group = group.map_err(during("creating control groups"));
        let begun = group.and_then(|group| self.begin(&device, &group, ids.as_fd(), socket_of_init));
        let ready = begun.map(|(init, is_ready)| (init, await_ready(is_ready)));
        // From here on, only the mount holds the device.
        let device = device.released();
        drop(ids);
        let ended = ready.and_then(|(init, ready)| {
            let lived = ready.and_then(|()| self.follow(init));
            // An init that failed to start may be in any state.
            kill(init);
            rustix::process::waitpid(Some(init), WaitOptions::empty())?;
            lived
        });
        let detached = device.await_detached().map_err(during("detaching the image"));
        let Launch { cgroups, name, limits, .. } = &self.launch;
        let removed = cgroups.group(name, limits).groups.iter().try_for_each(|group| cgroups::remove_tree(group));
        ended.and(detached).and(removed.map_err(during("removing control groups")))
    }

    /// Opens the image and waits for its lock, because the previous keeper of the same sandbox may still be ending.
    fn locked_image(&self) -> io::Result<File> {
        let image =
            File::options().read(true).write(true).open(&self.launch.image).map_err(during("opening the image"))?;
        let until = std::time::Instant::now() + DETACH_MAX;
        loop {
            match rustix::fs::flock(&image, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(image),
                Err(Errno::WOULDBLOCK) if std::time::Instant::now() < until => std::thread::sleep(DETACH_POLL),
                Err(error) => return Err(during("locking the image")(error.into())),
            }
        }
    }

    /// Forks the init into its control groups and returns the pipe with its readiness message.
    fn begin(
        &self,
        device: &LoopDevice,
        group: &SandboxGroup,
        ids: BorrowedFd<'_>,
        socket: BorrowedFd<'_>,
    ) -> io::Result<(Pid, OwnedFd)> {
        let (go, may_go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (is_ready, ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        sys::unshare(UnshareFlags::NEWPID).map_err(during("creating a pid namespace"))?;
        let prepared =
            Prepared { launch: &self.launch, device: &device.path, ids, socket, go: go.as_fd(), ready: ready.as_fd() };
        let init = sys::fork(|| init::run(&prepared)).map_err(during("forking the init"))?;
        drop((go, ready));
        for group in &group.groups_of_init {
            if let Err(error) = cgroups::join(group, init.as_raw_nonzero().get()) {
                kill(init);
                rustix::process::waitpid(Some(init), WaitOptions::empty())?;
                return Err(during("moving the init into its control group")(error));
            }
        }
        File::from(may_go).write_all(b"!").map_err(during("starting the init"))?;
        Ok((init, is_ready))
    }

    /// Reports to the host that the init is ready, and waits until the init ends or the host closes its socket.
    fn follow(&self, init: Pid) -> io::Result<()> {
        // The message carries a descriptor, because the pid may be reused before the host uses the namespace.
        let pid = init.as_raw_nonzero().get();
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        wire::send(self.host, &FromKeeper::Ready { pid }, &[], &[network.as_fd()])?;
        drop(network);
        let init_ended = rustix::process::pidfd_open(init, PidfdFlags::empty())?;
        let mut polled = [PollFd::new(&init_ended, PollFlags::IN), PollFd::from_borrowed_fd(self.host, PollFlags::IN)];
        wait_for(&mut polled)
    }
}

/// Waits for the readiness message of the init.
fn await_ready(pipe: OwnedFd) -> io::Result<()> {
    let mut text = String::new();
    File::from(pipe).read_to_string(&mut text)?;
    match text.as_str() {
        init::READY => Ok(()),
        "" => Err(io::Error::other("the init ended before it was ready")),
        _ => Err(io::Error::other(text)),
    }
}

/// Kills a child, which may already have ended.
fn kill(child: Pid) {
    let _ended = rustix::process::kill_process(child, Signal::KILL);
}

/// Adds the failed step to an error.
pub(crate) fn during(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what} failed: {error}"))
}

/// Creates a user namespace that maps [`IDS`] ids, starting with `base`. No further namespaces can be created in it.
fn user_namespace(base: u32) -> io::Result<OwnedFd> {
    let (made, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (stay, stays) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let member = sys::fork(|| {
        let owned = [tell.as_fd(), stay.as_fd()];
        let outcome = sys::keep_only(&owned)
            // The kernel charges limits to the creator of the namespace, so its creator must be a user of this sandbox.
            .and_then(|()| sys::become_user(base))
            .and_then(|()| sys::unshare(UnshareFlags::NEWUSER))
            .and_then(|()| limit_namespace())
            .and_then(|()| Ok(rustix::io::write(&tell, b"!")?));
        let mut nothing = [0];
        let _parent_is_done = rustix::io::read(&stay, &mut nothing);
        i32::from(outcome.is_err())
    })?;
    drop((tell, stay));
    let mut is_made = [0];
    let mapped = File::from(made).read_exact(&mut is_made).and_then(|()| {
        let of_member = format!("/proc/{}", member.as_raw_nonzero());
        std::fs::write(format!("{of_member}/uid_map"), format!("0 {base} {IDS}"))?;
        std::fs::write(format!("{of_member}/gid_map"), format!("0 {base} {IDS}"))?;
        Ok(File::open(format!("{of_member}/ns/user"))?.into())
    });
    drop(stays);
    rustix::process::waitpid(Some(member), WaitOptions::empty())?;
    mapped
}

/// Forbids further namespaces in this user namespace and limits inotify instances.
fn limit_namespace() -> io::Result<()> {
    let namespaces = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
    let none = namespaces.map(|kind| (format!("max_{kind}_namespaces"), "0"));
    for (knob, most) in none.into_iter().chain([("max_inotify_instances".to_owned(), INOTIFY_INSTANCES_MAX)]) {
        match std::fs::write(format!("/proc/sys/user/{knob}"), most) {
            // This kernel does not support namespaces of this kind.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written?,
        }
    }
    Ok(())
}

/// The loop device of an image.
struct LoopDevice {
    path: String,
    /// Keeps the device attached until it is mounted.
    _device: OwnedFd,
    inode: u64,
}

/// A loop device that detaches itself when it is unmounted.
struct ReleasedDevice {
    path: String,
    inode: u64,
}

impl LoopDevice {
    fn attach(image: &File) -> io::Result<LoopDevice> {
        use std::os::unix::fs::MetadataExt as _;
        let inode = image.metadata()?.ino();
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        loop {
            let path = format!("/dev/loop{}", sys::free_loop_device(control.as_fd())?);
            let device: OwnedFd = File::options().read(true).write(true).open(&path)?.into();
            match sys::attach_loop_device(device.as_fd(), image.as_fd()) {
                Ok(()) => return Ok(LoopDevice { path, _device: device, inode }),
                // Another process has taken this device first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn released(self) -> ReleasedDevice {
        ReleasedDevice { path: self.path, inode: self.inode }
    }
}

impl ReleasedDevice {
    /// Waits until all writes are complete and the loop device has released the image.
    fn await_detached(&self) -> io::Result<()> {
        let until = std::time::Instant::now() + DETACH_MAX;
        loop {
            let device = File::open(Path::new(&self.path))?;
            if sys::file_behind_loop_device(device.as_fd())? != Some(self.inode) {
                return Ok(());
            }
            drop(device);
            if std::time::Instant::now() >= until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the image is still in use"));
            }
            std::thread::sleep(DETACH_POLL);
        }
    }
}

/// Joins the sandbox's user namespace. The process then has all capabilities in this namespace and none outside it.
pub(crate) fn join_user_namespace(ids: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(ids, Some(LinkNameSpaceType::User))?)
}
