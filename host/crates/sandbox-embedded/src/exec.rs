//! Running a command, from the host's side.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use monstrum_sandbox::{
    Chunk, EXEC_TIMEOUT_MAX, ExecOutput, ExecRequest, Feed, OUTPUT_BYTES_MAX, Output, SandboxError, Stream, Termination,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cgroups::ExecGroup;
use crate::control::Answer;
use crate::running::Running;
use crate::wire::{Ended, Refusal, ToInit};

/// A command and its environment, less than one argument of a program may have.
const COMMAND_BYTES_MAX: usize = 120 << 10;
/// Of all added variables together.
const ENVIRONMENT_BYTES_MAX: usize = 32 << 10;
/// How long output is awaited after the end of a command; what it has left running may write for ever.
const DRAIN_MAX: Duration = Duration::from_millis(100);
/// How long the end of a command that was ended may take to be known.
const END_MAX: Duration = Duration::from_secs(10);
/// What may have been written before the end of a command and not been read: as much as a pipe holds at most.
const DRAIN_BYTES_MAX: u64 = 1 << 20;
/// Read at once.
const PIECE_BYTES: usize = 64 << 10;
/// The exit codes of `timeout` and of a shell whose command was ended by signal 9.
const CODE_TIMED_OUT: i32 = 124;
const CODE_KILLED: i32 = 137;
/// Where there is no code.
const CODE_UNKNOWN: i32 = -1;

/// Runs a command in a sandbox that runs.
pub async fn run(running: &Arc<Running>, request: ExecRequest, feed: Option<Feed>) -> Result<ExecOutput, SandboxError> {
    let text = check(&request)?;
    running.sweep();
    let began = Instant::now();
    let id = running.control.next_id();
    let failed = |error: io::Error| SandboxError::unavailable_because("the command could not be started", error);
    let group = running.group.exec(id).map_err(failed)?;
    let doors = group.doors().map_err(failed)?;
    let mut command = Command { running: Arc::clone(running), group: Some(group) };
    let killed_before = running.group.out_of_memory().map_err(failed)?;
    let (stdout, write_stdout) = pipe(running).map_err(failed)?;
    let (stderr, write_stderr) = pipe(running).map_err(failed)?;
    let beside: Vec<_> =
        [write_stdout.as_fd(), write_stderr.as_fd()].into_iter().chain(doors.iter().map(AsFd::as_fd)).collect();
    let asked = running.control.ask(id, ToInit::Exec { id }, &text, &beside).await;
    let answer = asked.map_err(|error| failed(error.into()))?;
    drop((write_stdout, write_stderr, doors));
    let until = began + request.timeout;
    let mut following = Following {
        stdout: Captured::new(stdout, Stream::Stdout, request.output_bytes_max),
        stderr: Captured::new(stderr, Stream::Stderr, request.output_bytes_max),
        feed,
        until,
    };
    let (ended, is_timed_out) = following.until_end(answer, &mut command).await?;
    following.drain().await;
    command.ended().await;
    let memory_ran_out = running.group.out_of_memory().is_ok_and(|killed| killed > killed_before);
    let (exit_code, termination) = judge(ended, is_timed_out, memory_ran_out);
    let Following { stdout, stderr, .. } = following;
    Ok(ExecOutput {
        stdout: stdout.end(running),
        stderr: stderr.end(running),
        exit_code,
        termination,
        duration: began.elapsed(),
    })
}

fn refused(why: Refusal) -> SandboxError {
    match why {
        Refusal::Request(why) => SandboxError::Invalid(format!("the command could not be started: {why}")),
        Refusal::Room(why) => SandboxError::Exhausted(format!("the command could not be started: {why}")),
        Refusal::Shell(why) => SandboxError::Unsupported(format!(
            "no command runs in this sandbox any more, and its files can still be read: {why}"
        )),
    }
}

fn judge(ended: Option<Ended>, is_timed_out: bool, memory_ran_out: bool) -> (i32, Termination) {
    match ended {
        _ if is_timed_out => (CODE_TIMED_OUT, Termination::TimedOut),
        None if memory_ran_out => (CODE_KILLED, Termination::OutOfMemory),
        None => (CODE_UNKNOWN, Termination::Lost),
        Some(Ended::Signalled(9) | Ended::Exited(CODE_KILLED)) if memory_ran_out => {
            (CODE_KILLED, Termination::OutOfMemory)
        }
        Some(Ended::Exited(code)) => (code, Termination::Exited),
        Some(Ended::Signalled(signal)) => (128 + signal, Termination::Signalled),
    }
}

