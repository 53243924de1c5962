//! The host's side of running a command.

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
use crate::control::Reply;
use crate::running::Running;
use crate::wire::{ExitStatus, Refusal, ToInit};

/// The maximum length of a command: less than the kernel's limit for one argument.
const COMMAND_BYTES_MAX: usize = 120 << 10;
/// The maximum total length of the working folder and all variables.
const ENVIRONMENT_BYTES_MAX: usize = 32 << 10;
/// The maximum time for reading output after the command has ended. Background programs may write forever.
const DRAIN_MAX: Duration = Duration::from_millis(100);
/// The maximum time until the init reports the end of a killed command.
const END_MAX: Duration = Duration::from_secs(10);
/// The maximum number of bytes that are read after the command has ended. It equals the maximum size of a pipe.
const DRAIN_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of bytes of one read.
const PIECE_BYTES: usize = 64 << 10;
/// The exit codes of killed commands: `timeout` returns the first code for a command that timed out, and a shell
/// returns the second code for a command that signal 9 has killed.
const CODE_TIMED_OUT: i32 = 124;
const CODE_KILLED: i32 = 137;
/// The exit code if the result is unknown.
const CODE_UNKNOWN: i32 = -1;

/// Runs a command in a running sandbox.
pub(crate) async fn run(
    running: &Arc<Running>,
    request: ExecRequest,
    feed: Option<Feed>,
) -> Result<ExecOutput, SandboxError> {
    let text = check(&request)?;
    running.sweep();
    let began = Instant::now();
    let id = running.control.next_id();
    let failed = |error: io::Error| SandboxError::unavailable_because("the command could not be started", error);
    let group = running.group.exec(id).map_err(failed)?;
    let join_files = group.join_files().map_err(failed)?;
    let mut command = Command { running: Arc::clone(running), group: Some(group) };
    let killed_before = running.group.out_of_memory().map_err(failed)?;
    let (stdout, write_stdout) = pipe(running).map_err(failed)?;
    let (stderr, write_stderr) = pipe(running).map_err(failed)?;
    let beside: Vec<_> =
        [write_stdout.as_fd(), write_stderr.as_fd()].into_iter().chain(join_files.iter().map(AsFd::as_fd)).collect();
    let sent = running.control.request(id, ToInit::Exec { id }, &text, &beside).await;
    let answer = sent.map_err(|error| failed(error.into()))?;
    drop((write_stdout, write_stderr, join_files));
    let until = began + request.timeout;
    let mut output = OutputFollower {
        stdout: CapturedStream::new(stdout, Stream::Stdout, request.output_bytes_max),
        stderr: CapturedStream::new(stderr, Stream::Stderr, request.output_bytes_max),
        feed,
        until,
    };
    let (ended, is_timed_out) = output.until_end(answer, &mut command).await?;
    output.drain().await;
    command.ended().await;
    let memory_ran_out = running.group.out_of_memory().is_ok_and(|killed| killed > killed_before);
    let (exit_code, termination) = termination_of(ended, is_timed_out, memory_ran_out);
    let OutputFollower { stdout, stderr, .. } = output;
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
        Refusal::Shell(why) => {
            SandboxError::Unsupported(format!("this sandbox has no working shell; its files can still be read: {why}"))
        }
    }
}

fn termination_of(ended: Option<ExitStatus>, is_timed_out: bool, memory_ran_out: bool) -> (i32, Termination) {
    match ended {
        _ if is_timed_out => (CODE_TIMED_OUT, Termination::TimedOut),
        None if memory_ran_out => (CODE_KILLED, Termination::OutOfMemory),
        None => (CODE_UNKNOWN, Termination::Lost),
        Some(ExitStatus::Signalled(9) | ExitStatus::Exited(CODE_KILLED)) if memory_ran_out => {
            (CODE_KILLED, Termination::OutOfMemory)
        }
        Some(ExitStatus::Exited(code)) => (code, Termination::Exited),
        Some(ExitStatus::Signalled(signal)) => (128 + signal, Termination::Signalled),
    }
}

