//! The messages between the host, the launcher, keepers and inits. Each message is one packet: JSON on the first line,
//! raw bytes after it, and descriptors as ancillary data.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use monstrum_sandbox::Limits;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cgroups::Cgroups;

/// The maximum size of a message: large enough for a command with its environment (see `exec::COMMAND_BYTES_MAX`), and
/// small enough for the kernel's default buffer.
pub(crate) const MESSAGE_BYTES_MAX: usize = 176 << 10;
/// The maximum number of descriptors: two pipes and the control groups of a command.
const DESCRIPTORS_MAX: usize = 8;

/// The message to the launcher. It carries one end of the keeper's socket and one end of the init's socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The disk image.
    pub image: PathBuf,
    /// The lower layer of the file system.
    pub template: PathBuf,
    /// The folder mounted at /usr, if the template does not contain /usr.
    pub usr: Option<Usr>,
    /// The content of /etc/resolv.conf, if the sandbox has a network.
    pub resolv_conf: Option<String>,
    /// An empty folder. Each sandbox makes its mounts in this folder, in its own mount namespace.
    pub stage: PathBuf,
    /// The first of the sandbox's 65,536 ids.
    pub id_base: u32,
    pub cgroups: Cgroups,
    /// The name of the sandbox and its control groups.
    pub name: String,
    pub limits: Limits,
}

/// The host's /usr.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Usr {
    pub folder: PathBuf,
    /// The list of files to hide.
    pub hidden: PathBuf,
}

/// The messages from a keeper to the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// The init is ready. `pid` is its pid on the host. The message carries a descriptor of its network namespace.
    Ready { pid: i32 },
    /// The reason why the sandbox did not start or did not end cleanly.
    Failed(String),
    /// All processes of the sandbox have ended and its image is detached.
    Stopped,
}

/// The messages from the host to an init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// Runs a command. The raw bytes are the command, the folder and the variables, each terminated by a zero byte. The
    /// descriptors are stdout, stderr and the control groups to join.
    Exec { id: u64 },
    /// Runs a file function. The raw bytes are the operation. The descriptors are the pipe for the answer and the
    /// content to write, if any.
    Files { id: u64 },
}

/// The messages from an init to the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromInit {
    Exited {
        id: u64,
        status: ExitStatus,
    },
    /// The request did not start.
    Refused {
        id: u64,
        why: Refusal,
    },
}

/// The reason why a request did not start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The request itself is wrong, for example because its folder does not exist.
    Request(String),
    /// The sandbox cannot start another process.
    Room(String),
    /// The sandbox has no working shell.
    Shell(String),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExitStatus {
    Exited(i32),
    Signalled(i32),
}

/// A received message.
pub(crate) struct Received<T> {
    pub message: T,
    pub rest: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Creates a pair of sockets that keep message boundaries and report when the other end closes. The first socket is
/// non-blocking.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends one message.
pub(crate) fn send(
    to: impl AsFd,
    message: &impl Serialize,
    rest: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut packet = serde_json::to_vec(message).expect("messages can be written as JSON");
    packet.push(b'\n');
    packet.extend_from_slice(rest);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let parts = [io::IoSlice::new(&packet)];
    loop {
        match sendmsg(&to, &parts, &mut beside, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// Receives one message. Returns `None` if the other end is closed.
pub(crate) fn receive<T: DeserializeOwned>(from: impl AsFd) -> Result<Option<Received<T>>, Errno> {
    let mut packet = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [io::IoSliceMut::new(&mut packet)];
        match recvmsg(&from, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let descriptors = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    packet.truncate(received.bytes);
    let end = packet.iter().position(|byte| *byte == b'\n').ok_or(Errno::PROTO)?;
    let message = serde_json::from_slice(&packet[..end]).map_err(|_| Errno::PROTO)?;
    let rest = packet.split_off(end + 1);
    Ok(Some(Received { message, rest, descriptors }))
}