/// Checks a request and writes it as the init reads it.
fn check(request: &ExecRequest) -> Result<Vec<u8>, SandboxError> {
    let invalid = |what: String| Err(SandboxError::Invalid(what));
    if request.command.len() > COMMAND_BYTES_MAX {
        return invalid(format!("a command has at most {COMMAND_BYTES_MAX} bytes"));
    }
    if request.timeout.is_zero() || request.timeout > EXEC_TIMEOUT_MAX {
        return invalid(format!("a command is given 1 to {} seconds", EXEC_TIMEOUT_MAX.as_secs()));
    }
    if request.output_bytes_max > OUTPUT_BYTES_MAX {
        return invalid(format!("at most {OUTPUT_BYTES_MAX} bytes of a stream are kept"));
    }
    let folder = request.cwd.as_deref().unwrap_or(".");
    let variables = request.env.iter().map(|(name, value)| format!("{name}={value}"));
    let variables: Vec<String> = variables.collect();
    if request.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        return invalid("a variable has a name without `=`".to_owned());
    }
    if folder.len() + variables.iter().map(String::len).sum::<usize>() > ENVIRONMENT_BYTES_MAX {
        return invalid(format!("folder and variables have at most {ENVIRONMENT_BYTES_MAX} bytes"));
    }
    let mut text = Vec::new();
    for part in [&request.command, folder].into_iter().chain(variables.iter().map(String::as_str)) {
        if part.contains('\0') {
            return invalid("a command, its folder and its variables have no zero byte".to_owned());
        }
        text.extend_from_slice(part.as_bytes());
        text.push(0);
    }
    Ok(text)
}

/// It belongs to root inside, who may open it by its name.
fn pipe(running: &Running) -> io::Result<(Receiver, std::os::fd::OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (user, group) = (rustix::fs::Uid::from_raw(running.ids.base), rustix::fs::Gid::from_raw(running.ids.base));
    rustix::fs::fchown(&write, Some(user), Some(group))?;
    Ok((Receiver::from_owned_fd(read)?, write))
}

/// A command under way. Where nobody waits for its end any more, it is ended.
struct Command {
    running: Arc<Running>,
    group: Option<ExecGroup>,
}

impl Command {
    /// Ends everything that it has started.
    async fn kill(&mut self) {
        let Some(group) = self.group.take() else { return };
        let running = Arc::clone(&self.running);
        self.group = Some(
            in_background(move || {
                kill(&group, &running);
                group
            })
            .await,
        );
    }

    /// The command has ended by itself. What it left behind goes on, unless it wanted more than it may have.
    async fn ended(mut self) {
        let Some(group) = self.group.take() else { return };
        if group.hit_its_limit().unwrap_or(true) {
            let running = Arc::clone(&self.running);
            in_background(move || {
                kill(&group, &running);
                removed(&group);
            })
            .await;
        } else if !removed(&group) {
            self.running.linger(group);
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else { return };
        let running = Arc::clone(&self.running);
        let end = move || {
            kill(&group, &running);
            removed(&group);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(end)),
            Err(_) => end(),
        }
    }
}

/// Ends everything in a group. Where that does not succeed the sandbox is stopped, which ends every process in it.
fn kill(group: &ExecGroup, running: &Running) {
    if let Err(error) = group.kill() {
        tracing::error!(%error, "a command of a sandbox could not be ended; the sandbox is stopped");
        running.give_up();
    }
}

fn removed(group: &ExecGroup) -> bool {
    group.remove().unwrap_or_else(|error| {
        tracing::warn!(%error, "the control group of a command could not be removed");
        true
    })
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the work does not panic, and nobody cancels it")
}

/// The output of a command, followed until it ends.
struct Following {
    stdout: Captured,
    stderr: Captured,
    feed: Option<Feed>,
    until: Instant,
}

