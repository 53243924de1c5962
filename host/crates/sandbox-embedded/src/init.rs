//! The init, the first process of a sandbox. It builds the sandbox around itself, drops its privileges, and then starts
//! commands for the host.
//!
//! The init has no more rights than the commands that it starts. Commands cannot read the memory of the init, which
//! belongs to the host's user namespace. When its socket or its keeper is gone, the init exits, and the kernel kills
//! all other processes in the sandbox.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use monstrum_sandbox::WORKSPACE;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitStatus};
use rustix::thread::UnshareFlags;

use crate::launcher::{during, join_user_namespace, reap};
use crate::wire::{self, ExitStatus, FromInit, Launch, Received, Refusal, ToInit};
use crate::{hardening, mounts, sys, worker};

/// The message to the keeper when the init is ready. Any other message is an error.
pub(crate) const READY: &str = "ready";

/// The environment of every command, to which requests add variables.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("LOGNAME", "root"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("SHELL", "/bin/bash"),
    ("TERM", "dumb"),
    ("USER", "root"),
];
/// Environment variables of sandboxes without a network. With these variables, package managers fail at once instead of
/// retrying.
const WITHOUT_NETWORK: [(&str, &str); 2] = [("NPM_CONFIG_FETCH_RETRIES", "0"), ("PIP_RETRIES", "0")];
/// The host name in the sandbox.
const HOST_NAME: &[u8] = b"sandbox";

/// The data and descriptors that the keeper prepares for the init.
pub(crate) struct Prepared<'a> {
    pub launch: &'a Launch,
    /// The loop device of the image.
    pub device: &'a str,
    /// The user namespace of the sandbox.
    pub ids: BorrowedFd<'a>,
    /// The socket to the host.
    pub socket: BorrowedFd<'a>,
    /// Becomes readable once the init is in its control groups.
    pub go: BorrowedFd<'a>,
    /// The pipe to which the init writes [`READY`] or an error message.
    pub ready: BorrowedFd<'a>,
}

/// Runs the init until it ends.
pub(crate) fn run(prepared: &Prepared<'_>) -> i32 {
    let begun = begin(prepared);
    let text = match &begun {
        Ok(_) => READY.to_owned(),
        Err(error) => error.to_string(),
    };
    // If the write fails, the keeper has ended. No other process would end the init later, so the init exits.
    if rustix::io::write(prepared.ready, text.as_bytes()).is_err() {
        return 1;
    }
    let Ok(children) = begun else { return 1 };
    if sys::keep_only(&[prepared.socket, children.as_fd()]).is_err() {
        return 1;
    }
    let socket = prepared.socket;
    let environment = environment(prepared.launch);
    let outcome = Init { socket, children, environment, running: HashMap::new() }.serve();
    i32::from(outcome.is_err())
}

fn environment(launch: &Launch) -> Vec<String> {
    let without_network = WITHOUT_NETWORK.iter().filter(|_| launch.resolv_conf.is_none());
    // Programs that do not use `nproc` read the number of threads from here.
    let threads = format!("OMP_NUM_THREADS={}", mounts::view::processors(&launch.limits));
    let fixed = ENVIRONMENT.iter().chain(without_network).map(|(name, value)| format!("{name}={value}"));
    fixed.chain([threads]).collect()
}

fn begin(prepared: &Prepared<'_>) -> io::Result<OwnedFd> {
    let Prepared { launch, device, ids, socket, go, ready } = *prepared;
    sys::keep_only(&[ids, socket, go, ready])?;
    rustix::process::setsid()?;
    let mut is_placed = [0];
    if rustix::io::read(go, &mut is_placed)? == 0 {
        return Err(io::Error::other("the keeper has ended"));
    }
    let spaces = UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    sys::unshare(spaces).map_err(during("creating namespaces"))?;
    rustix::system::sethostname(HOST_NAME)?;
    sys::bring_loopback_up().map_err(during("bringing the loopback interface up"))?;
    // Root in the sandbox has no capabilities over its network, so all users are allowed to use these features.
    let of_network = |knob: &str, value: &str| match std::fs::write(format!("/proc/sys/net/ipv4/{knob}"), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(during("setting up the network")),
    };
    of_network("ip_unprivileged_port_start", "0")?;
    of_network("ping_group_range", "0 2147483647")?;
    mounts::build(launch, device, ids)?;
    join_user_namespace(ids).map_err(during("joining the user namespace"))?;
    become_root_of_sandbox().map_err(during("switching to the root user of the sandbox"))?;
    hardening::limit_resources().map_err(during("limiting resources"))?;
    hardening::drop_capabilities().map_err(during("dropping capabilities"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let children = sys::signals_of_children()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    hardening::filter_system_calls().map_err(during("filtering system calls"))?;
    Ok(children)
}

fn become_root_of_sandbox() -> io::Result<()> {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    set_thread_groups(&[])?;
    set_thread_res_gid(Some(rustix::fs::Gid::ROOT), Some(rustix::fs::Gid::ROOT), Some(rustix::fs::Gid::ROOT))?;
    Ok(set_thread_res_uid(Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Uid::ROOT))?)
}

struct Init<'a> {
    socket: BorrowedFd<'a>,
    children: OwnedFd,
    /// The environment of every command.
    environment: Vec<String>,
    /// The id of the request that each child process carries out.
    running: HashMap<Pid, u64>,
}

