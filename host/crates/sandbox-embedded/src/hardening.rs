//! Restrictions on the system calls, capabilities and resources of processes in a sandbox.
//!
//! The init applies these restrictions to itself once, and all processes in the sandbox inherit them. They cannot be
//! removed.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition, SeccompFilter, SeccompRule,
};

mod refusals;
mod syscalls;

/// Returns the capabilities that the sandbox's root user keeps. They apply only to the files and processes of the
/// sandbox: the user namespace belongs to the sandbox, but all its other namespaces belong to the host's user
/// namespace.
fn kept() -> CapabilitySet {
    CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SETPCAP
        | CapabilitySet::SETFCAP
}

/// Permanently drops all capabilities except the capabilities that [`kept`] returns.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !kept().contains(capability) => {
                rustix::thread::remove_capability_from_bounding_set(capability)?;
            }
            Ok(_) => {}
            // The kernel has no capability with this number, so all capabilities have been dropped.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept(), permitted: kept(), inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// The limit of open files of one process: high enough for servers and compilers, and low enough that the minimum
/// buffers of all sockets stay below the sandbox's memory.
const OPEN_FILES_MAX: u64 = 4096;

/// Lowers the resource limits of each process.
pub(crate) fn limit_resources() -> io::Result<()> {
    // A limit of one byte prevents core dumps even where the host pipes them to a program, which ignores a limit of
    // zero.
    for (resource, most) in [
        (Resource::Core, 1),
        (Resource::Sigpending, 4096),
        (Resource::Msgqueue, 819_200),
        (Resource::Nofile, OPEN_FILES_MAX),
        (Resource::Memlock, 8 << 20),
    ] {
        let now = rustix::process::getrlimit(resource);
        let most = now.maximum.map_or(most, |maximum| maximum.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Installs the system call filters: an allowlist, then the filters that return specific errors.
pub(crate) fn filter_system_calls() -> io::Result<()> {
    // If two filters return an error, the kernel reports the error of the filter that was installed last.
    for program in [filter(), refusals::sockets(), refusals::socket_types(), refusals::requests(), refusals::filters()]
    {
        let program = program.map_err(io::Error::other)?;
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filter() -> Result<seccompiler::BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in syscalls::always() {
        rules.insert(number, Vec::new());
    }
    let mut allow = |number: i64, conditions: Vec<SeccompCondition>| {
        rules.entry(number).or_default().push(SeccompRule::new(conditions)?);
        Ok::<(), seccompiler::BackendError>(())
    };
    let argument = |index, compare, value| SeccompCondition::new(index, Length::Dword, compare, value);
    // Rejects clone calls that create namespaces. Filters cannot see the flags of clone3, so clone3 returns ENOSYS, and
    // libraries fall back to clone.
    let namespaces = Compare::MaskedEq(NEW_NAMESPACES);
    allow(libc::SYS_clone, vec![SeccompCondition::new(0, Length::Qword, namespaces, 0)?])?;
    // Rejects raw sockets, sockets of the kernel's crypto API, and vsock sockets, which network namespaces do not
    // isolate.
    allow(libc::SYS_socket, vec![argument(0, Compare::Eq, unsigned(libc::AF_UNIX))?])?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in PROTOCOLS {
            let of_family = argument(0, Compare::Eq, unsigned(family))?;
            allow(libc::SYS_socket, vec![of_family, argument(2, Compare::Eq, unsigned(protocol))?])?;
        }
    }
    // Allows routing sockets, through which name resolution lists interfaces and addresses.
    let netlink = argument(0, Compare::Eq, unsigned(libc::AF_NETLINK))?;
    allow(libc::SYS_socket, vec![netlink, argument(2, Compare::Eq, unsigned(libc::NETLINK_ROUTE))?])?;
    allow(libc::SYS_socketpair, vec![argument(0, Compare::Eq, unsigned(libc::AF_UNIX))?])?;
    // Rejects requests that inject input into a terminal.
    let not = |request| argument(1, Compare::Ne, request);
    allow(libc::SYS_ioctl, vec![not(libc::TIOCSTI)?, not(libc::TIOCLINUX)?])?;
    for persona in PERSONALITIES {
        allow(libc::SYS_personality, vec![argument(0, Compare::Eq, persona)?])?;
    }
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, ARCHITECTURE)?;
    filter.try_into()
}

/// `CLONE_NEWTIME` is a flag of clone3 only.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The allowed socket protocols: the default protocol, and the protocols that programs request explicitly. The kernel
/// would load modules for other protocols.
const PROTOCOLS: [i32; 5] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];

/// The allowed personalities: Linux and 32-bit Linux, each also with the UNAME26 flag, and the query of the current
/// personality.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: seccompiler::TargetArch = seccompiler::TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: seccompiler::TargetArch = seccompiler::TargetArch::aarch64;

fn unsigned(value: i32) -> u64 {
    value.unsigned_abs().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_system_calls_are_not_always_allowed() {
        let always: Vec<i64> = syscalls::always().collect();
        for (name, number) in [
            ("mount", libc::SYS_mount),
            ("umount2", libc::SYS_umount2),
            ("pivot_root", libc::SYS_pivot_root),
            ("chroot", libc::SYS_chroot),
            ("open_tree", libc::SYS_open_tree),
            ("move_mount", libc::SYS_move_mount),
            ("fsopen", libc::SYS_fsopen),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("setns", libc::SYS_setns),
            ("unshare", libc::SYS_unshare),
            ("clone", libc::SYS_clone),
            ("clone3", libc::SYS_clone3),
            ("bpf", libc::SYS_bpf),
            ("perf_event_open", libc::SYS_perf_event_open),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("keyctl", libc::SYS_keyctl),
            ("add_key", libc::SYS_add_key),
            ("init_module", libc::SYS_init_module),
            ("finit_module", libc::SYS_finit_module),
            ("kexec_load", libc::SYS_kexec_load),
            ("open_by_handle_at", libc::SYS_open_by_handle_at),
            ("reboot", libc::SYS_reboot),
            ("swapon", libc::SYS_swapon),
            ("syslog", libc::SYS_syslog),
            ("socket", libc::SYS_socket),
            ("personality", libc::SYS_personality),
            ("ioctl", libc::SYS_ioctl),
        ] {
            assert!(!always.contains(&number), "{name}");
        }
        assert!(always.contains(&libc::SYS_openat2) && always.contains(&libc::SYS_execve));
        filter().unwrap();
        for program in [refusals::sockets(), refusals::socket_types(), refusals::requests(), refusals::filters()] {
            program.unwrap();
        }
    }
}
