//! What the host, the launcher, keepers and inits say to one another: one message a packet, JSON on its first line, raw
//! bytes after it, and descriptors beside it.

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

/// A command with its environment fits (see `exec::COMMAND_BYTES_MAX`), and it fits into the kernel's default buffer.
pub const MESSAGE_BYTES_MAX: usize = 176 << 10;
/// Output, error, and the control groups of a command.
const DESCRIPTORS_MAX: usize = 8;

/// To the launcher, with the keeper's socket and the init's.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    /// The file that holds everything that stays.
    pub image: PathBuf,
    /// The lower layer of the file system.
    pub template: PathBuf,
    /// What is seen at /usr, where the template does not have it.
    pub usr: Option<Usr>,
    /// What /etc/resolv.conf says, where it has a network.
    pub resolv_conf: Option<String>,
    /// An empty folder, over which the mounts are made where nobody else sees them.
    pub stage: PathBuf,
    /// The first of 65,536 ids.
    pub id_base: u32,
    pub cgroups: Cgroups,
    /// Of its control groups, too.
    pub name: String,
    pub limits: Limits,
}

/// A /usr of the host.
#[derive(Debug, Serialize, Deserialize)]
pub struct Usr {
    pub folder: PathBuf,
    /// The list of what is not seen of it.
    pub hidden: PathBuf,
}

/// From a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromKeeper {
    /// The init answers. Its pid as the host sees it, and beside it its network namespace.
    Ready { pid: i32 },
    /// There is no sandbox, and this is why.
    Failed(String),
    /// Nothing of the sandbox runs any more, and its image is whole.
    Stopped,
}

/// To an init.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInit {
    /// Runs a command: after the first line come command, folder and environment, each ended by a zero byte. Beside it
    /// output, error, and the control groups that it goes into.
    Exec { id: u64 },
    /// Does something with files: the operation is after the first line. Beside it where the answer goes, and where the
    /// content comes from.
    Files { id: u64 },
}

/// From an init.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInit {
    Ended {
        id: u64,
        ended: Ended,
    },
    /// It could not even begin.
    Refused {
        id: u64,
        why: Refusal,
    },
}

/// Why something did not begin.
#[derive(Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// What was asked for cannot be, such as a folder that is not there.
    Request(String),
    /// The sandbox has no room for another process.
    Room(String),
    /// The sandbox has no shell that works any more.
    Shell(String),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Exited(i32),
    Signalled(i32),
}

/// What came.
pub struct Received<T> {
    pub message: T,
    pub rest: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Two ends that keep messages apart and tell when the other is gone. The first does not block.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends one message.
pub fn send(to: impl AsFd, message: &impl Serialize, rest: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut packet = serde_json::to_vec(message).expect("messages have nothing that JSON has not");
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

/// Receives one message; `None` where the other end is gone.
pub fn receive<T: DeserializeOwned>(from: impl AsFd) -> Result<Option<Received<T>>, Errno> {
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
