//! Filters that reject some uses of allowed system calls, each with the error that programs expect.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::{ARCHITECTURE, PROTOCOLS, unsigned};

/// Requests of `ioctl` for which the kernel loads modules before it checks permissions: line disciplines of terminals,
/// bridges and VLANs. From asm-generic/ioctls.h and linux/sockios.h.
const REQUESTS: [u64; 9] = [0x5423, 0x8940, 0x8941, 0x8982, 0x8983, 0x89a0, 0x89a1, 0x89a2, 0x89a3];
/// Socket options that attach a filter. The compiled filter counts towards a limit of the whole host and not towards
/// the sandbox's memory. From asm-generic/socket.h.
const FILTER_OPTIONS: [u64; 4] = [26, 50, 51, 52];
/// TCP options for which the kernel loads a module by name: MD5 signatures (14 and 32), protocols above TCP (31) and
/// keys of TCP-AO (38). From linux/tcp.h.
const TCP_OPTIONS: [u64; 4] = [14, 31, 32, 38];
/// The bits of a socket type that are not flags.
const TYPE_MASK: u64 = 0xf;
/// The operation of `seccomp` that installs a filter.
const SET_MODE_FILTER: u64 = 1;

/// Rejects sockets whose family or protocol is not allowed, with the error that a kernel without the family or protocol
/// returns. Programs that can work without such a socket then continue. An example is a tool that creates an account
/// and records the account in the system's audit log.
pub(super) fn sockets() -> Result<BpfProgram, BackendError> {
    let is = |family| SeccompCondition::new(0, Length::Dword, Compare::Eq, unsigned(family));
    let is_not = |index, values: &[i32]| {
        let conditions =
            values.iter().map(|value| SeccompCondition::new(index, Length::Dword, Compare::Ne, unsigned(*value)));
        conditions.collect::<Result<Vec<_>, _>>()
    };
    let of_family = |family, protocols: &[i32]| {
        let mut conditions = vec![is(family)?];
        conditions.extend(is_not(2, protocols)?);
        SeccompRule::new(conditions)
    };
    let rules = vec![
        SeccompRule::new(is_not(0, &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK])?)?,
        of_family(libc::AF_INET, &PROTOCOLS)?,
        of_family(libc::AF_INET6, &PROTOCOLS)?,
        of_family(libc::AF_NETLINK, &[libc::NETLINK_ROUTE])?,
    ];
    refusing(libc::EAFNOSUPPORT, BTreeMap::from([(libc::SYS_socket, rules)]))
}

/// Rejects IP sockets that are neither streams nor datagrams, because the kernel would load modules for other types.
pub(super) fn socket_types() -> Result<BpfProgram, BackendError> {
    let (stream, datagram) = (unsigned(libc::SOCK_STREAM), unsigned(libc::SOCK_DGRAM));
    let mut rules = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in (0..=TYPE_MASK).filter(|kind| *kind != stream && *kind != datagram) {
            rules.push(SeccompRule::new(vec![
                SeccompCondition::new(0, Length::Dword, Compare::Eq, unsigned(family))?,
                SeccompCondition::new(1, Length::Dword, Compare::MaskedEq(TYPE_MASK), kind)?,
            ])?);
        }
    }
    refusing(libc::ESOCKTNOSUPPORT, BTreeMap::from([(libc::SYS_socket, rules)]))
}

/// Rejects `ioctl` requests and socket options for which no sandbox has the permission. Also rejects changes to the
/// resource limits of other processes, because a limit of the init would apply to every later command.
pub(super) fn requests() -> Result<BpfProgram, BackendError> {
    let is = |index, value| SeccompCondition::new(index, Length::Dword, Compare::Eq, value);
    let ioctls = REQUESTS.iter().map(|request| SeccompRule::new(vec![is(1, *request)?]));
    let option = |level, option| SeccompRule::new(vec![is(1, unsigned(level))?, is(2, option)?]);
    let options = FILTER_OPTIONS.iter().map(|number| option(libc::SOL_SOCKET, *number));
    let options = options.chain(TCP_OPTIONS.iter().map(|number| option(libc::IPPROTO_TCP, *number)));
    let other_process = SeccompCondition::new(0, Length::Dword, Compare::Ne, 0)?;
    let rules = BTreeMap::from([
        (libc::SYS_ioctl, ioctls.collect::<Result<Vec<_>, _>>()?),
        (libc::SYS_setsockopt, options.collect::<Result<Vec<_>, _>>()?),
        (libc::SYS_prlimit64, vec![SeccompRule::new(vec![other_process])?]),
    ]);
    refusing(libc::EPERM, rules)
}

/// Rejects further seccomp filters with the error that a kernel without seccomp returns. Seccomp filters count towards
/// the same limit of the host as socket filters. This filter must be installed last, because no further filter can be
/// installed after it.
pub(super) fn filters() -> Result<BpfProgram, BackendError> {
    let is = |index, value| SeccompCondition::new(index, Length::Dword, Compare::Eq, value);
    let set_seccomp = unsigned(libc::PR_SET_SECCOMP);
    let filter_mode = u64::from(libc::SECCOMP_MODE_FILTER);
    let rules = BTreeMap::from([
        (libc::SYS_seccomp, vec![SeccompRule::new(vec![is(0, SET_MODE_FILTER)?])?]),
        (libc::SYS_prctl, vec![SeccompRule::new(vec![is(0, set_seccomp)?, is(1, filter_mode)?])?]),
    ]);
    refusing(libc::EINVAL, rules)
}

fn refusing(error: i32, rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, BackendError> {
    let rejected = SeccompAction::Errno(error.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, rejected, ARCHITECTURE)?.try_into()
}
