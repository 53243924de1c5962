//! The state of one connection: the calls that the agent runs, the frames that wait to be sent, and the limits. This module
//! does no input or output. `serving.rs` passes frames between the state and the socket.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use monstrum_types::{ResourceId, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::protocol::{self, Close, Ended, Hello, OutgoingCall};

/// The interval of pings.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(20);
/// The time without a frame after which a connection has ended. The agent can miss one ping.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The number of unsent frames at which a connection is crowded: an agent can run at most this number of calls.
const UNSENT_FRAMES_MAX: usize = 64;
/// The size of unsent frames at which a connection is crowded.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// The time for which a connection may be crowded.
const CROWDED_MAX: Duration = Duration::from_secs(10);
/// The maximum number of frames in a second. Results of calls do not count, because the host limits the calls.
const FRAMES_PER_SECOND_MAX: u32 = 100;
/// The minimum time between two messages of progress of one call. More frequent messages are dropped.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The number of cancelled calls whose results are expected and dropped.
const CANCELLED_KEPT: usize = 1024;

/// Identifies the definition of a tool.
pub(super) type ToolDigest = [u8; 32];

/// A frame or an event for the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    Text(String),
    Ping,
    /// Closes the socket. This is the last item.
    Close(Close),
}

/// The answer to a call.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The agent has sent a result.
    Ended(Ended),
    /// The connection ended before the call was sent.
    NotSent,
    /// The connection ended after the call was sent, so the call may have had effects.
    Lost,
}

/// The reason why a connection does not take a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The agent does not offer the tool with this definition.
    OtherTools,
    /// The agent runs as many calls as it can, or reads too slowly.
    Full,
    /// The connection ends.
    Closing,
}

/// One connection of an agent.
pub(super) struct Connection {
    pub(super) id: String,
    pub(super) workspace: WorkspaceId,
    pub(super) resource: ResourceId,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) instance: String,
    concurrency: usize,
    state: Mutex<State>,
    /// Wakes the task that writes to the socket.
    has_output: Notify,
    /// Wakes the task that reads from the socket, when another task ends the connection.
    has_ended: Notify,
}

struct State {
    /// The tools that the agent offers, by the name that the agent uses.
    tools: HashMap<String, ToolDigest>,
    /// The running calls, by their ids.
    calls: HashMap<String, Running>,
    /// The ids of calls that were cancelled and whose results have not arrived.
    cancelled: VecDeque<String>,
    outbox: VecDeque<Frame>,
    outbox_bytes: usize,
    /// The size of the frame that is being written.
    writing_bytes: Option<usize>,
    crowded_since: Option<Instant>,
    heard_at: Instant,
    /// The current second and the number of frames in it.
    window: (Instant, u32),
    /// Whether the host has said goodbye. The connection then takes no new call.
    is_leaving: bool,
    /// Whether another connection has replaced this one, which ends after its calls.
    is_retired: bool,
    end: Option<Close>,
    is_end_sent: bool,
}

struct Running {
    answer: oneshot::Sender<Answer>,
    /// Receives the messages about the progress of the call, if a client listens.
    listener: Option<mpsc::Sender<String>>,
    progress_at: Option<Instant>,
}

struct Frame {
    out: Outgoing,
    /// The call that the frame starts.
    call: Option<String>,
}

impl Frame {
    fn bytes(&self) -> usize {
        match &self.out {
            Outgoing::Text(text) => text.len(),
            Outgoing::Ping | Outgoing::Close(_) => 0,
        }
    }
}

impl Connection {
    /// Creates the state of a connection whose hello has arrived.
    pub(super) fn new(
        id: String,
        (workspace, resource): (WorkspaceId, ResourceId),
        hello: &Hello,
        now: Instant,
    ) -> Connection {
        let state = State {
            tools: HashMap::new(),
            calls: HashMap::new(),
            cancelled: VecDeque::new(),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            writing_bytes: None,
            crowded_since: None,
            heard_at: now,
            window: (now, 0),
            is_leaving: false,
            is_retired: false,
            end: None,
            is_end_sent: false,
        };
        Connection {
            id,
            workspace,
            resource,
            name: hello.name.clone(),
            version: hello.version.clone(),
            instance: hello.instance.clone(),
            concurrency: usize::try_from(hello.concurrency).unwrap_or(usize::MAX),
            state: Mutex::new(state),
            has_output: Notify::new(),
            has_ended: Notify::new(),
        }
    }

    /// Replaces the tools that the agent offers. Running calls continue.
    pub(super) fn set_tools(&self, tools: HashMap<String, ToolDigest>) {
        self.state.lock().tools = tools;
    }

    /// Returns whether the agent offers exactly these tools.
    pub(super) fn offers(&self, tools: &HashMap<String, ToolDigest>) -> bool {
        self.state.lock().tools == *tools
    }