impl Following {
    /// Until the command has ended. The second value says whether its time was up.
    async fn until_end(
        &mut self,
        mut answer: oneshot::Receiver<Answer>,
        command: &mut Command,
    ) -> Result<(Option<Ended>, bool), SandboxError> {
        let mut is_timed_out = false;
        let mut until = self.until;
        loop {
            let (stdout, stderr, feed) = (&mut self.stdout, &mut self.stderr, &mut self.feed);
            tokio::select! {
                answered = &mut answer => return match answered {
                    Ok(Answer::Ended(ended)) => Ok((Some(ended), is_timed_out)),
                    Ok(Answer::Refused(why)) => Err(refused(why)),
                    Err(_) => Ok((None, is_timed_out)),
                },
                () = sleep_until(until) => {
                    if is_timed_out {
                        return Ok((None, true));
                    }
                    is_timed_out = true;
                    command.kill().await;
                    until = Instant::now() + END_MAX;
                }
                () = stdout.read(), if !stdout.is_at_end => stdout.pass_on(feed, until).await,
                () = stderr.read(), if !stderr.is_at_end => stderr.pass_on(feed, until).await,
            }
        }
    }

    /// What was written before the end is read; what is written after it, only for a moment.
    async fn drain(&mut self) {
        let until = Instant::now() + DRAIN_MAX;
        let (stdout_max, stderr_max) = (self.stdout.bytes + DRAIN_BYTES_MAX, self.stderr.bytes + DRAIN_BYTES_MAX);
        loop {
            let (stdout, stderr, feed) = (&mut self.stdout, &mut self.stderr, &mut self.feed);
            let has_stdout = !stdout.is_at_end && stdout.bytes < stdout_max;
            let has_stderr = !stderr.is_at_end && stderr.bytes < stderr_max;
            tokio::select! {
                () = sleep_until(until) => return,
                () = stdout.read(), if has_stdout => stdout.pass_on(feed, until).await,
                () = stderr.read(), if has_stderr => stderr.pass_on(feed, until).await,
                // Neither has anything more.
                () = std::future::ready(()), if !has_stdout && !has_stderr => return,
            }
        }
    }
}

/// One stream, of which the newest bytes are kept.
struct Captured {
    from: Receiver,
    stream: Stream,
    piece: Vec<u8>,
    kept: VecDeque<u8>,
    bytes: u64,
    bytes_max: usize,
    is_at_end: bool,
}

impl Captured {
    fn new(from: Receiver, stream: Stream, bytes_max: usize) -> Captured {
        let piece = Vec::with_capacity(PIECE_BYTES);
        Captured { from, stream, piece, kept: VecDeque::new(), bytes: 0, bytes_max, is_at_end: false }
    }

    /// Reads a piece. Dropping this loses nothing.
    async fn read(&mut self) {
        self.piece.clear();
        // An end that is not one cannot be told from one: there is nothing more to read either way.
        if !matches!(self.from.read_buf(&mut self.piece).await, Ok(1..)) {
            self.is_at_end = true;
        }
    }

    /// Keeps the piece, and gives it to whoever follows, for whom it waits until `until`.
    async fn pass_on(&mut self, feed: &mut Option<Feed>, until: Instant) {
        let piece = &self.piece;
        if piece.is_empty() {
            return;
        }
        self.bytes += piece.len() as u64;
        self.kept.extend(&piece[piece.len().saturating_sub(self.bytes_max)..]);
        self.kept.drain(..self.kept.len().saturating_sub(self.bytes_max));
        if let Some(to) = feed {
            let chunk = Chunk { stream: self.stream, bytes: Bytes::copy_from_slice(piece) };
            // Whoever is gone, or has had the whole time of the command, gets no more.
            if !matches!(timeout_at(until, to.send(chunk)).await, Ok(Ok(()))) {
                *feed = None;
            }
        }
    }

