//! Collects the facts about this machine.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

use crate::cgroups::{self, Cgroups};
use crate::totals::HostCounts;
use crate::{hidden, images, programs, template};

/// The facts that the checks evaluate.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(super) is_root: bool,
    /// The effective capabilities, one bit for each.
    pub(super) capabilities: u64,
    pub(super) kernel: (u32, u32),
    /// `None` if the kernel has no user namespaces.
    pub(super) user_namespaces_max: Option<u64>,
    pub(super) has_overlay: bool,
    pub(super) has_ext4: bool,
    pub(super) has_loop_devices: bool,
    pub(super) has_mkfs: bool,
    /// The usable control groups, or the reason why they cannot be used.
    pub(super) control_groups: Result<ControlGroups, String>,
    pub(super) has_swap: bool,
    pub(super) has_seccomp: bool,
    pub(super) usr_file_system: String,
    pub(super) folder_file_system: String,
    /// The files in /usr that some users cannot read, or the reason why they could not be listed.
    pub(super) private_files: Result<Vec<PathBuf>, String>,
    pub(super) programs: Vec<String>,
    pub(super) system: String,
    pub(super) network_programs_missing: Vec<String>,
    pub(super) has_veth: bool,
    pub(super) has_nftables: bool,
    pub(super) forwards: bool,
    /// Whether a firewall of another program drops forwarded packets.
    pub(super) forward_is_dropped: bool,
    pub(super) free_bytes: Option<u64>,
    pub(super) counts: HostCounts,
    /// Whether this process may raise `fs.file-max`.
    pub(super) raises_open_files: bool,
    pub(super) has_built_template: bool,
}

/// The usable control groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct ControlGroups {
    pub version: u8,
    pub are_writable: bool,
    pub has_cpu: bool,
    pub limits_swap: bool,
    pub limits_sockets: bool,
}

impl Machine {
    /// Collects the facts. `folder` is the folder of the provider. It need not exist.
    #[must_use]
    pub fn this(folder: &Path) -> Machine {
        let built = template::built_template(&folder.join("template"));
        let (folder, modules) = (existing(folder), Modules::of_this_kernel());
        let described = template::of_host(Path::new("/"));
        let missing = ["ip", "nft"].into_iter().filter(|name| programs::find(name).is_none());
        Machine {
            is_root: rustix::process::geteuid().is_root(),
            capabilities: effective_capabilities(),
            kernel: modules.kernel,
            user_namespaces_max: number("/proc/sys/user/max_user_namespaces"),
            has_overlay: knows_file_system("overlay") || modules.have("overlay"),
            has_ext4: knows_file_system("ext4") || modules.have("ext4"),
            has_loop_devices: fs::metadata("/dev/loop-control").is_ok_and(|found| found.file_type().is_char_device()),
            has_mkfs: images::mkfs().is_some(),
            control_groups: control_groups(Path::new(cgroups::ROOT)),
            has_swap: text("/proc/swaps").lines().count() > 1,
            has_seccomp: text("/proc/sys/kernel/seccomp/actions_avail").contains("errno"),
            usr_file_system: file_system_of(Path::new("/usr"), &text("/proc/self/mountinfo")),
            folder_file_system: file_system_of(&folder, &text("/proc/self/mountinfo")),
            private_files: hidden::find(Path::new("/usr")).map_err(|error| error.to_string()),
            programs: described.programs,
            system: described.system,
            network_programs_missing: missing.map(|name| format!("`{name}`")).collect(),
            has_veth: modules.have("veth"),
            has_nftables: modules.have("nf_tables"),
            forwards: number("/proc/sys/net/ipv4/ip_forward") == Some(1),
            forward_is_dropped: forward_is_dropped(),
            free_bytes: statvfs(&folder).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
            counts: HostCounts::read(),
            raises_open_files: access("/proc/sys/fs/file-max", Access::WRITE_OK).is_ok(),
            has_built_template: built.is_some(),
        }
    }
}

/// Returns `folder`, or its closest parent folder that exists.
fn existing(folder: &Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Returns the command line of the kernel.
pub(crate) fn kernel_arguments() -> String {
    text("/proc/cmdline")
}

/// Returns the content of a file, or an empty text if the file cannot be read.
fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|_| String::new())
}

fn number(path: &str) -> Option<u64> {
    text(path).trim().parse().ok()
}

fn effective_capabilities() -> u64 {
    let status = text("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
}

fn knows_file_system(name: &str) -> bool {
    text("/proc/filesystems").lines().any(|line| line.split_whitespace().last() == Some(name))
}

/// The modules that the kernel contains or can load.
struct Modules {
    kernel: (u32, u32),
    /// The text of the lists of built-in and loadable modules.
    lists: String,
    config: String,
}

impl Modules {
    fn of_this_kernel() -> Modules {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let folder = format!("/lib/modules/{release}");
        let lists = text(&format!("{folder}/modules.builtin")) + &text(&format!("{folder}/modules.dep"));
        let mut config = text(&format!("/boot/config-{release}"));
        if config.is_empty()
            && let Ok(file) = fs::File::open("/proc/config.gz")
            && std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut config).is_err()
        {
            config.clear();
        }
        Modules { kernel, lists, config }
    }

    fn have(&self, name: &str) -> bool {
        let option = match name {
            "overlay" => "CONFIG_OVERLAY_FS=".to_owned(),
            "ext4" => "CONFIG_EXT4_FS=".to_owned(),
            name => format!("CONFIG_{}=", name.to_uppercase()),
        };
        Path::new("/sys/module").join(name).exists()
            || self.lists.contains(&format!("/{name}.ko"))
            // A kernel that supports no loadable modules lists its features only in its configuration.
            || self.config.lines().any(|line| line.strip_prefix(&option) == Some("y"))
    }
}

fn control_groups(root: &Path) -> Result<ControlGroups, String> {
    let found = Cgroups::find(root, "doctor").map_err(|error| error.to_string())?;
    let memory = if found.version() == 2 { root.to_owned() } else { root.join("memory") };
    Ok(ControlGroups {
        version: found.version(),
        are_writable: access(&memory, Access::WRITE_OK).is_ok(),
        has_cpu: found.has_cpu(),
        limits_sockets: found.limits_sockets(&kernel_arguments()),
        limits_swap: found.version() == 2 || memory.join("memory.memsw.limit_in_bytes").exists(),
    })
}

/// Returns the file system type of a path: the type of the mount with the longest matching path.
pub(super) fn file_system_of(path: &Path, mounts: &str) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut best = (0, String::new());
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = fields.iter().position(|field| *field == "-").and_then(|at| fields.get(at + 1));
        let (Some(point), Some(kind)) = (fields.get(4), kind) else { continue };
        // A later mount at the same path hides an earlier mount.
        let depth = Path::new(point).components().count();
        if path.starts_with(point) && depth >= best.0 {
            best = (depth, (*kind).to_owned());
        }
    }
    if best.1.is_empty() { "an unknown file system".to_owned() } else { best.1 }
}

/// Whether a chain of another program drops forwarded packets by default.
fn forward_is_dropped() -> bool {
    let Some(nft) = programs::find("nft") else { return false };
    let mut command = programs::command(&nft);
    command.args(["list", "chains"]);
    programs::run(command, "").is_ok_and(|chains| drops_forwarded(&chains))
}

pub(super) fn drops_forwarded(chains: &str) -> bool {
    chains.lines().any(|line| line.contains("hook forward") && line.contains("policy drop"))
}
