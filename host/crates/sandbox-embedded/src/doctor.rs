//! Checks whether this machine can run sandboxes and which limits it can enforce, and reports what to install.
//!
//! [`Machine`] collects the facts and `report` evaluates them, so that tests can evaluate the facts of other machines.
//! The checks change nothing.

mod machine;
mod totals;

use std::path::Path;

pub use machine::Machine;
pub(super) use machine::kernel_arguments;
use serde::Serialize;
pub use totals::Plan;
pub(super) use totals::{NO_OPEN_FILE_LIMIT, NO_SOCKET_LIMIT, OPEN_FILE_LIMIT_REMEDY, SOCKET_LIMIT_REMEDY};

/// The oldest kernel that can use an id-mapped mount as a layer of overlayfs.
const KERNEL_MIN: (u32, u32) = (5, 19);
/// The free disk space, in bytes, below which a few sandboxes can fill the disk.
const FREE_BYTES_LOW: u64 = 10 << 30;
/// The free disk space, in bytes, below which a sandbox of the default size cannot be created.
const FREE_BYTES_MIN: u64 = 3 << 30;

/// File systems that support id-mapped mounts, with the first kernel version in which they do.
const MAPPABLE: [(&str, (u32, u32)); 10] = [
    ("ext4", (5, 12)),
    ("vfat", (5, 12)),
    ("xfs", (5, 12)),
    ("btrfs", (5, 15)),
    ("f2fs", (5, 18)),
    ("erofs", (5, 19)),
    ("ntfs3", (5, 15)),
    ("squashfs", (6, 2)),
    ("tmpfs", (6, 3)),
    ("zfs", (5, 12)),
];

/// The capabilities that building a sandbox requires, with their numbers. `SYS_PTRACE` is needed to open the namespaces
/// of processes with other user ids, and `MKNOD` to create the devices in /dev.
const CAPABILITIES: [(&str, u32); 11] = [
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("FOWNER", 3),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SETPCAP", 8),
    ("NET_ADMIN", 12),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
    ("MKNOD", 27),
];

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// Sandboxes can run, but a feature or a limit is missing.
    Degraded,
    /// Sandboxes cannot run.
    Missing,
}

/// One checked property of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub detail: String,
    /// How to fix the problem. Empty if the check is ok.
    pub remedy: String,
}

/// The results of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether sandboxes can run here.
    pub ready: bool,
    pub checks: Vec<Check>,
}

/// Checks whether this machine can run a provider whose data is in `folder`, under the load of `plan`. The folder need
/// not exist.
#[must_use]
pub fn examine(folder: &Path, plan: &Plan) -> Report {
    report(&Machine::this(folder), plan)
}

/// Evaluates the facts of a machine.
fn report(machine: &Machine, plan: &Plan) -> Report {
    let mut checks = vec![
        root(machine),
        capabilities(machine),
        kernel(machine),
        user_namespaces(machine),
        file_systems(machine),
        loop_devices(machine),
        mkfs(machine),
        control_groups(machine),
        processors(machine),
        swap(machine),
        seccomp(machine),
        usr(machine),
        private_files(machine),
        programs(machine),
        network(machine),
        firewall(machine),
        disk(machine),
        template(machine),
    ];
    checks.extend(totals::checks(machine, plan));
    Report { ready: checks.iter().all(|check| check.status != Status::Missing), checks }
}

fn ok(name: &'static str, detail: impl Into<String>) -> Check {
    Check { name, status: Status::Ok, detail: detail.into(), remedy: String::new() }
}

fn degraded(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, status: Status::Degraded, detail: detail.into(), remedy: remedy.into() }
}

fn missing(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, status: Status::Missing, detail: detail.into(), remedy: remedy.into() }
}

fn root(machine: &Machine) -> Check {
    if machine.is_root {
        return ok("root", "this process runs as root");
    }
    missing("root", "this process does not run as root", "run the server as root in a dedicated service")
}

fn capabilities(machine: &Machine) -> Check {
    let lacks = |(_, bit): &&(&str, u32)| machine.capabilities & (1 << bit) == 0;
    let lacking: Vec<String> = CAPABILITIES.iter().filter(lacks).map(|(name, _)| format!("CAP_{name}")).collect();
    if lacking.is_empty() {
        return ok("capabilities", "all required capabilities are available");
    }
    let remedy =
        "grant them to the server: set CapabilityBoundingSet= in its systemd unit, or pass --cap-add to its container";
    missing("capabilities", format!("missing: {}", lacking.join(", ")), remedy)
}

