//! Control groups, version 1 and 2: the limits of a sandbox, and the processes of each command.
//!
//! The group `init` of a sandbox holds its init and its workers. The group `box` holds a group for each command, so
//! that a command can be killed with all processes that it has started, in any session. `box` has the limits of the
//! sandbox. `init` has small limits of its own, so that no command can exhaust the memory of the init. The group that
//! holds all sandboxes of a server also has limits.

mod kill;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use monstrum_sandbox::Limits;
use serde::{Deserialize, Serialize};

use crate::totals::Totals;

pub(crate) use kill::remove_tree;

/// The mount point of control groups on every Linux.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The period of the processor quota, the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// The process limit of `init`: the init and its workers.
const INIT_PROCESSES: u32 = 64;
/// The memory limit of `init`, in bytes. It covers a few MiB for each concurrent worker, and the file pages that the
/// workers read.
const INIT_MEMORY_BYTES: u64 = 128 << 20;
/// The divisor that yields the limit of a sandbox's socket buffers from the memory limit of the sandbox. Used if the
/// kernel counts socket buffers separately from memory.
const SOCKET_MEMORY_PART: u64 = 8;
/// The file that limits socket buffers. It exists if the kernel counts socket buffers separately from memory.
const SOCKET_MEMORY: &str = "memory.kmem.tcp.limit_in_bytes";

/// The reason why this machine cannot limit sandboxes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoController {
    #[error("the control group controller `{controller}` is not available in {}", root.display())]
    Unified { controller: &'static str, root: PathBuf },
    #[error(
        "{} contains neither a control group tree nor a tree of the controller `{controller}`",
        root.display()
    )]
    Separate { controller: &'static str, root: PathBuf },
}

/// The control groups of this machine, and the names and limits of this server's group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cgroups {
    hierarchy: Hierarchy,
    /// The name of the group that holds all sandboxes of this server.
    folder: String,
    /// The limits of the group that holds all sandboxes. `None` until [`Cgroups::with_totals`] sets them.
    totals: Option<Totals>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Hierarchy {
    /// One tree for each controller.
    V1 { memory: PathBuf, pids: PathBuf, cpu: Option<PathBuf> },
    /// One tree, in which each level enables the controllers of its children.
    V2 { root: PathBuf, has_cpu: bool },
}

