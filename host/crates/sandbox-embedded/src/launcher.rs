//! The process that starts sandboxes, and their keepers.
//!
//! It is this program once more, begun afresh with an empty environment and nothing in memory, with one thread, so that
//! it may fork. For each sandbox it forks a keeper, which forks the init, attaches the image and, when the init has ended
//! or the host is gone, sees to it that nothing is left.

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

/// What the launcher and everything that it forks are called.
pub const ARGUMENT: &str = "init";
/// Ids of one sandbox, as many as a user namespace of a container has everywhere.
pub const IDS: u32 = 65_536;
/// Programs that watch files, at once: what a user of a desktop has by default.
const INOTIFY_INSTANCES_MAX: &str = "128";
/// How long the last of a sandbox may take to write its image to disk, far longer than a disk needs for two GiB.
const DETACH_MAX: Duration = Duration::from_secs(60);
/// How often the end of a detachment is looked for.
const DETACH_POLL: Duration = Duration::from_millis(2);

/// Whether this program becomes the launcher when it is started as one.
static CAN_LAUNCH: AtomicBool = AtomicBool::new(false);

/// Becomes the launcher, if this process was started as one. For the first line of a program's `main`.
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

/// Whether this program's `main` began with [`run_if_launcher`]. Any other would do what it always does.
pub fn can_launch() -> bool {
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
    // What the server may be exempt from, its sandboxes are not.
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
            // Keepers see the end of the host by themselves. What was there for all of them goes with the last.
            while rustix::process::wait(WaitOptions::empty()).is_ok() {}
            folders.iter().for_each(|folder: &PathBuf| cgroups::remove_if_empty(folder));
            return Ok(());
        };
        folders.extend(message.cgroups.folders());
        let Ok([keepers, inits]) = <[OwnedFd; 2]>::try_from(descriptors) else { continue };
        let forked = sys::fork(|| Keeper { launch: message, host: keepers.as_fd() }.run(inits.as_fd()));
        if let Err(error) = forked {
            let failed = FromKeeper::Failed(format!("no process could be started: {error}"));
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

/// Takes the end of every child that has ended.
pub fn reap(children: &OwnedFd) -> Vec<(Pid, rustix::process::WaitStatus)> {
    let mut signals = [0_u8; 1024];
    // What it says is also in what wait says; it only has to be taken away.
    while rustix::io::read(children, &mut signals).is_ok_and(|read| read > 0) {}
    let mut ended = Vec::new();
    while let Ok(Some(child)) = rustix::process::wait(WaitOptions::NOHANG) {
        ended.push(child);
    }
    ended
}

/// The parent of an init, with the rights of the host, in all of the host's namespaces.
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
        // The host may be gone; then nobody needs to know.
        let _gone = wire::send(self.host, &message, &[], &[]);
        code
    }

    fn keep(&self, socket_of_init: BorrowedFd<'_>) -> io::Result<()> {
        let image = self.locked_image()?;
        let ids = user_namespace(self.launch.id_base).map_err(during("making a user namespace"))?;
        let device = LoopDevice::attach(&image).map_err(during("attaching the image to a loop device"))?;
        let group = self.launch.cgroups.create(&self.launch.name, &self.launch.limits);
        let group = group.map_err(during("making control groups"));
        let begun = group.and_then(|group| self.begin(&device, &group, ids.as_fd(), socket_of_init));
        let ready = begun.map(|(init, told)| (init, await_ready(told)));
        // From here on only the mount holds the device.
        let device = device.released();
        drop(ids);
        let ended = ready.and_then(|(init, ready)| {
            let lived = ready.and_then(|()| self.follow(init));
            // One that is not ready may be in the middle of anything.
            kill(init);
            rustix::process::waitpid(Some(init), WaitOptions::empty())?;
            lived
        });
        let detached = device.await_detached().map_err(during("detaching the image"));
        let Launch { cgroups, name, limits, .. } = &self.launch;
        let removed = cgroups.group(name, limits).groups.iter().try_for_each(|group| cgroups::remove_tree(group));
        ended.and(detached).and(removed.map_err(during("removing control groups")))
    }

    /// The image, which nobody else has: an older keeper of the same sandbox may still be at its end.
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

    /// Forks the init into its control groups. What it tells of its beginning is to be read.
    fn begin(
        &self,
        device: &LoopDevice,
        group: &SandboxGroup,
        ids: BorrowedFd<'_>,
        socket: BorrowedFd<'_>,
    ) -> io::Result<(Pid, OwnedFd)> {
        let (go, may_go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (told, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        sys::unshare(UnshareFlags::NEWPID).map_err(during("making a pid namespace"))?;
        let prepared =
            Prepared { launch: &self.launch, device: &device.path, ids, socket, go: go.as_fd(), tell: tell.as_fd() };
        let init = sys::fork(|| init::run(&prepared)).map_err(during("forking the init"))?;
        drop((go, tell));
        for group in &group.groups_of_init {
            if let Err(error) = cgroups::join(group, init.as_raw_nonzero().get()) {
                kill(init);
                rustix::process::waitpid(Some(init), WaitOptions::empty())?;
                return Err(during("moving the init into its control group")(error));
            }
        }
        File::from(may_go).write_all(b"!").map_err(during("starting the init"))?;
        Ok((init, told))
    }

    /// Tells the host that it may ask, and waits until the init has ended, or the host wishes so or is gone.
    fn follow(&self, init: Pid) -> io::Result<()> {
        // By a descriptor: the pid may be another's by the time that the host uses it.
        let pid = init.as_raw_nonzero().get();
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        wire::send(self.host, &FromKeeper::Ready { pid }, &[], &[network.as_fd()])?;
        drop(network);
        let init_ended = rustix::process::pidfd_open(init, PidfdFlags::empty())?;
        let mut polled = [PollFd::new(&init_ended, PollFlags::IN), PollFd::from_borrowed_fd(self.host, PollFlags::IN)];
        wait_for(&mut polled)
    }
}

/// Waits until the init is ready, or says why it is not.
fn await_ready(told: OwnedFd) -> io::Result<()> {
    let mut text = String::new();
    File::from(told).read_to_string(&mut text)?;
    match text.as_str() {
        init::READY => Ok(()),
        "" => Err(io::Error::other("the init ended before it was ready")),
        _ => Err(io::Error::other(text)),
    }
}

/// Ends a child, which may have ended already.
fn kill(child: Pid) {
    let _ended = rustix::process::kill_process(child, Signal::KILL);
}

/// Adds what was being done to an error.
pub fn during(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A user namespace with [`IDS`] ids from `base` on, in which no further namespace can be made.
fn user_namespace(base: u32) -> io::Result<OwnedFd> {
    let (made, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (stay, stays) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let member = sys::fork(|| {
        let owned = [tell.as_fd(), stay.as_fd()];
        let outcome = sys::keep_only(&owned)
            // What the kernel counts for whoever made the namespace is then counted for this sandbox, and not for the host.
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

/// No namespace can be made in this user namespace, and of what the kernel counts there may be so much.
fn limit_namespace() -> io::Result<()> {
    let namespaces = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
    let none = namespaces.map(|kind| (format!("max_{kind}_namespaces"), "0"));
    for (knob, most) in none.into_iter().chain([("max_inotify_instances".to_owned(), INOTIFY_INSTANCES_MAX)]) {
        match std::fs::write(format!("/proc/sys/user/{knob}"), most) {
            // What this kernel does not know cannot be made either.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written?,
        }
    }
    Ok(())
}

/// An image as a block device.
struct LoopDevice {
    path: String,
    /// Open until somebody else holds the device.
    _device: OwnedFd,
    inode: u64,
}

/// A loop device that goes by itself when it is no longer mounted.
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
                // Somebody else was faster.
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
    /// Waits until everything is written and the device has let go of the image.
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

/// Joins the user namespace of the sandbox: with all rights there, and none outside.
pub fn join_user_namespace(ids: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(ids, Some(LinkNameSpaceType::User))?)
}
