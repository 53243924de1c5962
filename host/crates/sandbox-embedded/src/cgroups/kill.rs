//! Functions that kill all processes of a control group and remove the group.
//!
//! The functions read the members of a group only from the group itself. `/proc` is not reliable: it reports another
//! group for a process whose first thread has ended while other threads run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The maximum time until killed processes are gone. A process that is writing to a slow disk may need one or two
/// seconds to end.
const GONE_MAX: Duration = Duration::from_secs(5);
/// The polling interval increases from this minimum to the maximum, because the kernel lists every remaining process at
/// each poll.
const GONE_POLL_MIN: Duration = Duration::from_millis(1);
const GONE_POLL_MAX: Duration = Duration::from_millis(100);
/// The number of processes that are killed at once. Each killed process needs a file descriptor of the server.
const KILLED_AT_ONCE: usize = 128;

/// Kills all processes of one group and waits until they are gone.
pub(super) fn kill_all(group: &Path) -> io::Result<()> {
    let until = Instant::now() + GONE_MAX;
    let at_once = group.join("cgroup.kill");
    // With this limit, no process can fork any more, so the loop that kills the processes one by one ends.
    let has_limit = group.join("pids.max").exists();
    if has_limit {
        if_there(fs::write(group.join("pids.max"), "0"))?;
    }
    let mut poll = GONE_POLL_MIN;
    loop {
        let Some(members) = members(group)? else { return Ok(()) };
        if members.is_empty() {
            return Ok(());
        }
        if at_once.exists() {
            fs::write(&at_once, "1")?;
        } else {
            members.chunks(KILLED_AT_ONCE).try_for_each(|members| kill_members(group, members))?;
        }
        if Instant::now() >= until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for killed processes to end"));
        }
        std::thread::sleep(poll);
        poll = (poll * 2).min(GONE_POLL_MAX);
    }
}

/// Returns the processes of the group, or `None` if the group no longer exists.
fn members(group: &Path) -> io::Result<Option<Vec<Pid>>> {
    match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) => Ok(Some(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Kills the processes of `pids` that are members of the group. The function reads the group again after it has opened
/// all descriptors: a pid that is still listed belongs to the process to which its descriptor refers. If that process
/// has ended and the pid is reused, the signal has no effect.
pub(super) fn kill_members(group: &Path, pids: &[Pid]) -> io::Result<()> {
    let mut opened: Vec<(Pid, OwnedFd)> = Vec::with_capacity(pids.len());
    for pid in pids {
        match pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(handle) => opened.push((*pid, handle)),
            // The process has ended.
            Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let Some(members) = members(group)? else { return Ok(()) };
    let members: HashSet<Pid> = members.into_iter().collect();
    for (pid, handle) in opened {
        if members.contains(&pid) {
            match pidfd_send_signal(handle, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Removes a group with all its children and kills the processes in them.
pub(crate) fn remove_tree(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    kill_all(group)?;
    let until = Instant::now() + GONE_MAX;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(GONE_POLL_MIN);
            }
            Err(error) if is_gone(&error) => return Ok(()),
            removed => return removed,
        }
    }
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_gone(&error) => Ok(()),
        done => done,
    }
}

/// Whether the error means that the group no longer exists. The kernel returns either of these errors for a group that
/// is removed while it is read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