    /// Returns the number of running calls.
    pub(super) fn running(&self) -> usize {
        self.state.lock().calls.len()
    }

    /// Returns whether the connection takes a call of the tool with this definition.
    pub(super) fn takes(&self, tool: &str, digest: &ToolDigest) -> Result<(), NotTaken> {
        self.state.lock().takes(self.concurrency, tool, digest)
    }

    /// Starts a call. Takes `frame`, the frame of the call, which is written anew if it was taken before. The receiver gets
    /// exactly one answer, unless the call is cancelled.
    pub(super) fn start(
        &self,
        call: &OutgoingCall,
        digest: &ToolDigest,
        frame: &mut Option<String>,
        now: Instant,
    ) -> Result<oneshot::Receiver<Answer>, NotTaken> {
        let mut state = self.state.lock();
        state.takes(self.concurrency, &call.tool, digest)?;
        let (sender, answer) = oneshot::channel();
        let running = Running { answer: sender, listener: call.listener.clone(), progress_at: None };
        state.calls.insert(call.id.clone(), running);
        let text = frame.take().unwrap_or_else(|| call.frame());
        state.push(Frame { out: Outgoing::Text(text), call: Some(call.id.clone()) }, now);
        drop(state);
        self.has_output.notify_one();
        Ok(answer)
    }

    /// Cancels a call. If the call was not sent yet, the agent learns nothing about it.
    pub(super) fn cancel(&self, id: &str, reason: &str, now: Instant) {
        let mut state = self.state.lock();
        if state.calls.remove(id).is_none() {
            return;
        }
        if !state.forget_unsent(id, now) {
            if state.cancelled.len() >= CANCELLED_KEPT {
                state.cancelled.pop_front();
            }
            state.cancelled.push_back(id.to_owned());
            state.push(Frame { out: Outgoing::Text(protocol::cancel(id, reason)), call: None }, now);
        }
        drop(state);
        self.has_output.notify_one();
        self.end_if_finished();
    }

    /// Queues a frame.
    pub(super) fn send(&self, text: String, now: Instant) {
        self.state.lock().push(Frame { out: Outgoing::Text(text), call: None }, now);
        self.has_output.notify_one();
    }

    /// Queues a ping.
    pub(super) fn ping(&self, now: Instant) {
        self.state.lock().push(Frame { out: Outgoing::Ping, call: None }, now);
        self.has_output.notify_one();
    }

    /// Announces the end of the connection, which takes no new call.
    pub(super) fn leave(&self, retry_after_ms: u64, now: Instant) {
        let mut state = self.state.lock();
        if !state.is_leaving && state.end.is_none() {
            state.is_leaving = true;
            state.push(Frame { out: Outgoing::Text(protocol::bye(retry_after_ms)), call: None }, now);
        }
        drop(state);
        self.has_output.notify_one();
    }

    /// Records that a frame of any kind has arrived.
    pub(super) fn heard(&self, now: Instant) {
        self.state.lock().heard_at = now;
    }

    /// Counts a frame against the limit of frames in a second.
    pub(super) fn count(&self, now: Instant) -> Result<(), Close> {
        let mut state = self.state.lock();
        let (began, frames) = state.window;
        state.window = if now.duration_since(began) < Duration::from_secs(1) { (began, frames + 1) } else { (now, 1) };
        match state.window.1 {
            0..=FRAMES_PER_SECOND_MAX => Ok(()),
            _ => Err(Close::Violation("the agent sends more than 100 frames in a second")),
        }
    }

    /// Ends a call with the agent's result. Returns whether the host expected the result.
    pub(super) fn finish(&self, id: &str, ended: Ended) -> bool {
        let mut state = self.state.lock();
        if state.is_unsent(id) {
            return false;
        }
        if let Some(running) = state.calls.remove(id) {
            drop(state);
            // If the caller has just gone away, no task needs the answer.
            drop(running.answer.send(Answer::Ended(ended)));
            self.end_if_finished();
            return true;
        }
        match state.cancelled.iter().position(|cancelled| cancelled == id) {
            Some(index) => {
                state.cancelled.remove(index);
                true
            }
            None => false,
        }
    }

