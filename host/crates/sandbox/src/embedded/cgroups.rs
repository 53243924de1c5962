//! Control groups, version 1 and 2: what a sandbox may use, and who belongs to one command.
//!
//! A sandbox has `init` for its init and what works on its files, and `box` for commands, each in a group of its own, so
//! that a command can be ended with everything that it has started, whatever session that is in.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::provider::Limits;

/// Where control groups are on every Linux.
pub const ROOT: &str = "/sys/fs/cgroup";
/// The period over which a share of processors is counted, the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Processes at once that work on files of one sandbox, and its init.
const INIT_PROCESSES: u32 = 64;
/// How long the processes of a group may take to be gone when they are killed.
const GONE_MAX: Duration = Duration::from_secs(10);
/// How often their end is looked for.
const GONE_POLL: Duration = Duration::from_millis(1);

/// The control groups of this machine, below which ours are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    /// The name of the group that holds all of ours.
    folder: String,
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
    pub fn find(root: &Path, tag: &str) -> Result<Cgroups, String> {
        let folder = format!("monstrum-{tag}");
        if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
            let has = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
            if let Some(missing) = ["memory", "pids"].into_iter().find(|name| !has(name)) {
                return Err(format!("the control group controller `{missing}` is not available in {}", root.display()));
            }
            let hierarchy = Hierarchy::V2 { root: root.to_owned(), has_cpu: has("cpu") };
            return Ok(Cgroups { hierarchy, folder });
        }
        let tree = |name: &str, file: &str| Some(root.join(name)).filter(|tree| tree.join(file).exists());
        let missing = |name: &str| {
            format!(
                "there is neither a control group tree in {} nor one of the controller `{name}` below it",
                root.display()
            )
        };
        let memory = tree("memory", "memory.limit_in_bytes").or_else(|| tree("memory", "cgroup.procs"));
        let hierarchy = Hierarchy::V1 {
            memory: memory.ok_or_else(|| missing("memory"))?,
            pids: tree("pids", "cgroup.procs").ok_or_else(|| missing("pids"))?,
            cpu: tree("cpu", "cpu.cfs_quota_us"),
        };
        Ok(Cgroups { hierarchy, folder })
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
        let mut groups_of_init = vec![tree.join("init")];
        groups_of_init.extend(groups[1..].iter().cloned());
        SandboxGroup {
            version: self.version(),
            memory: groups.get(1).unwrap_or(&tree).clone(),
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
        for (part, processes) in [("init", INIT_PROCESSES), ("box", limits.processes)] {
            if self.version() == 2 {
                fs::write(group.tree.join("cgroup.subtree_control"), "+pids")?;
            }
            fs::create_dir(group.tree.join(part))?;
            fs::write(group.tree.join(part).join("pids.max"), processes.to_string())?;
        }
        let bytes = (u64::from(limits.memory_mib) << 20).to_string();
        let quota_us = u64::from(limits.cpu_millis) * CPU_PERIOD_US / 1000;
        match &self.hierarchy {
            Hierarchy::V1 { .. } => {
                fs::write(group.memory.join("memory.limit_in_bytes"), &bytes)?;
                let with_swap = group.memory.join("memory.memsw.limit_in_bytes");
                if with_swap.exists() {
                    fs::write(with_swap, &bytes)?;
                }
                if let Some(cpu) = group.groups.get(2) {
                    fs::write(cpu.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
                    fs::write(cpu.join("cpu.cfs_quota_us"), quota_us.to_string())?;
                }
            }
            Hierarchy::V2 { has_cpu, .. } => {
                fs::write(group.tree.join("box/cgroup.subtree_control"), "+pids")?;
                fs::write(group.tree.join("memory.max"), &bytes)?;
                let swap = group.tree.join("memory.swap.max");
                if swap.exists() {
                    fs::write(swap, "0")?;
                }
                if *has_cpu {
                    fs::write(group.tree.join("cpu.max"), format!("{quota_us} {CPU_PERIOD_US}"))?;
                }
            }
        }
        Ok(group)
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
        let group = ExecGroup { path };
        fs::write(group.path.join("pids.max"), self.processes_per_exec.to_string())?;
        Ok(group)
    }
}

/// The group of one command.
#[derive(Debug)]
pub struct ExecGroup {
    path: PathBuf,
}

