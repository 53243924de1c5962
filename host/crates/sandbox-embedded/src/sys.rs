//! What neither the standard library nor rustix has: the system calls that take `unsafe`, each behind a function that
//! is not. All but [`watched`] is for processes with one
//! thread: the launcher and what it forks.
#![expect(unsafe_code, reason = "fork, exec and three ioctls have no safe form")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Pid;
use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};
use tokio::io::unix::AsyncFd;

/// Runs `body` in a child of its own, which ends with what it returns. Only for a process with one thread, in which a
/// child may do whatever its parent could.
pub fn fork(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: this process has one thread, so the child has everything that it had, in a state that it knows.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not come out in the parent's loop, of which this is a copy.
            let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
            exit(code)
        }
        pid => Ok(Pid::from_raw(pid).expect("fork gives a parent a pid")),
    }
}

/// Ends this process at once: nothing that its parent has registered runs, and no buffer is written twice.
pub fn exit(code: i32) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(code) }
}

/// Becomes another program. Only returns where that failed.
pub fn exec(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end with a null pointer, and what they point to outlives the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// From here on files are made as by a user and group `id`, with all capabilities that there are. Zero is the way back.
pub fn make_files_as(id: u32) -> io::Result<()> {
    let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP;
    rustix::thread::set_capabilities_secure_bits(keep)?;
    // SAFETY: they take numbers. They return what was before, and what is now only to one who asks again.
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

/// Becomes a user and group `id` of the host for good, and keeps the capabilities that it has.
pub fn become_user(id: u32) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Some(group), Some(group), Some(group))?;
    Ok(rustix::thread::set_thread_res_uid(Some(user), Some(user), Some(user))?)
}

/// Leaves namespaces for new ones.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: no caller asks for FILES, and there is one thread.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// A socket of ours for the host's runtime.
pub fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is the same for as long as it is owned, and it is owned by what is returned.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}

/// From here on the end of a child is something to read from the descriptor.
pub fn signals_of_children() -> io::Result<OwnedFd> {
    let mut set = empty_set();
    // SAFETY: `set` is a signal set, and the descriptor that signalfd returns belongs to nobody else.
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

/// Signals as a program expects them at its start: none blocked, none ignored.
pub fn reset_signals() {
    let set = empty_set();
    // SAFETY: `set` is a signal set, and SIG_DFL a disposition for every signal.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        // The Rust runtime ignores it, which a program would inherit.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: sigemptyset makes a signal set of whatever is there.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

/// Closes every descriptor from `first` on, at the next exec.
pub fn close_at_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: nothing is closed yet; the descriptors only get a flag.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the standard ones and `kept`. What owns one of the others must not be touched any more.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for next in kept.into_iter().chain([u32::MAX]) {
        if first < next {
            let last = if next == u32::MAX { next } else { next - 1 };
            // SAFETY: the caller gives them up.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = next.saturating_add(1);
    }
    Ok(())
}

/// From linux/mount.h.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Read-only, for [`mount_setattr`]; from linux/mount.h like the others.
pub const MOUNT_RDONLY: u64 = 0x1;
/// Programs do not get other ids by their mode.
pub const MOUNT_NOSUID: u64 = 0x2;
/// Device files are files.
pub const MOUNT_NODEV: u64 = 0x4;
/// Programs do not run.
pub const MOUNT_NOEXEC: u64 = 0x8;
const MOUNT_IDMAP: u64 = 0x0010_0000;

/// Sets attributes of a mount that is not attached yet, with the id mapping of a user namespace where one is given.
pub fn mount_setattr(mount: BorrowedFd<'_>, attributes: u64, mapped_by: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: attributes | if mapped_by.is_some() { MOUNT_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: mapped_by.map_or(0, |fd| fd.as_raw_fd().unsigned_abs().into()),
    };
    // SAFETY: the path is empty and the structure is one of the size that is told.
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

// From linux/loop.h.
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

/// The number of a loop device that nobody uses at this moment.
pub fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: it takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Puts a file behind a loop device, until nobody has the device open any more.
pub fn attach_loop_device(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zero is a value of every field.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().unsigned_abs();
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the structure is the one that the call takes.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The inode behind a loop device; `None` where there is none.
pub fn file_behind_loop_device(device: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: zero is a value of every field, and the structure is the one that the call fills.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    match (result, io::Error::last_os_error()) {
        (0, _) => Ok(Some(info.inode)),
        (_, error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        (_, error) => Err(error),
    }
}

/// Has the loopback interface of this network namespace up.
pub fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: zero is a value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).expect("the flag is small");
    // SAFETY: the structure is the one that the call takes.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_size_that_the_kernel_knows() {
        // sizeof of linux/loop.h.
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
