//! The host's end of an init's socket: requests go out, ends come back.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::sys;
use crate::wire::{self, Ended, FromInit, Received, Refusal, ToInit};

/// How a request ended. The sender is dropped where nobody will ever know.
#[derive(Debug)]
pub enum Answer {
    Ended(Ended),
    Refused(Refusal),
}

/// A connection to one init.
pub struct Control {
    socket: AsyncFd<OwnedFd>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    next: AtomicU64,
    /// Becomes true when the init is gone.
    gone: watch::Sender<bool>,
}

impl Control {
    /// Takes the host's end, and reads from it until it is closed.
    pub fn new(socket: OwnedFd) -> io::Result<Arc<Control>> {
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
            // Whoever waits learns that the init is gone.
            reader.pending().clear();
        });
        Ok(control)
    }

    /// A number that no other request to this init has.
    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the init is gone.
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Sends a request; how it ends comes out of what is returned.
    pub async fn ask(
        &self,
        id: u64,
        message: ToInit,
        rest: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<oneshot::Receiver<Answer>, Errno> {
        let (answer, answered) = oneshot::channel();
        self.pending().insert(id, answer);
        if self.is_gone() {
            self.pending().clear();
            return Ok(answered);
        }
        let sent = send(&self.socket, &message, rest, descriptors).await;
        match sent {
            Ok(()) => Ok(answered),
            // As if it had ended right after it.
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.pending().remove(&id);
                Ok(answered)
            }
            Err(error) => {
                self.pending().remove(&id);
                Err(error)
            }
        }
    }

    async fn read(&self) {
        while let Ok(Some(Received { message, .. })) = receive::<FromInit>(&self.socket).await {
            let (id, answer) = match message {
                FromInit::Ended { id, ended } => (id, Answer::Ended(ended)),
                FromInit::Refused { id, why } => (id, Answer::Refused(why)),
            };
            if let Some(waiting) = self.pending().remove(&id) {
                // Nobody may be waiting any more.
                let _unheard = waiting.send(answer);
            }
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends one message without blocking a thread.
pub async fn send(
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

/// Receives one message without blocking a thread; `None` where the other end is gone.
pub async fn receive<T: serde::de::DeserializeOwned>(socket: &AsyncFd<OwnedFd>) -> Result<Option<Received<T>>, Errno> {
    loop {
        let mut ready = socket.ready(Interest::READABLE).await.map_err(|_| Errno::IO)?;
        match wire::receive(socket.as_fd()) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            received => return received,
        }
    }
}
