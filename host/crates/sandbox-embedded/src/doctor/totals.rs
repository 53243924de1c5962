//! Checks of resources that all sandboxes share.

use monstrum_sandbox::Limits;

use crate::doctor::machine::Machine;
use crate::doctor::{Check, degraded, ok};
use crate::mounts::TERMINALS_MAX;
use crate::totals::{TotalSettings, Totals};

/// The message if socket buffers cannot be limited.
pub(crate) const NO_SOCKET_LIMIT: &str = "socket buffers do not count towards the memory limit of a sandbox: a few sandboxes can use up the socket buffers of the host";
/// The remedy for [`NO_SOCKET_LIMIT`].
pub(crate) const SOCKET_LIMIT_REMEDY: &str = "remove cgroup.memory=nosocket from the kernel command line, or use a kernel that has memory.kmem.tcp.limit_in_bytes or control groups version 2";
/// The message if the host can run out of open files before sandboxes run out of memory.
pub(crate) const NO_OPEN_FILE_LIMIT: &str =
    "fs.file-max is too low and cannot be raised: sandboxes can use up the open files of the host";
/// The remedy for [`NO_OPEN_FILE_LIMIT`].
pub(crate) const OPEN_FILE_LIMIT_REMEDY: &str = "raise fs.file-max with sysctl, and add the setting to /etc/sysctl.d; run `monstrum sandbox doctor` to see the required value";

/// The load for which a server is configured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The maximum number of running sandboxes.
    pub running_max: u32,
    /// The limits of each sandbox.
    pub limits: Limits,
    pub totals: TotalSettings,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { running_max: 64, limits: Limits::default(), totals: TotalSettings::default() }
    }
}

pub(super) fn checks(machine: &Machine, plan: &Plan) -> Vec<Check> {
    let totals = Totals::of(&machine.counts, plan.totals);
    vec![
        sockets(machine),
        open_files(machine, &totals),
        processes(machine, plan, &totals),
        memory(machine, plan, &totals),
        terminals(machine, plan),
    ]
}

fn sockets(machine: &Machine) -> Check {
    match &machine.control_groups {
        Ok(found) if found.limits_sockets => ok("socket_limit", "socket buffers are limited"),
        Ok(_) => degraded("socket_limit", NO_SOCKET_LIMIT, SOCKET_LIMIT_REMEDY),
        Err(_) => {
            degraded("socket_limit", "cannot be checked without control groups", "fix the check `control_groups` first")
        }
    }
}

fn open_files(machine: &Machine, totals: &Totals) -> Check {
    let needed = totals.open_files_needed();
    if machine.counts.open_files >= needed {
        return ok("open_files", "sandboxes run out of memory before the host runs out of open files");
    }
    let detail =
        format!("fs.file-max is {}, but all sandboxes together can open more files", machine.counts.open_files);
    if machine.raises_open_files {
        return ok("open_files", format!("{detail}; the server raises fs.file-max to {needed} at startup"));
    }
    degraded(
        "open_files",
        detail,
        format!("set fs.file-max to {needed} with sysctl, and add the setting to /etc/sysctl.d"),
    )
}

fn processes(machine: &Machine, plan: &Plan, totals: &Totals) -> Check {
    let wanted = u64::from(plan.running_max) * u64::from(plan.limits.processes);
    let detail = format!("all sandboxes together may have at most {} processes", totals.processes);
    if totals.processes > machine.counts.processes / 4 * 3 {
        let remedy = "lower --sandbox-total-processes, or raise kernel.pid_max and kernel.threads-max";
        return degraded(
            "processes",
            format!("{detail}, but the host allows only {}", machine.counts.processes),
            remedy,
        );
    }
    if wanted > totals.processes {
        let detail = format!(
            "{detail}, but {} sandboxes with {} processes each would need {wanted}",
            plan.running_max, plan.limits.processes
        );
        return ok("processes", format!("{detail}; to allow more, raise kernel.pid_max and kernel.threads-max"));
    }
    ok("processes", detail)
}

fn memory(machine: &Machine, plan: &Plan, totals: &Totals) -> Check {
    let wanted_mib = u64::from(plan.running_max) * u64::from(plan.limits.memory_mib);
    let total_mib = totals.memory_bytes >> 20;
    let detail = format!("all sandboxes together may use at most {total_mib} MiB of memory");
    if totals.memory_bytes >= machine.counts.memory_bytes {
        let detail = format!("{detail}, but the host has only {} MiB", machine.counts.memory_bytes >> 20);
        return degraded("memory", detail, "lower --sandbox-total-memory-mib to leave memory for the host");
    }
    if wanted_mib > total_mib {
        let detail = format!(
            "{detail}, but {} sandboxes with {} MiB each would need {wanted_mib} MiB",
            plan.running_max, plan.limits.memory_mib
        );
        return ok(
            "memory",
            format!("{detail}; if all sandboxes together reach the limit, the kernel kills programs in them"),
        );
    }
    ok("memory", detail)
}

fn terminals(machine: &Machine, plan: &Plan) -> Check {
    let wanted = u64::from(plan.running_max) * u64::from(TERMINALS_MAX);
    let there = machine.counts.terminals;
    if wanted > there {
        let detail = format!(
            "{} sandboxes can open {wanted} terminals, but the host has only {there} for them",
            plan.running_max
        );
        let remedy = format!("raise kernel.pty.max by {}, or lower --sandbox-max", wanted - there);
        return degraded("terminals", detail, remedy);
    }
    ok("terminals", format!("sandboxes can open {wanted} of the {there} terminals of the host"))
}