    /// Passes a message about the progress of a call to the client that listens, if any. Returns whether the message
    /// counts: the call runs, and its last message is at least a second old.
    pub(super) fn progress(&self, id: &str, message: String, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.is_unsent(id) {
            return false;
        }
        let Some(running) = state.calls.get_mut(id) else { return false };
        if running.progress_at.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
            return false;
        }
        running.progress_at = Some(now);
        if let Some(listener) = &running.listener {
            // A client that reads too slowly misses messages.
            drop(listener.try_send(message));
        }
        true
    }

    /// Returns the reason to close the connection because of a time limit.
    pub(super) fn overdue(&self, now: Instant) -> Option<Close> {
        let state = self.state.lock();
        if now.duration_since(state.heard_at) >= SILENCE_MAX {
            return Some(Close::Lost);
        }
        let since = state.crowded_since?;
        (now.duration_since(since) >= CROWDED_MAX).then_some(Close::TryLater("the agent reads too slowly"))
    }

    /// Ends the connection: its calls get their answers, and the socket is closed. Only the first end counts.
    pub(super) fn end(&self, close: Close) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(close);
        let calls: Vec<(Answer, oneshot::Sender<Answer>)> = state
            .calls
            .drain()
            .map(|(id, running)| (id, running.answer))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(id, answer)| if state.is_unsent(&id) { (Answer::NotSent, answer) } else { (Answer::Lost, answer) })
            .collect();
        // The agent must not start calls whose callers have been told that they were not sent.
        state.outbox.retain(|frame| frame.call.is_none());
        state.outbox_bytes = state.outbox.iter().map(Frame::bytes).sum();
        drop(state);
        for (answer, sender) in calls {
            drop(sender.send(answer));
        }
        self.has_output.notify_one();
        self.has_ended.notify_one();
    }

    /// Returns the reason for the end of the connection, if it has ended.
    pub(super) fn close(&self) -> Option<Close> {
        self.state.lock().end
    }

    /// Returns whether the connection takes no new calls.
    pub(super) fn is_leaving(&self) -> bool {
        self.state.lock().is_leaving
    }

    /// Lets the connection finish its calls and then end, because another connection has replaced it.
    pub(super) fn retire(&self) {
        let mut state = self.state.lock();
        state.is_leaving = true;
        state.is_retired = true;
        drop(state);
        self.end_if_finished();
    }

    /// Ends a retired connection that runs no call.
    fn end_if_finished(&self) {
        let is_finished = {
            let state = self.state.lock();
            state.is_retired && state.calls.is_empty()
        };
        if is_finished {
            self.end(Close::Conflict("another agent with other tools has replaced this one"));
        }
    }

    /// Waits until the connection ends. At most one task may wait.
    pub(super) async fn ended(&self) -> Close {
        loop {
            if let Some(close) = self.close() {
                return close;
            }
            self.has_ended.notified().await;
        }
    }

    /// Returns the next frame for the socket; after the end, the remaining frames and then [`Outgoing::Close`]. Returns
    /// `None` after that. At most one task may call this function. The call means that the previous frame was written.
    pub(super) async fn next(&self) -> Option<Outgoing> {
        loop {
            {
                let mut state = self.state.lock();
                state.writing_bytes = None;
                state.update_crowded(Instant::now());
                if let Some(frame) = state.outbox.pop_front() {
                    state.outbox_bytes -= frame.bytes();
                    state.writing_bytes = Some(frame.bytes());
                    return Some(frame.out);
                }
                if let Some(close) = state.end {
                    let is_first = !std::mem::replace(&mut state.is_end_sent, true);
                    return is_first.then_some(Outgoing::Close(close));
                }
            }
            self.has_output.notified().await;
        }
    }
}

impl State {
    fn takes(&self, concurrency: usize, tool: &str, digest: &ToolDigest) -> Result<(), NotTaken> {
        if self.end.is_some() || self.is_leaving {
            return Err(NotTaken::Closing);
        }
        if self.tools.get(tool) != Some(digest) {
            return Err(NotTaken::OtherTools);
        }
        // A crowded connection takes no call, which bounds the memory of its unsent frames.
        if self.calls.len() >= concurrency || self.is_crowded() {
            return Err(NotTaken::Full);
        }
        Ok(())
    }

    fn push(&mut self, frame: Frame, now: Instant) {
        if self.end.is_some() && frame.call.is_some() {
            return;
        }
        self.outbox_bytes += frame.bytes();
        self.outbox.push_back(frame);
        self.update_crowded(now);
    }

    fn is_unsent(&self, id: &str) -> bool {
        self.outbox.iter().any(|frame| frame.call.as_deref() == Some(id))
    }

    /// Removes the frame that starts the call. Returns whether the frame was unsent.
    fn forget_unsent(&mut self, id: &str, now: Instant) -> bool {
        let Some(index) = self.outbox.iter().position(|frame| frame.call.as_deref() == Some(id)) else { return false };
        if let Some(frame) = self.outbox.remove(index) {
            self.outbox_bytes -= frame.bytes();
        }
        self.update_crowded(now);
        true
    }

    fn is_crowded(&self) -> bool {
        let frames = self.outbox.len() + usize::from(self.writing_bytes.is_some());
        frames >= UNSENT_FRAMES_MAX || self.outbox_bytes + self.writing_bytes.unwrap_or_default() >= UNSENT_BYTES_MAX
    }

    fn update_crowded(&mut self, now: Instant) {
        self.crowded_since = if self.is_crowded() { Some(self.crowded_since.unwrap_or(now)) } else { None };
    }
}

#[cfg(test)]
mod tests;