    /// What was written. A command that goes on in the background finds somebody who reads.
    fn end(self, running: &Running) -> Output {
        let Captured { from, kept, bytes, is_at_end, .. } = self;
        let is_truncated = bytes > kept.len() as u64;
        let mut kept = Vec::from(kept);
        if is_truncated {
            // A character of which the beginning is missing.
            let start = kept.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
            kept.drain(..start);
        }
        if !is_at_end {
            running.read_away(from);
        }
        Output { text: String::from_utf8_lossy(&kept).into_owned(), bytes, is_truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_a_shell_tells_them() {
        use Termination::{Exited, Lost, OutOfMemory, Signalled, TimedOut};
        for (ended, is_timed_out, memory_ran_out, judged) in [
            (Some(Ended::Exited(7)), false, false, (7, Exited)),
            (Some(Ended::Exited(0)), false, true, (0, Exited)),
            (Some(Ended::Exited(137)), false, false, (137, Exited)),
            (Some(Ended::Exited(137)), false, true, (137, OutOfMemory)),
            (Some(Ended::Signalled(9)), false, true, (137, OutOfMemory)),
            (Some(Ended::Signalled(9)), false, false, (137, Signalled)),
            (Some(Ended::Signalled(15)), false, true, (143, Signalled)),
            (Some(Ended::Signalled(9)), true, true, (124, TimedOut)),
            (None, true, false, (124, TimedOut)),
            (None, false, false, (-1, Lost)),
            (None, false, true, (137, OutOfMemory)),
        ] {
            assert_eq!(judge(ended, is_timed_out, memory_ran_out), judged, "{ended:?}");
        }
    }

    /// The group is a folder of files, of which one goes on naming a process: so does the group of one that the kernel does
    /// not end. The test is the keeper.
    #[tokio::test(flavor = "multi_thread")]
    async fn where_a_command_does_not_end_its_sandbox_is_stopped() {
        use futures::FutureExt as _;

        use crate::cgroups::Cgroups;
        use crate::control::{receive, send};
        use crate::ids::Ids;
        use crate::running::Sockets;
        use crate::sys;
        use crate::wire::FromKeeper;

        let root = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(root.path().join("cgroup.controllers"), "memory pids").expect("it is written");
        let cgroups = Cgroups::find(root.path(), "t").expect("it looks like version 2");
        let sandbox = cgroups.create("ms-1-1", &monstrum_sandbox::Limits::default()).expect("its groups are made");
        let (ends, stays) = (sandbox.exec(1).expect("it is made"), sandbox.exec(2).expect("it is made"));
        let mut held = std::process::Command::new("sleep").arg("600").spawn().expect("it starts");
        let groups = root.path().join("monstrum-t/ms-1-1/box");
        std::fs::write(groups.join("e1/cgroup.procs"), "").expect("it is written");
        std::fs::write(groups.join("e2/cgroup.procs"), held.id().to_string()).expect("it is written");

        let sockets = Sockets::new().expect("they are made");
        let keeper = sockets.launched[0].try_clone().and_then(sys::watched).expect("it can be watched");
        send(&keeper, &FromKeeper::Ready { pid: 1 }, &[], &[]).await.expect("it is sent");
        let ids = Ids::of("t").take().expect("a range is free");
        let running = Running::begin(sockets, sandbox, ids).await.expect("it runs");
        let told = || receive::<FromKeeper>(&keeper);
        in_background({
            let running = Arc::clone(&running);
            move || kill(&ends, &running)
        })
        .await;
        assert!(told().now_or_never().is_none(), "a command that ends leaves its sandbox alone");
        let ending = Arc::clone(&running);
        in_background(move || kill(&stays, &ending)).await;
        let end = tokio::time::timeout(Duration::from_secs(60), told()).await.expect("the keeper is told");
        assert!(matches!(end, Ok(None)), "the keeper is to end the sandbox");
        held.wait().expect("it was killed");
    }

    #[test]
    fn a_request_that_cannot_be_carried_out_is_refused_before_it_is_sent() {
        let plain = || ExecRequest::new("true");
        assert_eq!(check(&plain()).unwrap(), b"true\0.\0");
        let refused = |request: ExecRequest| check(&request).unwrap_err().to_string();
        assert!(refused(ExecRequest::new("a\0b")).contains("zero byte"));
        assert!(refused(ExecRequest::new("x".repeat(COMMAND_BYTES_MAX + 1))).contains("bytes"));
        assert!(refused(plain().within(Duration::ZERO)).contains("seconds"));
        assert!(refused(plain().within(Duration::from_secs(301))).contains("300 seconds"));
        assert!(refused(ExecRequest { env: vec![("A=B".into(), "c".into())], ..plain() }).contains("without `=`"));
        assert!(refused(ExecRequest { cwd: Some("a\0".into()), ..plain() }).contains("zero byte"));
        assert!(refused(ExecRequest { output_bytes_max: OUTPUT_BYTES_MAX + 1, ..plain() }).contains("kept"));
    }
}
