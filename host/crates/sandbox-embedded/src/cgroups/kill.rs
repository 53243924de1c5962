//! Ending everything in a control group, and removing it.
//!
//! Whether a process is a member is asked of the group alone. `/proc` shows one whose first thread has ended in another
//! group, as long as its other threads run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long the processes of a group may take to be gone when they are killed: a process that writes to a slow disk
/// takes a second or two.
const GONE_MAX: Duration = Duration::from_secs(5);
/// How soon their end is looked for, and how often at the least: each look costs time for every process.
const GONE_POLL_MIN: Duration = Duration::from_millis(1);
const GONE_POLL_MAX: Duration = Duration::from_millis(100);
/// Processes that are ended at once: each takes a file descriptor of the server for that moment.
const KILLED_AT_ONCE: usize = 128;

/// Ends all processes of one group, and waits until they are gone.
pub(super) fn kill_all(group: &Path) -> io::Result<()> {
    let until = Instant::now() + GONE_MAX;
    let at_once = group.join("cgroup.kill");
    // From here on no process in it starts another one, so that killing them one by one comes to an end.
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
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not end"));
        }
        std::thread::sleep(poll);
        poll = (poll * 2).min(GONE_POLL_MAX);
    }
}

/// `None` where the group is gone.
fn members(group: &Path) -> io::Result<Option<Vec<Pid>>> {
    match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) => Ok(Some(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends those processes that are members. The group is read again after each has a descriptor: one that is listed then is
/// the process of its descriptor, unless that has ended and its pid is used again, and then the signal reaches nothing.
pub(super) fn kill_members(group: &Path, pids: &[Pid]) -> io::Result<()> {
    let mut opened: Vec<(Pid, OwnedFd)> = Vec::with_capacity(pids.len());
    for pid in pids {
        match pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(handle) => opened.push((*pid, handle)),
            // It has ended.
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

/// Removes a group with all groups below it, and ends what lives in them.
pub fn remove_tree(group: &Path) -> io::Result<()> {
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

/// A group that is removed while it is read says so in either way.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