fn kernel(machine: &Machine) -> Check {
    let (major, minor) = machine.kernel;
    if machine.kernel >= KERNEL_MIN {
        return ok("kernel", format!("Linux {major}.{minor}"));
    }
    let detail = format!("Linux {major}.{minor} cannot use id-mapped mounts as layers of a sandbox");
    missing("kernel", detail, format!("use Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1))
}

fn user_namespaces(machine: &Machine) -> Check {
    match machine.user_namespaces_max {
        Some(0) => {
            let remedy =
                "set user.max_user_namespaces to a few thousand with sysctl, and add the setting to /etc/sysctl.d";
            missing("user_namespaces", "user.max_user_namespaces is 0", remedy)
        }
        Some(most) => ok("user_namespaces", format!("the kernel allows at most {most} user namespaces")),
        None => missing(
            "user_namespaces",
            "this kernel does not support user namespaces",
            "use a kernel with CONFIG_USER_NS",
        ),
    }
}

fn file_systems(machine: &Machine) -> Check {
    let lacking: Vec<&str> = [("overlay", machine.has_overlay), ("ext4", machine.has_ext4)]
        .iter()
        .filter(|(_, has)| !has)
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        return ok("file_systems", "overlay and ext4 are available");
    }
    let remedy = format!("load it with `modprobe {}`, or use a kernel that supports it", lacking[0]);
    missing("file_systems", format!("this kernel does not support {}", lacking.join(" or ")), remedy)
}

fn loop_devices(machine: &Machine) -> Check {
    if machine.has_loop_devices {
        return ok("loop_devices", "/dev/loop-control exists");
    }
    let remedy = "load the loop driver with `modprobe loop`; in a container, also pass in /dev/loop-control and the loop devices";
    missing("loop_devices", "/dev/loop-control cannot be used", remedy)
}

fn mkfs(machine: &Machine) -> Check {
    if machine.has_mkfs {
        return ok("mkfs", "mkfs.ext4 is installed");
    }
    missing("mkfs", "mkfs.ext4 is not installed", "install it with `apt-get install e2fsprogs`")
}

fn control_groups(machine: &Machine) -> Check {
    let found = match &machine.control_groups {
        Ok(found) => found,
        Err(why) => {
            let remedy =
                "mount control groups with the controllers `memory` and `pids`; in a container, mount them writable";
            return missing("control_groups", why.clone(), remedy);
        }
    };
    if !found.are_writable {
        let remedy = "make them writable for the server: set Delegate=yes in its systemd unit, or start its container with --cgroupns=private and mount /sys/fs/cgroup read-write";
        return missing("control_groups", "the control groups are not writable", remedy);
    }
    ok("control_groups", format!("version {} with the controllers `memory` and `pids`", found.version))
}

fn processors(machine: &Machine) -> Check {
    match &machine.control_groups {
        Ok(found) if !found.has_cpu => degraded(
            "cpu_limit",
            "the processor time of sandboxes cannot be limited",
            "enable the controller `cpu`, and use a kernel with CONFIG_CFS_BANDWIDTH",
        ),
        Ok(_) => ok("cpu_limit", "the processor time of sandboxes can be limited"),
        Err(_) => {
            degraded("cpu_limit", "cannot be checked without control groups", "fix the check `control_groups` first")
        }
    }
}

fn swap(machine: &Machine) -> Check {
    let is_limited = machine.control_groups.as_ref().is_ok_and(|found| found.limits_swap);
    if machine.has_swap && !is_limited {
        let remedy = "boot the kernel with swapaccount=1, or turn off swap";
        return degraded("swap_limit", "swap does not count towards the memory limit of a sandbox", remedy);
    }
    ok("swap_limit", if machine.has_swap { "swap counts towards the memory limit" } else { "this machine has no swap" })
}

fn seccomp(machine: &Machine) -> Check {
    if machine.has_seccomp {
        return ok("seccomp", "system calls can be filtered");
    }
    missing("seccomp", "system calls cannot be filtered", "use a kernel with CONFIG_SECCOMP_FILTER")
}

fn usr(machine: &Machine) -> Check {
    let place = |what: &str, kind: &str| format!("{what} is on {kind}, which does not support id-mapped mounts");
    let suits = |kind: &str| MAPPABLE.iter().any(|(name, since)| *name == kind && machine.kernel >= *since);
    if !suits(&machine.folder_file_system) {
        let detail = place("the data folder", &machine.folder_file_system);
        return missing(
            "layers",
            detail,
            "move the data folder to a disk with ext4, xfs or btrfs; in a container, use a volume",
        );
    }
    if !suits(&machine.usr_file_system) {
        let detail = place("/usr", &machine.usr_file_system);
        let remedy = "build a template in the data folder with `monstrum sandbox template build`";
        return if machine.has_built_template {
            degraded("layers", detail, remedy)
        } else {
            missing("layers", detail, remedy)
        };
    }
    ok(
        "layers",
        format!("/usr is on {}, the data folder is on {}", machine.usr_file_system, machine.folder_file_system),
    )
}

fn private_files(machine: &Machine) -> Check {
    let found = match &machine.private_files {
        Ok(found) => found,
        Err(reason) => {
            let detail = format!("private files in /usr could not be listed: {reason}");
            let remedy = "build a template with `monstrum sandbox template build`";
            return if machine.has_built_template {
                degraded("private_files", detail, remedy)
            } else {
                missing("private_files", detail, remedy)
            };
        }
    };
    let Some(first) = found.first() else {
        return ok("private_files", "/usr has no private files");
    };
    let (count, first) = (found.len(), first.display());
    let detail = match count {
        1 => format!("sandboxes do not see the private file /usr/{first}"),
        _ => format!("sandboxes do not see {count} private files and folders, such as /usr/{first}"),
    };
    ok("private_files", detail)
}

fn programs(machine: &Machine) -> Check {
    let wanted = ["bash", "python3", "node", "bun", "git", "curl"];
    let lacking: Vec<&str> =
        wanted.into_iter().filter(|name| !machine.programs.iter().any(|has| has == name)).collect();
    if lacking.contains(&"bash") {
        return missing("programs", "/usr/bin/bash is not installed", "install it with `apt-get install bash`");
    }
    if lacking.is_empty() {
        return ok("programs", format!("{} on {}", machine.programs.join(", "), machine.system));
    }
    let detail = format!("these programs are missing in sandboxes: {}", lacking.join(", "));
    degraded(
        "programs",
        detail,
        "install them in /usr for all users, or build a template with `monstrum sandbox template build`",
    )
}

fn network(machine: &Machine) -> Check {
    let mut lacking: Vec<&str> = machine.network_programs_missing.iter().map(String::as_str).collect();
    if !machine.has_veth {
        lacking.push("kernel support for veth");
    }
    if !machine.has_nftables {
        lacking.push("kernel support for nf_tables");
    }
    if !lacking.is_empty() {
        let detail = format!("sandboxes cannot have the network `full`; missing: {}", lacking.join(", "));
        return degraded(
            "network",
            detail,
            "install nftables and iproute2, and use a kernel with veth and nf_tables; sandboxes without a network are not affected",
        );
    }
    let forwards = if machine.forwards {
        "this machine forwards packets"
    } else {
        "this machine does not forward packets; the first sandbox with the network `full` enables forwarding (net.ipv4.ip_forward)"
    };
    ok("network", forwards)
}

fn firewall(machine: &Machine) -> Check {
    if machine.forward_is_dropped {
        let remedy = "to use the network `full`, configure that firewall to accept forwarded packets from and to the interfaces `ms*`";
        return degraded("firewall", "a firewall of this machine drops forwarded packets", remedy);
    }
    ok("firewall", "no other firewall drops forwarded packets")
}

fn disk(machine: &Machine) -> Check {
    let Some(free) = machine.free_bytes else {
        return missing(
            "disk",
            "the free disk space of the data folder cannot be read",
            "check that --data-dir is correct",
        );
    };
    let detail = format!("{} GiB are free", free >> 30);
    let remedy = "delete files to free disk space; by default, a sandbox uses up to 2 GiB";
    match free {
        free if free < FREE_BYTES_MIN => missing("disk", detail, remedy),
        free if free < FREE_BYTES_LOW => degraded("disk", detail, remedy),
        _ => ok("disk", detail),
    }
}

fn template(machine: &Machine) -> Check {
    if machine.has_built_template {
        return ok("template", "sandboxes use the built template");
    }
    ok(
        "template",
        "sandboxes use the programs of this machine; to give them a separate system, run `monstrum sandbox template build`",
    )
}

#[cfg(test)]
mod tests;