impl Cgroups {
    /// Finds the control groups below `root`. `tag` distinguishes the groups of this server from the groups of other
    /// servers on the machine.
    pub(crate) fn find(root: &Path, tag: &str) -> Result<Cgroups, NoController> {
        let folder = format!("monstrum-{tag}");
        if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
            let has = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
            if let Some(missing) = ["memory", "pids"].into_iter().find(|name| !has(name)) {
                return Err(NoController::Unified { controller: missing, root: root.to_owned() });
            }
            let hierarchy = Hierarchy::V2 { root: root.to_owned(), has_cpu: has("cpu") };
            return Ok(Cgroups { hierarchy, folder, totals: None });
        }
        let tree = |name: &str, file: &str| Some(root.join(name)).filter(|tree| tree.join(file).exists());
        let missing = |controller| NoController::Separate { controller, root: root.to_owned() };
        let memory = tree("memory", "memory.limit_in_bytes").or_else(|| tree("memory", "cgroup.procs"));
        let hierarchy = Hierarchy::V1 {
            memory: memory.ok_or_else(|| missing("memory"))?,
            pids: tree("pids", "cgroup.procs").ok_or_else(|| missing("pids"))?,
            cpu: tree("cpu", "cpu.cfs_quota_us"),
        };
        Ok(Cgroups { hierarchy, folder, totals: None })
    }

    /// Sets the limits that apply to all sandboxes together.
    pub(crate) fn with_totals(self, totals: Totals) -> Cgroups {
        Cgroups { totals: Some(totals), ..self }
    }

    /// Whether socket buffers can be limited. `kernel_arguments` is the command line of the kernel.
    pub(crate) fn limits_sockets(&self, kernel_arguments: &str) -> bool {
        match &self.hierarchy {
            Hierarchy::V1 { memory, .. } => memory.join(SOCKET_MEMORY).exists(),
            Hierarchy::V2 { .. } => !kernel_arguments
                .split_whitespace()
                .filter_map(|argument| argument.strip_prefix("cgroup.memory="))
                .any(|options| options.split(',').any(|option| option == "nosocket")),
        }
    }

    /// Returns the version, 1 or 2.
    pub(crate) fn version(&self) -> u8 {
        match self.hierarchy {
            Hierarchy::V1 { .. } => 1,
            Hierarchy::V2 { .. } => 2,
        }
    }

    /// Whether processor time can be limited.
    pub(crate) fn has_cpu(&self) -> bool {
        match &self.hierarchy {
            Hierarchy::V1 { cpu, .. } => cpu.is_some(),
            Hierarchy::V2 { has_cpu, .. } => *has_cpu,
        }
    }

    fn trees(&self) -> Vec<&Path> {
        match &self.hierarchy {
            Hierarchy::V1 { memory, pids, cpu } => {
                [Some(pids), Some(memory), cpu.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect()
            }
            Hierarchy::V2 { root, .. } => vec![root],
        }
    }

    /// Returns the groups that hold all sandboxes of this server, one for each tree.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        self.trees().iter().map(|tree| tree.join(&self.folder)).collect()
    }

    /// Returns the groups of a sandbox. The groups need not exist.
    pub(crate) fn group(&self, name: &str, limits: &Limits) -> SandboxGroup {
        let groups: Vec<PathBuf> = self.folders().iter().map(|folder| folder.join(name)).collect();
        let tree = groups[0].clone();
        let (parts, whole) = match &self.hierarchy {
            Hierarchy::V1 { .. } => groups.split_at(2),
            Hierarchy::V2 { .. } => groups.split_at(1),
        };
        let mut groups_of_init: Vec<PathBuf> = parts.iter().map(|group| group.join("init")).collect();
        groups_of_init.extend(whole.iter().cloned());
        SandboxGroup {
            version: self.version(),
            memory: parts.last().unwrap_or(&tree).join("box"),
            tree,
            groups_of_init,
            groups,
            processes_per_exec: limits.processes_per_exec,
        }
    }

    /// Creates the groups of a sandbox with its limits. Replaces groups of the same name that a previous process left
    /// behind.
    pub(crate) fn create(&self, name: &str, limits: &Limits) -> io::Result<SandboxGroup> {
        let group = self.group(name, limits);
        for folder in &group.groups {
            remove_tree(folder)?;
            self.switch_on(folder.parent().expect("it lies in our folder"))?;
            fs::create_dir_all(folder)?;
        }
        self.limit_all()?;
        let box_bytes = u64::from(limits.memory_mib) << 20;
        let memory = group.memory.parent().expect("it is a part of the sandbox's group").to_owned();
        for (part, processes, bytes) in
            [("init", INIT_PROCESSES, INIT_MEMORY_BYTES), ("box", limits.processes, box_bytes)]
        {
            if self.version() == 2 {
                fs::write(group.tree.join("cgroup.subtree_control"), "+memory +pids")?;
            }
            fs::create_dir_all(group.tree.join(part))?;
            fs::create_dir_all(memory.join(part))?;
            fs::write(group.tree.join(part).join("pids.max"), processes.to_string())?;
            self.limit_memory(&memory.join(part), bytes, bytes / SOCKET_MEMORY_PART)?;
        }
        let quota_us = u64::from(limits.cpu_millis) * CPU_PERIOD_US / 1000;
        match &self.hierarchy {
            Hierarchy::V1 { .. } => {
                if let Some(cpu) = group.groups.get(2) {
                    fs::write(cpu.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
                    fs::write(cpu.join("cpu.cfs_quota_us"), quota_us.to_string())?;
                }
            }
            Hierarchy::V2 { has_cpu, .. } => {
                fs::write(group.tree.join("box/cgroup.subtree_control"), "+pids")?;
                if *has_cpu {
                    fs::write(group.tree.join("cpu.max"), format!("{quota_us} {CPU_PERIOD_US}"))?;
                }
            }
        }
        Ok(group)
    }

    /// Limits the memory of a group, including swap. If the kernel counts socket buffers separately from memory, also
    /// limits the socket buffers of the group.
    fn limit_memory(&self, group: &Path, bytes: u64, socket_bytes: u64) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1 { .. } => {
                fs::write(group.join("memory.limit_in_bytes"), bytes.to_string())?;
                let with_swap = group.join("memory.memsw.limit_in_bytes");
                if with_swap.exists() {
                    fs::write(with_swap, bytes.to_string())?;
                }
                let sockets = group.join(SOCKET_MEMORY);
                if sockets.exists() {
                    fs::write(sockets, socket_bytes.to_string())?;
                }
            }
            Hierarchy::V2 { .. } => {
                fs::write(group.join("memory.max"), bytes.to_string())?;
                let swap = group.join("memory.swap.max");
                if swap.exists() {
                    fs::write(swap, "0")?;
                }
            }
        }
        Ok(())
    }

    /// Limits the group that holds all sandboxes. Every start of a sandbox sets these limits again, because the group
    /// exists only while a sandbox exists.
    fn limit_all(&self) -> io::Result<()> {
        let Some(totals) = self.totals else { return Ok(()) };
        let folders = self.folders();
        fs::write(folders[0].join("pids.max"), totals.processes.to_string())?;
        let memory = folders.get(1).filter(|_| self.version() == 1).unwrap_or(&folders[0]);
        self.limit_memory(memory, totals.memory_bytes, totals.socket_bytes)
    }

    /// Version 2 only: enables the controllers in the root and in `ours`, so that `ours` and its children can use them.
    fn switch_on(&self, ours: &Path) -> io::Result<()> {
        fs::create_dir_all(ours)?;
        if let Hierarchy::V2 { root, has_cpu } = &self.hierarchy {
            for level in [root.as_path(), ours] {
                fs::write(
                    level.join("cgroup.subtree_control"),
                    if *has_cpu { "+memory +pids +cpu" } else { "+memory +pids" },
                )?;
            }
        }
        Ok(())
    }

    /// Removes the groups that a previous process left behind, and kills the processes in them.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        self.folders().iter().try_for_each(|folder| remove_tree(folder))
    }
}

