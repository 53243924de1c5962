use rustix::process::Pid;

use super::*;

/// Creates a folder that imitates the root of control groups version 2.
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
    let totals = Totals { memory_bytes: 20 << 30, processes: 16_384, socket_bytes: 1 << 30 };
    let cgroups = Cgroups::find(root, "0a1b2c3d").unwrap().with_totals(totals);
    assert_eq!((cgroups.version(), cgroups.has_cpu()), (2, true));
    let limits =
        Limits { cpu_millis: 1500, memory_mib: 512, processes: 100, processes_per_exec: 10, ..Limits::default() };
    let group = cgroups.create("ms-1-2", &limits).unwrap();
    let ours = "monstrum-0a1b2c3d";
    for (file, text) in [
        ("cgroup.subtree_control", "+memory +pids +cpu"),
        (&format!("{ours}/cgroup.subtree_control"), "+memory +pids +cpu"),
        (&format!("{ours}/memory.max"), "21474836480"),
        (&format!("{ours}/pids.max"), "16384"),
        (&format!("{ours}/ms-1-2/cgroup.subtree_control"), "+memory +pids"),
        (&format!("{ours}/ms-1-2/box/cgroup.subtree_control"), "+pids"),
        (&format!("{ours}/ms-1-2/box/memory.max"), "536870912"),
        (&format!("{ours}/ms-1-2/init/memory.max"), "134217728"),
        (&format!("{ours}/ms-1-2/cpu.max"), "150000 100000"),
        (&format!("{ours}/ms-1-2/box/pids.max"), "100"),
        (&format!("{ours}/ms-1-2/init/pids.max"), "64"),
    ] {
        assert_eq!(written(root, file), text, "{file}");
    }
    assert_eq!(group.groups_of_init, [root.join(ours).join("ms-1-2/init")]);
    group.exec(7).unwrap();
    assert_eq!(written(root, &format!("{ours}/ms-1-2/box/e7/pids.max")), "10");
    fs::write(root.join(ours).join("ms-1-2/box/memory.events"), "low 0\noom 2\noom_kill 3\n").unwrap();
    assert_eq!(group.out_of_memory().unwrap(), 3);
}

#[test]
fn version_2_kills_a_group_with_one_write() {
    let root = unified("memory pids");
    let cgroups = Cgroups::find(root.path(), "t").unwrap();
    assert!(!cgroups.has_cpu());
    let group = cgroups.create("ms-1", &Limits::default()).unwrap().exec(1).unwrap();
    fs::write(group.path.join("cgroup.kill"), "").unwrap();
    fs::write(group.path.join("cgroup.procs"), "").unwrap();
    group.kill().unwrap();
    assert_eq!(written(&group.path, "cgroup.kill"), "", "an empty group was killed");
    fs::write(group.path.join("pids.events"), "max 4\n").unwrap();
    assert!(group.hit_its_limit().unwrap());
}

#[test]
fn a_machine_without_the_controllers_is_refused_by_name() {
    let root = unified("cpu pids");
    assert!(Cgroups::find(root.path(), "t").unwrap_err().to_string().contains("`memory` is not available"));
    let empty = tempfile::tempdir().unwrap();
    assert!(Cgroups::find(empty.path(), "t").unwrap_err().to_string().contains("`memory`"));
}

#[test]
fn process_of_another_group_is_never_killed() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let group = tempfile::tempdir().unwrap();
    fs::write(group.path().join("cgroup.procs"), "1\n2\n").unwrap();
    kill::kill_members(group.path(), &[pid]).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Creates a folder that imitates the root of control groups version 1.
fn apart(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    root
}

#[test]
fn version_1_limits_commands_apart_from_the_init() {
    let root = apart(&["memory/memory.limit_in_bytes", "pids/cgroup.procs", "cpu/cpu.cfs_quota_us"]);
    let root = root.path();
    let totals = Totals { memory_bytes: 20 << 30, processes: 16_384, socket_bytes: 1 << 30 };
    let cgroups = Cgroups::find(root, "t").unwrap().with_totals(totals);
    let ours = "monstrum-t";
    // A kernel creates these files together with the folder.
    for group in ["", "/ms-1/init", "/ms-1/box"] {
        let folder = root.join("memory").join(format!("{ours}{group}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(SOCKET_MEMORY), "").unwrap();
    }
    let limits = Limits { memory_mib: 512, processes: 100, ..Limits::default() };
    assert!(
        !cgroups.limits_sockets(""),
        "the file in the root of the tree is missing, but socket buffers are reported as limited"
    );
    // Creating the groups removes existing groups together with the files that this test has created in them.
    fs::remove_file(root.join("memory").join(ours).join("ms-1/init").join(SOCKET_MEMORY)).unwrap();
    fs::remove_file(root.join("memory").join(ours).join("ms-1/box").join(SOCKET_MEMORY)).unwrap();
    let group = cgroups.create("ms-1", &limits).unwrap();
    for (file, text) in [
        ("memory/monstrum-t/memory.limit_in_bytes", "21474836480"),
        ("memory/monstrum-t/memory.kmem.tcp.limit_in_bytes", "1073741824"),
        ("pids/monstrum-t/pids.max", "16384"),
        ("memory/monstrum-t/ms-1/box/memory.limit_in_bytes", "536870912"),
        ("memory/monstrum-t/ms-1/init/memory.limit_in_bytes", "134217728"),
        ("pids/monstrum-t/ms-1/box/pids.max", "100"),
        ("pids/monstrum-t/ms-1/init/pids.max", "64"),
        ("cpu/monstrum-t/ms-1/cpu.cfs_quota_us", "100000"),
    ] {
        assert_eq!(written(root, file), text, "{file}");
    }
    let places = ["pids/monstrum-t/ms-1/init", "memory/monstrum-t/ms-1/init", "cpu/monstrum-t/ms-1"];
    assert_eq!(group.groups_of_init, places.map(|place| root.join(place)));
    for place in ["pids/monstrum-t/ms-1/box/e1", "memory/monstrum-t/ms-1/box"] {
        fs::create_dir_all(root.join(place)).unwrap();
        fs::write(root.join(place).join("cgroup.procs"), "").unwrap();
    }
    fs::remove_file(root.join("pids/monstrum-t/ms-1/box/e1/cgroup.procs")).unwrap();
    fs::remove_dir(root.join("pids/monstrum-t/ms-1/box/e1")).unwrap();
    let exec = group.exec(1).unwrap();
    fs::write(root.join("pids/monstrum-t/ms-1/box/e1/cgroup.procs"), "").unwrap();
    assert_eq!(exec.join_files().unwrap().len(), 2);
}

#[test]
fn missing_socket_limit_is_detected() {
    let (with, without) = (
        apart(&["memory/memory.limit_in_bytes", "memory/memory.kmem.tcp.limit_in_bytes", "pids/cgroup.procs"]),
        apart(&["memory/memory.limit_in_bytes", "pids/cgroup.procs"]),
    );
    assert!(Cgroups::find(with.path(), "t").unwrap().limits_sockets("quiet"));
    assert!(!Cgroups::find(without.path(), "t").unwrap().limits_sockets("quiet"));
    let root = unified("memory pids");
    let cgroups = Cgroups::find(root.path(), "t").unwrap();
    assert!(cgroups.limits_sockets("quiet cgroup.memory=nokmem"));
    assert!(!cgroups.limits_sockets("quiet cgroup.memory=nokmem,nosocket"));
}
