//! What a process of a sandbox may ask of the kernel.
//!
//! Everything here is set once, in the init, and inherited by whatever runs in the sandbox. None of it can be taken back.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition, SeccompFilter, SeccompRule,
};

mod refusals;
mod syscalls;

/// What the root of a sandbox may do with its own files and processes. Over nothing else has it any power: its other
/// namespaces belong to the host.
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

/// Gives up every other right, for ever.
pub fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !kept().contains(capability) => {
                rustix::thread::remove_capability_from_bounding_set(capability)?;
            }
            Ok(_) => {}
            // The kernel's last one was the one before.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept(), permitted: kept(), inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Open files of one process: enough for servers and compilers, and few enough that what the kernel gives to each socket at
/// the least stays below the memory of the sandbox.
const OPEN_FILES_MAX: u64 = 4096;

/// Limits of each process, lower than what the host's own has.
pub fn limit_resources() -> io::Result<()> {
    // A core dump of one byte is none, also where the host hands dumps to a program of its own: that does not look at zero.
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

/// From here on only known system calls, and none by which one leaves.
pub fn filter_system_calls() -> io::Result<()> {
    // Of two errors the kernel tells that of the filter which came last.
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
    // No namespace by clone; clone3, whose flags no filter can see, is unknown, and libraries fall back to clone.
    let namespaces = Compare::MaskedEq(NEW_NAMESPACES);
    allow(libc::SYS_clone, vec![SeccompCondition::new(0, Length::Qword, namespaces, 0)?])?;
    // No raw packets, no vsock, which no network namespace holds, no crypto sockets.
    allow(libc::SYS_socket, vec![argument(0, Compare::Eq, unsigned(libc::AF_UNIX))?])?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in PROTOCOLS {
            let of_family = argument(0, Compare::Eq, unsigned(family))?;
            allow(libc::SYS_socket, vec![of_family, argument(2, Compare::Eq, unsigned(protocol))?])?;
        }
    }
    // Interfaces and addresses, which name resolution asks for.
    let netlink = argument(0, Compare::Eq, unsigned(libc::AF_NETLINK))?;
    allow(libc::SYS_socket, vec![netlink, argument(2, Compare::Eq, unsigned(libc::NETLINK_ROUTE))?])?;
    allow(libc::SYS_socketpair, vec![argument(0, Compare::Eq, unsigned(libc::AF_UNIX))?])?;
    // No input put into a terminal.
    let not = |request| argument(1, Compare::Ne, request);
    allow(libc::SYS_ioctl, vec![not(libc::TIOCSTI)?, not(libc::TIOCLINUX)?])?;
    for persona in PERSONALITIES {
        allow(libc::SYS_personality, vec![argument(0, Compare::Eq, persona)?])?;
    }
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, ARCHITECTURE)?;
    filter.try_into()
}

/// CLONE_NEWTIME is a flag of clone3 only.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The usual one, and those that programs name: others have modules of the kernel loaded.
const PROTOCOLS: [i32; 5] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];

/// Linux as it is, as 32 bits, with other names of the release; and the question which it is.
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
    fn calls_by_which_one_leaves_or_reaches_the_kernel_are_not_among_those_that_are_always_allowed() {
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
