//! Control groups, version 1 and 2: what a sandbox may use, and who belongs to one command.
//!
//! A sandbox has `init` for its init and what works on its files, and `box` for commands, each in a group of its own, so
//! that a command can be ended with everything that it has started, whatever session that is in. The limits are those of
//! `box`; `init` has small ones of its own, so that no command can have the init ended for want of memory. The group that
//! holds all sandboxes has limits as well.

mod kill;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use monstrum_sandbox::Limits;
use serde::{Deserialize, Serialize};

use crate::totals::Totals;

pub use kill::remove_tree;

/// Where control groups are on every Linux.
pub const ROOT: &str = "/sys/fs/cgroup";
/// The period over which a share of processors is counted, the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Processes at once that work on files of one sandbox, and its init.
const INIT_PROCESSES: u32 = 64;
/// Memory of the same: a few MiB for each of the workers that may run at once, and what they read of files.
const INIT_MEMORY_BYTES: u64 = 128 << 20;
/// Of the memory of a sandbox, what buffers of its sockets may take beside it where the kernel counts them apart.
const SOCKET_MEMORY_PART: u64 = 8;
/// Where the kernel counts buffers of sockets apart, the limit of a group.
const SOCKET_MEMORY: &str = "memory.kmem.tcp.limit_in_bytes";

/// Why this machine cannot limit sandboxes.
#[derive(Debug, thiserror::Error)]
pub enum NoController {
    #[error("the control group controller `{controller}` is not available in {}", root.display())]
    Unified { controller: &'static str, root: PathBuf },
    #[error(
        "there is neither a control group tree in {} nor one of the controller `{controller}` below it",
        root.display()
    )]
    Separate { controller: &'static str, root: PathBuf },
}

/// The control groups of this machine, below which ours are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    /// The name of the group that holds all of ours.
    folder: String,
    /// The limits of that group.
    totals: Option<Totals>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Hierarchy {
    /// One tree a controller.
    V1 { memory: PathBuf, pids: PathBuf, cpu: Option<PathBuf> },
    /// One tree, the controllers of which are switched on level by level.
    V2 { root: PathBuf, has_cpu: bool },
}

impl Cgroups {
    /// Finds them below `root`; `tag` tells ours from those of another server on this machine.
    pub fn find(root: &Path, tag: &str) -> Result<Cgroups, NoController> {
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

    /// Under limits of all sandboxes together.
    pub fn within(self, totals: Totals) -> Cgroups {
        Cgroups { totals: Some(totals), ..self }
    }

    /// Whether buffers of sockets can be limited. `kernel_arguments` is what the kernel was started with.
    pub fn limits_sockets(&self, kernel_arguments: &str) -> bool {
        match &self.hierarchy {
            Hierarchy::V1 { memory, .. } => memory.join(SOCKET_MEMORY).exists(),
            Hierarchy::V2 { .. } => !kernel_arguments
                .split_whitespace()
                .filter_map(|argument| argument.strip_prefix("cgroup.memory="))
                .any(|options| options.split(',').any(|option| option == "nosocket")),
        }
    }

    /// 1 or 2.
    pub fn version(&self) -> u8 {
        match self.hierarchy {
            Hierarchy::V1 { .. } => 1,
            Hierarchy::V2 { .. } => 2,
        }
    }

    /// Whether the share of processors can be limited.
    pub fn has_cpu(&self) -> bool {
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

    /// The groups that hold all of ours.
    pub fn folders(&self) -> Vec<PathBuf> {
        self.trees().iter().map(|tree| tree.join(&self.folder)).collect()
    }

    /// The groups of a sandbox, whether they are there or not.
    pub fn group(&self, name: &str, limits: &Limits) -> SandboxGroup {
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

    /// Makes the groups of a sandbox under its limits. What is left of an earlier life is made anew.
    pub fn create(&self, name: &str, limits: &Limits) -> io::Result<SandboxGroup> {
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

    /// Limits the memory of a group, swap included, and the buffers of its sockets where the kernel counts them apart.
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

    /// Limits the group that holds all of ours. It is made with the first sandbox and removed with the last, so that each
    /// start sees to it.
    fn limit_all(&self) -> io::Result<()> {
        let Some(totals) = self.totals else { return Ok(()) };
        let folders = self.folders();
        fs::write(folders[0].join("pids.max"), totals.processes.to_string())?;
        let memory = folders.get(1).filter(|_| self.version() == 1).unwrap_or(&folders[0]);
        self.limit_memory(memory, totals.memory_bytes, totals.socket_bytes)
    }

    /// Version 2: the controllers of a level are switched on in the level above.
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

    /// Ends and removes whatever an earlier life has left.
    pub fn remove_all(&self) -> io::Result<()> {
        self.folders().iter().try_for_each(|folder| remove_tree(folder))
    }
}

/// The groups of one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxGroup {
    version: u8,
    /// The tree in which each command has its group.
    tree: PathBuf,
    /// What limits the memory of commands.
    memory: PathBuf,
    /// Where the init goes.
    pub groups_of_init: Vec<PathBuf>,
    /// All of them, to be removed at the end.
    pub groups: Vec<PathBuf>,
    processes_per_exec: u32,
}

impl SandboxGroup {
    /// How many processes the kernel has ended for want of memory.
    pub fn out_of_memory(&self) -> io::Result<u64> {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        count(&self.memory.join(file), "oom_kill")
    }

    /// A group for one command.
    pub fn exec(&self, id: u64) -> io::Result<ExecGroup> {
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
pub struct ExecGroup {
    path: PathBuf,
    /// The group of all commands in the tree of memory, where that is a tree of its own.
    memory: Option<PathBuf>,
}

impl ExecGroup {
    /// Through which a process joins by writing a zero to each.
    pub fn doors(&self) -> io::Result<Vec<File>> {
        let groups = [Some(&self.path), self.memory.as_ref()].into_iter().flatten();
        groups.map(|group| File::options().write(true).open(group.join("cgroup.procs"))).collect()
    }

    /// Whether it wanted more processes than it may have.
    pub fn hit_its_limit(&self) -> io::Result<bool> {
        Ok(count(&self.path.join("pids.events"), "max")? > 0)
    }

    /// Ends all of its processes.
    pub fn kill(&self) -> io::Result<()> {
        kill::kill_all(&self.path)
    }

    /// Removes it, if nothing lives in it any more.
    pub fn remove(&self) -> io::Result<bool> {
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
    value.ok_or_else(|| io::Error::other(format!("{} has no `{key}`", file.display())))
}

/// Moves a process.
pub fn join(group: &Path, pid: i32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Removes a group in which there is nothing; what another one is using stays.
pub fn remove_if_empty(group: &Path) {
    let _in_use_or_gone = fs::remove_dir(group);
}

#[cfg(test)]
mod tests;