/// Checks a request and encodes it for the init.
fn check(request: &ExecRequest) -> Result<Vec<u8>, SandboxError> {
    let invalid = |what: String| Err(SandboxError::Invalid(what));
    if request.command.len() > COMMAND_BYTES_MAX {
        return invalid(format!("the command exceeds the limit of {COMMAND_BYTES_MAX} bytes"));
    }
    if request.timeout.is_zero() || request.timeout > EXEC_TIMEOUT_MAX {
        return invalid(format!("the timeout of a command must be from 1 to {} seconds", EXEC_TIMEOUT_MAX.as_secs()));
    }
    if request.output_bytes_max > OUTPUT_BYTES_MAX {
        return invalid(format!("at most {OUTPUT_BYTES_MAX} bytes of output can be kept for each stream"));
    }
    let folder = request.cwd.as_deref().unwrap_or(".");
    let variables = request.env.iter().map(|(name, value)| format!("{name}={value}"));
    let variables: Vec<String> = variables.collect();
    if request.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        return invalid("the name of an environment variable must not be empty or contain `=`".to_owned());
    }
    if folder.len() + variables.iter().map(String::len).sum::<usize>() > ENVIRONMENT_BYTES_MAX {
        return invalid(format!(
            "the working folder and the environment variables together exceed the limit of {ENVIRONMENT_BYTES_MAX} bytes"
        ));
    }
    let mut text = Vec::new();
    for part in [&request.command, folder].into_iter().chain(variables.iter().map(String::as_str)) {
        if part.contains('\0') {
            return invalid(
                "the command, its working folder and its environment variables must not contain a zero byte".to_owned(),
            );
        }
        text.extend_from_slice(part.as_bytes());
        text.push(0);
    }
    Ok(text)
}

/// Creates a pipe that belongs to the sandbox's root user, so that a command can open it by name.
fn pipe(running: &Running) -> io::Result<(Receiver, std::os::fd::OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (user, group) = (rustix::fs::Uid::from_raw(running.ids.base), rustix::fs::Gid::from_raw(running.ids.base));
    rustix::fs::fchown(&write, Some(user), Some(group))?;
    Ok((Receiver::from_owned_fd(read)?, write))
}

/// A running command. Dropping it kills the command.
struct Command {
    running: Arc<Running>,
    group: Option<ExecGroup>,
}

impl Command {
    /// Kills all processes that the command has started.
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

    /// Cleans up after a command that has ended. Programs in the background keep running, unless the command reached
    /// its process limit.
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

/// Kills the processes of a group. If this fails, stops the whole sandbox.
fn kill(group: &ExecGroup, running: &Running) {
    if let Err(error) = group.kill() {
        tracing::error!(%error, "a command could not be killed; its sandbox is being stopped");
        running.terminate();
    }
}

fn removed(group: &ExecGroup) -> bool {
    group.remove().unwrap_or_else(|error| {
        tracing::warn!(%error, "the control group of a command could not be removed");
        true
    })
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the work does not panic and is not cancelled")
}

/// The output streams of a command until it ends.
struct OutputFollower {
    stdout: CapturedStream,
    stderr: CapturedStream,
    feed: Option<Feed>,
    until: Instant,
}

impl OutputFollower {
    /// Reads the output of the command until the command ends. The second returned value is true if the command timed
    /// out.
    async fn until_end(
        &mut self,
        mut answer: oneshot::Receiver<Reply>,
        command: &mut Command,
    ) -> Result<(Option<ExitStatus>, bool), SandboxError> {
        let mut is_timed_out = false;
        let mut until = self.until;
        loop {
            let (stdout, stderr, feed) = (&mut self.stdout, &mut self.stderr, &mut self.feed);
            tokio::select! {
                answered = &mut answer => return match answered {
                    Ok(Reply::Exited(ended)) => Ok((Some(ended), is_timed_out)),
                    Ok(Reply::Refused(why)) => Err(refused(why)),
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

    /// Reads the output that was written before the command ended. Then reads further output of background programs
    /// until [`DRAIN_MAX`] has passed.
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
                // Neither stream has more to read.
                () = std::future::ready(()), if !has_stdout && !has_stderr => return,
            }
        }
    }
}

/// One output stream, of which only the newest bytes are kept.
struct CapturedStream {
    from: Receiver,
    stream: Stream,
    piece: Vec<u8>,
    kept: VecDeque<u8>,
    bytes: u64,
    bytes_max: usize,
    is_at_end: bool,
}

impl CapturedStream {
    fn new(from: Receiver, stream: Stream, bytes_max: usize) -> CapturedStream {
        let piece = Vec::with_capacity(PIECE_BYTES);
        CapturedStream { from, stream, piece, kept: VecDeque::new(), bytes: 0, bytes_max, is_at_end: false }
    }

