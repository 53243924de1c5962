//! Safe functions around the system calls that neither the standard library nor rustix offers as safe functions. All
//! but [`watched`] are for processes with one thread: the launcher and its children.
#![expect(unsafe_code, reason = "fork, exec and three ioctls have no safe form")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Pid;
use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};
use tokio::io::unix::AsyncFd;

/// Runs `body` in a child process, which exits with the returned code. The calling process must have only one thread.
/// Its children can then do everything that the parent can.
pub(crate) fn fork(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: this process has one thread, so no lock or other state is left inconsistent in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not unwind into the child's copy of the parent's loop.
            let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
            exit(code)
        }
        pid => Ok(Pid::from_raw(pid).expect("fork gives a parent a pid")),
    }
}

/// Exits at once. Neither runs exit handlers nor flushes buffers, because the parent has the same handlers and buffers.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Executes another program. Returns only on failure.
pub(crate) fn exec(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end with a null pointer, and the texts outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Makes this process create files as the user and group `id`, and keeps all capabilities. The id zero restores root.
pub(crate) fn make_files_as(id: u32) -> io::Result<()> {
    let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP;
    rustix::thread::set_capabilities_secure_bits(keep)?;
    // SAFETY: the calls take numbers. They return the previous id, so a second call with an invalid id returns the
    // current id.
    let is_so = unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
        libc::setfsgid(u32::MAX).cast_unsigned() == id && libc::setfsuid(u32::MAX).cast_unsigned() == id
    };
    if !is_so {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if id == 0 {
        rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::empty())?;
    }
    Ok(())
}

/// Permanently switches to the user and group `id` of the host, and keeps all capabilities.
pub(crate) fn become_user(id: u32) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Some(group), Some(group), Some(group))?;
    Ok(rustix::thread::set_thread_res_uid(Some(user), Some(user), Some(user))?)
}

/// Moves this process into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: no caller passes FILES, and there is one thread.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Registers a socket with the runtime of the host.
pub(crate) fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the returned value owns the descriptor, which stays the same while it is owned.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}

/// Blocks SIGCHLD and returns a descriptor that becomes readable when a child ends.
pub(crate) fn signals_of_children() -> io::Result<OwnedFd> {
    let mut set = empty_set();
    // SAFETY: `set` is a valid signal set, and nothing else owns the descriptor that signalfd returns.
    unsafe {
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Resets signals to the defaults that programs expect: none blocked, none ignored.
pub(crate) fn reset_signals() {
    let set = empty_set();
    // SAFETY: `set` is a valid signal set, and SIG_DFL a valid disposition of every signal.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        // The Rust runtime ignores SIGPIPE, which programs would inherit.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

/// Marks all descriptors from `first` on as close-on-exec.
pub(crate) fn close_at_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: the call only sets a flag of the descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes all descriptors except the standard descriptors and `kept`. The owners of closed descriptors must not be used
/// any more.
pub(crate) fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for next in kept.into_iter().chain([u32::MAX]) {
        if first < next {
            let last = if next == u32::MAX { next } else { next - 1 };
            // SAFETY: the caller gives up these descriptors.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = next.saturating_add(1);
    }
    Ok(())
}

/// The structure `mount_attr` from linux/mount.h.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a mount read-only. The attributes for [`mount_setattr`] are from linux/mount.h.
pub(crate) const MOUNT_RDONLY: u64 = 0x1;
/// Ignores set-user-id bits.
pub(crate) const MOUNT_NOSUID: u64 = 0x2;
/// Prevents opening device files.
pub(crate) const MOUNT_NODEV: u64 = 0x4;
/// Prevents executing programs.
pub(crate) const MOUNT_NOEXEC: u64 = 0x8;
const MOUNT_IDMAP: u64 = 0x0010_0000;

/// Sets attributes of a detached mount, and the id mapping of a user namespace if one is given.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    attributes: u64,
    mapped_by: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: attributes | if mapped_by.is_some() { MOUNT_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: mapped_by.map_or(0, |fd| fd.as_raw_fd().unsigned_abs().into()),
    };
    // SAFETY: the path is empty, and the size is the size of the structure.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

// The request codes of loop devices from linux/loop.h.
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// Returns the number of a free loop device.
pub(crate) fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Attaches a file to a loop device until the device is closed.
pub(crate) fn attach_loop_device(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zero is a valid value of every field.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().unsigned_abs();
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the call reads a structure of this type.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the inode of the file behind a loop device, or `None` if the device is free.
pub(crate) fn file_behind_loop_device(device: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: zero is a valid value of every field, and the call fills a structure of this type.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    match (result, io::Error::last_os_error()) {
        (0, _) => Ok(Some(info.inode)),
        (_, error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        (_, error) => Err(error),
    }
}

/// Brings up the loopback interface of this network namespace.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).expect("the flag is small");
    // SAFETY: the call reads a structure of this type.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_size_that_the_kernel_knows() {
        // The sizes of the structures in linux/loop.h.
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
