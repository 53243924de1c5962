//! The host's end of the socket of an init: sends requests and receives their results.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::sys;
use crate::wire::{self, ExitStatus, FromInit, Received, Refusal, ToInit};

/// The result of a request. The sender is dropped if the result will never be known.
#[derive(Debug)]
pub(crate) enum Reply {
    Exited(ExitStatus),
    Refused(Refusal),
}

/// A connection to one init.
pub(crate) struct Control {
    socket: AsyncFd<OwnedFd>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    next: AtomicU64,
    /// Whether the init has ended.
    gone: watch::Sender<bool>,
}

impl Control {
    /// Starts a task that reads from `socket`, the host's end, until it is closed.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Arc<Control>> {
        let control = Arc::new(Control {
            socket: sys::watched(socket)?,
            pending: Mutex::default(),
            next: AtomicU64::new(1),
            gone: watch::Sender::new(false),
        });
        let reader = Arc::clone(&control);
        tokio::spawn(async move {
            reader.read().await;
            reader.gone.send_replace(true);
            // Dropping the senders ends all pending requests.
            reader.pending.lock().clear();
        });
        Ok(control)
    }

    /// Returns a request number that no other request to this init has.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the init has ended.
    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Sends a request and returns a receiver for its result.
    pub(crate) async fn request(
        &self,
        id: u64,
        message: ToInit,
        rest: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<oneshot::Receiver<Reply>, Errno> {
        let (answer, answered) = oneshot::channel();
        self.pending.lock().insert(id, answer);
        if self.is_gone() {
            self.pending.lock().clear();
            return Ok(answered);
        }
        let sent = send(&self.socket, &message, rest, descriptors).await;
        match sent {
            Ok(()) => Ok(answered),
            // The init has ended: the request counts as sent and lost.
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.pending.lock().remove(&id);
                Ok(answered)
            }
            Err(error) => {
                self.pending.lock().remove(&id);
                Err(error)
            }
        }
    }

    async fn read(&self) {
        while let Ok(Some(Received { message, .. })) = receive::<FromInit>(&self.socket).await {
            let (id, answer) = match message {
                FromInit::Exited { id, status } => (id, Reply::Exited(status)),
                FromInit::Refused { id, why } => (id, Reply::Refused(why)),
            };
            if let Some(waiting) = self.pending.lock().remove(&id) {
                // The caller may have been cancelled, in which case nothing receives the result.
                let _unheard = waiting.send(answer);
            }
        }
    }
}

/// Sends one message. Does not block the thread.
pub(crate) async fn send(
    socket: &AsyncFd<OwnedFd>,
    message: &impl serde::Serialize,
    rest: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    loop {
        let mut ready = socket.ready(Interest::WRITABLE).await.map_err(|_| Errno::IO)?;
        match wire::send(socket.as_fd(), message, rest, descriptors) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            sent => return sent,
        }
    }
}

/// Receives one message. Does not block the thread. Returns `None` if the other end is closed.
pub(crate) async fn receive<T: serde::de::DeserializeOwned>(
    socket: &AsyncFd<OwnedFd>,
) -> Result<Option<Received<T>>, Errno> {
    loop {
        let mut ready = socket.ready(Interest::READABLE).await.map_err(|_| Errno::IO)?;
        match wire::receive(socket.as_fd()) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            received => return received,
        }
    }
}