    /// Reads a piece. Cancelling the read loses no data.
    async fn read(&mut self) {
        self.piece.clear();
        // A read error has the same meaning as the end of the stream: no further bytes can be read.
        if !matches!(self.from.read_buf(&mut self.piece).await, Ok(1..)) {
            self.is_at_end = true;
        }
    }

    /// Stores the piece that was read last and sends it to the feed. Waits for the feed until `until` at the latest.
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
            // A feed that is closed, or that has blocked until the command's deadline, receives no more pieces.
            if !matches!(timeout_at(until, to.send(chunk)).await, Ok(Ok(()))) {
                *feed = None;
            }
        }
    }

    /// Returns the captured output. If a background program still has the pipe open, its further output is read and
    /// discarded.
    fn end(self, running: &Running) -> Output {
        let CapturedStream { from, kept, bytes, is_at_end, .. } = self;
        let is_truncated = bytes > kept.len() as u64;
        let mut kept = Vec::from(kept);
        if is_truncated {
            // Skips the remaining bytes of a character that was cut off.
            let start = kept.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
            kept.drain(..start);
        }
        if !is_at_end {
            running.drain(from);
        }
        Output { text: String::from_utf8_lossy(&kept).into_owned(), bytes, is_truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_the_shell() {
        use Termination::{Exited, Lost, OutOfMemory, Signalled, TimedOut};
        for (ended, is_timed_out, memory_ran_out, expected) in [
            (Some(ExitStatus::Exited(7)), false, false, (7, Exited)),
            (Some(ExitStatus::Exited(0)), false, true, (0, Exited)),
            (Some(ExitStatus::Exited(137)), false, false, (137, Exited)),
            (Some(ExitStatus::Exited(137)), false, true, (137, OutOfMemory)),
            (Some(ExitStatus::Signalled(9)), false, true, (137, OutOfMemory)),
            (Some(ExitStatus::Signalled(9)), false, false, (137, Signalled)),
            (Some(ExitStatus::Signalled(15)), false, true, (143, Signalled)),
            (Some(ExitStatus::Signalled(9)), true, true, (124, TimedOut)),
            (None, true, false, (124, TimedOut)),
            (None, false, false, (-1, Lost)),
            (None, false, true, (137, OutOfMemory)),
        ] {
            assert_eq!(termination_of(ended, is_timed_out, memory_ran_out), expected, "{ended:?}");
        }
    }

    /// The group is a folder in which one file always lists a process, like the group of a process that the kernel
    /// cannot kill. The test acts as the keeper.
    #[tokio::test(flavor = "multi_thread")]
    async fn sandbox_stops_if_a_command_cannot_be_killed() {
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
        let keeper_receives = || receive::<FromKeeper>(&keeper);
        in_background({
            let running = Arc::clone(&running);
            move || kill(&ends, &running)
        })
        .await;
        assert!(keeper_receives().now_or_never().is_none(), "a command that could be killed stopped its sandbox");
        let ending = Arc::clone(&running);
        in_background(move || kill(&stays, &ending)).await;
        let end =
            tokio::time::timeout(Duration::from_secs(60), keeper_receives()).await.expect("the keeper receives it");
        assert!(matches!(end, Ok(None)), "the keeper was not told to stop the sandbox");
        held.wait().expect("it was killed");
    }

    #[test]
    fn invalid_request_is_refused_before_it_is_sent() {
        let plain = || ExecRequest::new("true");
        assert_eq!(check(&plain()).unwrap(), b"true\0.\0");
        let refused = |request: ExecRequest| check(&request).unwrap_err().to_string();
        assert!(refused(ExecRequest::new("a\0b")).contains("zero byte"));
        assert!(refused(ExecRequest::new("x".repeat(COMMAND_BYTES_MAX + 1))).contains("bytes"));
        assert!(refused(plain().with_timeout(Duration::ZERO)).contains("seconds"));
        assert!(refused(plain().with_timeout(Duration::from_secs(301))).contains("300 seconds"));
        assert!(refused(ExecRequest { env: vec![("A=B".into(), "c".into())], ..plain() }).contains("contain `=`"));
        assert!(refused(ExecRequest { cwd: Some("a\0".into()), ..plain() }).contains("zero byte"));
        assert!(refused(ExecRequest { output_bytes_max: OUTPUT_BYTES_MAX + 1, ..plain() }).contains("kept"));
    }
}