/// The groups of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxGroup {
    version: u8,
    /// The tree in which each command has a group.
    tree: PathBuf,
    /// The group that limits the memory of commands.
    memory: PathBuf,
    /// The groups that the init joins.
    pub groups_of_init: Vec<PathBuf>,
    /// All groups of the sandbox. They are removed after the sandbox has ended.
    pub groups: Vec<PathBuf>,
    processes_per_exec: u32,
}

impl SandboxGroup {
    /// Returns the number of processes that the kernel has killed because of the memory limit.
    pub(crate) fn out_of_memory(&self) -> io::Result<u64> {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        count(&self.memory.join(file), "oom_kill")
    }

    /// Creates the group of a command.
    pub(crate) fn exec(&self, id: u64) -> io::Result<ExecGroup> {
        let path = self.tree.join("box").join(format!("e{id}"));
        fs::create_dir(&path)?;
        let memory = (self.version == 1).then(|| self.memory.clone());
        let group = ExecGroup { path, memory };
        fs::write(group.path.join("pids.max"), self.processes_per_exec.to_string())?;
        Ok(group)
    }
}

/// The group of one command.
#[derive(Debug)]
pub(crate) struct ExecGroup {
    path: PathBuf,
    /// Version 1 only: the group of all commands in the memory tree.
    memory: Option<PathBuf>,
}

impl ExecGroup {
    /// Opens the files through which a process joins the command's group: the process writes a zero to each file.
    pub(crate) fn join_files(&self) -> io::Result<Vec<File>> {
        let groups = [Some(&self.path), self.memory.as_ref()].into_iter().flatten();
        groups.map(|group| File::options().write(true).open(group.join("cgroup.procs"))).collect()
    }

    /// Whether the command reached its process limit.
    pub(crate) fn hit_its_limit(&self) -> io::Result<bool> {
        Ok(count(&self.path.join("pids.events"), "max")? > 0)
    }

    /// Kills all processes of the group.
    pub(crate) fn kill(&self) -> io::Result<()> {
        kill::kill_all(&self.path)
    }

    /// Removes the group. Returns `false` if the group still has processes and was not removed.
    pub(crate) fn remove(&self) -> io::Result<bool> {
        match fs::remove_dir(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn count(file: &Path, key: &str) -> io::Result<u64> {
    let text = fs::read_to_string(file)?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    value.ok_or_else(|| io::Error::other(format!("`{key}` is missing in {}", file.display())))
}

/// Moves a process into a group.
pub(crate) fn join(group: &Path, pid: i32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Removes a group. Does nothing if the group is in use or does not exist.
pub(crate) fn remove_if_empty(group: &Path) {
    let _in_use_or_gone = fs::remove_dir(group);
}

#[cfg(test)]
mod tests;