impl Init<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let mut polled =
                [PollFd::from_borrowed_fd(self.socket, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let has_request = !polled[0].revents().is_empty();
            for (pid, status) in reap(&self.children) {
                // Other children are orphaned processes from inside the sandbox.
                if let (Some(id), Some(ended)) = (self.running.remove(&pid), how(status)) {
                    self.report(&FromInit::Exited { id, status: ended })?;
                }
            }
            if has_request {
                let Some(received) = wire::receive(self.socket)? else { return Ok(()) };
                self.begin(&received)?;
            }
        }
    }

    fn begin(&mut self, received: &Received<ToInit>) -> io::Result<()> {
        let id = match received.message {
            ToInit::Exec { id } | ToInit::Files { id } => id,
        };
        let forked = sys::fork(|| match received.message {
            ToInit::Exec { id } => {
                let why = command(&received.rest, &received.descriptors, &self.environment);
                // The host treats this message as the end of the request. It ignores the exit of this child process.
                let _gone = wire::send(self.socket, &FromInit::Refused { id, why }, &[], &[]);
                1
            }
            ToInit::Files { .. } => worker::run(&received.rest, &received.descriptors),
        });
        match forked {
            Ok(pid) => {
                self.running.insert(pid, id);
                Ok(())
            }
            Err(error) => {
                let why = Refusal::Room(format!("the sandbox cannot start another process: {error}"));
                self.report(&FromInit::Refused { id, why })
            }
        }
    }

    fn report(&self, message: &FromInit) -> io::Result<()> {
        Ok(wire::send(self.socket, message, &[], &[])?)
    }
}

fn how(status: WaitStatus) -> Option<ExitStatus> {
    status.exit_status().map(ExitStatus::Exited).or_else(|| status.terminating_signal().map(ExitStatus::Signalled))
}

/// Replaces this process with the command. Returns only on failure.
fn command(rest: &[u8], descriptors: &[OwnedFd], environment: &[String]) -> Refusal {
    match try_command(rest, descriptors, environment) {
        Err(why) => why,
        Ok(never) => match never {},
    }
}

fn try_command(rest: &[u8], descriptors: &[OwnedFd], common: &[String]) -> Result<std::convert::Infallible, Refusal> {
    let broken = |error: io::Error| Refusal::Shell(error.to_string());
    let invalid_request = |error: io::Error| Refusal::Request(error.to_string());
    let invalid = || invalid_request(io::ErrorKind::InvalidInput.into());
    let mut texts = rest.split_inclusive(|byte| *byte == 0).map(|part| text(part).map_err(invalid_request));
    let (Some(command), Some(folder)) = (texts.next().transpose()?, texts.next().transpose()?) else {
        return Err(invalid());
    };
    let [output, error, groups @ ..] = descriptors else { return Err(invalid()) };
    for group in groups {
        rustix::io::write(group, b"0")
            .map_err(|error| Refusal::Room(during("joining the control group")(error.into()).to_string()))?;
    }
    rustix::process::setsid().map_err(|error| broken(error.into()))?;
    rustix::process::chdir(WORKSPACE).map_err(|error| broken(during("entering the workspace")(error.into())))?;
    rustix::process::chdir(&*folder).map_err(|error| invalid_request(during("entering the folder")(error.into())))?;
    let mut environment = Vec::new();
    for variable in common {
        environment.push(CString::new(variable.as_str()).map_err(|error| broken(error.into()))?);
    }
    for variable in texts {
        environment.push(variable?);
    }
    place_streams(output, error).map_err(broken)?;
    sys::reset_signals();
    let arguments = [c"bash".to_owned(), c"-c".to_owned(), command];
    let failed = sys::exec(c"/bin/bash", &arguments, &environment);
    // A command and its variables may exceed the kernel's limit although they are within the provider's limits.
    if failed.raw_os_error() == Some(libc::E2BIG) {
        return Err(invalid_request(failed));
    }
    Err(broken(during("starting the shell")(failed)))
}

/// Connects the standard input to an empty device and the other two standard streams to the host's pipes. Marks all
/// other descriptors so that they are closed when the command starts.
fn place_streams(output: &OwnedFd, error: &OwnedFd) -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(error)?;
    sys::close_at_exec_from(3)
}

/// Converts a text that ends with a zero byte.
fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::from_vec_with_nul(bytes.to_vec()).map_err(io::Error::other)
}