impl ExecGroup {
    /// Through which a process joins by writing a zero.
    pub fn door(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Whether it wanted more processes than it may have.
    pub fn hit_its_limit(&self) -> io::Result<bool> {
        Ok(count(&self.path.join("pids.events"), "max")? > 0)
    }

    /// Ends all of its processes.
    pub fn kill(&self) -> io::Result<()> {
        kill_all(&self.path)
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

/// Ends all processes of one group, and waits until they are gone.
fn kill_all(group: &Path) -> io::Result<()> {
    let until = Instant::now() + GONE_MAX;
    let at_once = group.join("cgroup.kill");
    // From here on nothing in it starts another process, so that killing one by one comes to an end.
    let has_limit = group.join("pids.max").exists();
    if has_limit {
        if_there(fs::write(group.join("pids.max"), "0"))?;
    }
    loop {
        let Some(members) = members(group)? else { return Ok(()) };
        if members.is_empty() {
            return Ok(());
        }
        if at_once.exists() {
            fs::write(&at_once, "1")?;
        } else {
            for pid in members {
                kill_member(group, pid)?;
            }
        }
        if Instant::now() >= until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not end"));
        }
        std::thread::sleep(GONE_POLL);
    }
}

/// `None` where the group is gone.
fn members(group: &Path) -> io::Result<Option<Vec<Pid>>> {
    match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) => Ok(Some(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends a process, if it is the member that was found: its pid may be another's by now.
fn kill_member(group: &Path, pid: Pid) -> io::Result<()> {
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    let Ok(groups) = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())) else { return Ok(()) };
    let is_member = groups.lines().any(|line| {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default().trim_start_matches('/');
        !path.is_empty() && group.ends_with(path)
    });
    if is_member {
        let _ended_by_itself = rustix::process::pidfd_send_signal(handle, Signal::KILL);
    }
    Ok(())
}

/// Removes a group with all groups below it, and ends what lives in them.
pub fn remove_tree(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    kill_all(group)?;
    let until = Instant::now() + GONE_MAX;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(GONE_POLL);
            }
            Err(error) if is_gone(&error) => return Ok(()),
            removed => return removed,
        }
    }
}

/// Removes a group in which there is nothing; what another one is using stays.
pub fn remove_if_empty(group: &Path) {
    let _in_use_or_gone = fs::remove_dir(group);
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_gone(&error) => Ok(()),
        done => done,
    }
}

/// A group that is removed while it is read says so in either way.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel with version 2 shows at its root.
    fn unified(controllers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        root
    }

    fn written(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    #[test]
    fn version_2_has_one_tree_with_controllers_switched_on_level_by_level() {
        let root = unified("cpuset cpu io memory hugetlb pids rdma misc\n");
        let root = root.path();
        let cgroups = Cgroups::find(root, "0a1b2c3d").unwrap();
        assert_eq!((cgroups.version(), cgroups.has_cpu()), (2, true));
        let limits =
            Limits { cpu_millis: 1500, memory_mib: 512, processes: 100, processes_per_exec: 10, ..Limits::default() };
        let group = cgroups.create("ms-1-2", &limits).unwrap();
        let ours = "monstrum-0a1b2c3d";
        for (file, text) in [
            ("cgroup.subtree_control", "+memory +pids +cpu"),
            (&format!("{ours}/cgroup.subtree_control"), "+memory +pids +cpu"),
            (&format!("{ours}/ms-1-2/cgroup.subtree_control"), "+pids"),
            (&format!("{ours}/ms-1-2/box/cgroup.subtree_control"), "+pids"),
            (&format!("{ours}/ms-1-2/memory.max"), "536870912"),
            (&format!("{ours}/ms-1-2/cpu.max"), "150000 100000"),
            (&format!("{ours}/ms-1-2/box/pids.max"), "100"),
            (&format!("{ours}/ms-1-2/init/pids.max"), "64"),
        ] {
            assert_eq!(written(root, file), text, "{file}");
        }
        assert_eq!(group.groups_of_init, [root.join(ours).join("ms-1-2/init")]);
        group.exec(7).unwrap();
        assert_eq!(written(root, &format!("{ours}/ms-1-2/box/e7/pids.max")), "10");
        fs::write(root.join(ours).join("ms-1-2/memory.events"), "low 0\noom 2\noom_kill 3\n").unwrap();
        assert_eq!(group.out_of_memory().unwrap(), 3);
    }

    #[test]
    fn version_2_ends_a_group_by_one_word() {
        let root = unified("memory pids");
        let cgroups = Cgroups::find(root.path(), "t").unwrap();
        assert!(!cgroups.has_cpu());
        let group = cgroups.create("ms-1", &Limits::default()).unwrap().exec(1).unwrap();
        fs::write(group.path.join("cgroup.kill"), "").unwrap();
        fs::write(group.path.join("cgroup.procs"), "").unwrap();
        group.kill().unwrap();
        assert_eq!(written(&group.path, "cgroup.kill"), "", "an empty group needs no killing");
        fs::write(group.path.join("pids.events"), "max 4\n").unwrap();
        assert!(group.hit_its_limit().unwrap());
    }

    #[test]
    fn a_machine_without_the_controllers_is_refused_by_name() {
        let root = unified("cpu pids");
        assert!(Cgroups::find(root.path(), "t").unwrap_err().contains("`memory` is not available"));
        let empty = tempfile::tempdir().unwrap();
        assert!(Cgroups::find(empty.path(), "t").unwrap_err().contains("`memory`"));
    }

    #[test]
    fn a_process_of_another_group_is_never_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        kill_member(Path::new("/sys/fs/cgroup/pids/monstrum-test/ms-1/box/e1"), pid).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
