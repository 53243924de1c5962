use super::machine::{ControlGroups, drops_forwarded, file_system_of};
use super::*;
use crate::totals::{HostCounts, TotalSettings};

/// Returns a machine that passes all checks.
fn sound() -> Machine {
    Machine {
        is_root: true,
        capabilities: u64::MAX,
        kernel: (6, 1),
        user_namespaces_max: Some(10_000),
        has_overlay: true,
        has_ext4: true,
        has_loop_devices: true,
        has_mkfs: true,
        control_groups: Ok(ControlGroups {
            version: 2,
            are_writable: true,
            has_cpu: true,
            limits_swap: true,
            limits_sockets: true,
        }),
        has_swap: true,
        has_seccomp: true,
        usr_file_system: "ext4".to_owned(),
        folder_file_system: "xfs".to_owned(),
        private_files: Ok(vec![]),
        programs: ["bash", "python3", "node", "bun", "git", "curl"].map(str::to_owned).into(),
        system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        network_programs_missing: vec![],
        has_veth: true,
        has_nftables: true,
        forwards: true,
        forward_is_dropped: false,
        free_bytes: Some(100 << 30),
        counts: HostCounts {
            memory_bytes: 64 << 30,
            processes: 4_194_304,
            socket_bytes: 8 << 30,
            open_files: u64::MAX,
            terminals: 3072,
        },
        raises_open_files: false,
        has_built_template: false,
    }
}

/// Returns whether sandboxes can run, and the checks that are not ok.
fn failed_checks(change: impl FnOnce(&mut Machine)) -> (bool, Vec<(&'static str, Status)>) {
    let mut machine = sound();
    change(&mut machine);
    let Report { ready, checks } = report(&machine, &Plan::default());
    let failed_checks = checks.into_iter().filter(|check| check.status != Status::Ok);
    let described =
        failed_checks.inspect(|check| assert!(!check.detail.is_empty() && !check.remedy.is_empty(), "{check:?}"));
    (ready, described.map(|check| (check.name, check.status)).collect())
}

#[test]
fn sound_machine_passes_all_checks() {
    assert_eq!(failed_checks(|_| {}), (true, vec![]));
}

#[test]
fn required_properties_are_missing() {
    let one = |change: fn(&mut Machine)| {
        let (ready, found) = failed_checks(change);
        assert!(!ready, "{found:?}");
        found.into_iter().filter(|(_, status)| *status == Status::Missing).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(one(|machine| machine.is_root = false), ["root"]);
    assert_eq!(one(|machine| machine.capabilities &= !(1 << 21)), ["capabilities"]);
    assert_eq!(one(|machine| machine.capabilities &= !(1 << 19)), ["capabilities"]);
    assert_eq!(one(|machine| machine.capabilities &= !(1 << 27)), ["capabilities"]);
    assert_eq!(one(|machine| machine.kernel = (5, 15)), ["kernel"]);
    assert_eq!(one(|machine| machine.user_namespaces_max = Some(0)), ["user_namespaces"]);
    assert_eq!(one(|machine| machine.user_namespaces_max = None), ["user_namespaces"]);
    assert_eq!(one(|machine| machine.has_overlay = false), ["file_systems"]);
    assert_eq!(one(|machine| machine.has_ext4 = false), ["file_systems"]);
    assert_eq!(one(|machine| machine.has_loop_devices = false), ["loop_devices"]);
    assert_eq!(one(|machine| machine.has_mkfs = false), ["mkfs"]);
    assert_eq!(one(|machine| machine.control_groups = Err("there are none".to_owned())), ["control_groups"]);
    let read_only = |machine: &mut Machine| {
        machine.control_groups = Ok(ControlGroups {
            version: 1,
            are_writable: false,
            has_cpu: true,
            limits_swap: true,
            limits_sockets: true,
        });
    };
    assert_eq!(one(read_only), ["control_groups"]);
    assert_eq!(one(|machine| machine.has_seccomp = false), ["seccomp"]);
    assert_eq!(one(|machine| machine.usr_file_system = "overlay".to_owned()), ["layers"]);
    assert_eq!(one(|machine| machine.folder_file_system = "nfs4".to_owned()), ["layers"]);
    assert_eq!(one(|machine| machine.programs.retain(|name| name != "bash")), ["programs"]);
    assert_eq!(one(|machine| machine.private_files = Err("unreadable".to_owned())), ["private_files"]);
    assert_eq!(one(|machine| machine.free_bytes = Some(1 << 30)), ["disk"]);
    assert_eq!(one(|machine| machine.free_bytes = None), ["disk"]);
}

#[test]
fn optional_properties_are_degraded() {
    let one = |change: fn(&mut Machine)| {
        let (ready, found) = failed_checks(change);
        assert!(ready && found.iter().all(|(_, status)| *status == Status::Degraded), "{found:?}");
        found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let old_groups = |machine: &mut Machine| {
        machine.control_groups = Ok(ControlGroups {
            version: 1,
            are_writable: true,
            has_cpu: false,
            limits_swap: false,
            limits_sockets: false,
        });
    };
    assert_eq!(one(old_groups), ["cpu_limit", "swap_limit", "socket_limit"]);
    assert_eq!(one(|machine| machine.programs.retain(|name| name != "bun")), ["programs"]);
    assert_eq!(one(|machine| machine.network_programs_missing = vec!["`nft`".to_owned()]), ["network"]);
    assert_eq!(one(|machine| machine.has_veth = false), ["network"]);
    assert_eq!(one(|machine| machine.forward_is_dropped = true), ["firewall"]);
    assert_eq!(one(|machine| machine.free_bytes = Some(5 << 30)), ["disk"]);
    assert_eq!(one(|machine| machine.counts.open_files = 2_466_186), ["open_files"]);
    assert_eq!(one(|machine| machine.counts.terminals = 1000), ["terminals"]);
    let in_container = |machine: &mut Machine| {
        machine.usr_file_system = "overlay".to_owned();
        machine.has_built_template = true;
    };
    assert_eq!(one(in_container), ["layers"]);
}

#[test]
fn totals_that_leave_the_host_nothing_are_degraded() {
    let degraded_checks = |totals: TotalSettings| {
        let report = report(&sound(), &Plan { totals, ..Plan::default() });
        let found = report.checks.into_iter().filter(|check| check.status == Status::Degraded);
        found.map(|check| (check.name, check.remedy)).collect::<Vec<_>>()
    };
    assert_eq!(degraded_checks(TotalSettings::default()), []);
    let found = degraded_checks(TotalSettings { memory_mib: Some(65_536), processes: Some(4_000_000) });
    assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["processes", "memory"]);
    let report = report(&sound(), &Plan { running_max: 96, ..Plan::default() });
    let memory = report.checks.iter().find(|check| check.name == "memory").unwrap();
    assert!(
        memory.status == Status::Ok && memory.detail.contains("96 sandboxes with 1024 MiB each would need 98304 MiB"),
        "{memory:?}"
    );
}

#[test]
fn mounts_are_parsed_in_the_format_of_the_kernel() {
    let mounts = "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                  30 20 8:2 / /usr ro - squashfs /dev/sda2 ro\n\
                  40 20 0:30 / /no/such rw master:2 - nfs4 server:/ rw\n\
                  50 20 0:31 / /no/such rw - tmpfs none rw\n";
    assert_eq!(file_system_of(Path::new("/usr"), mounts), "squashfs");
    assert_eq!(file_system_of(Path::new("/etc"), mounts), "ext4");
    assert_eq!(file_system_of(Path::new("/no/such/folder"), mounts), "tmpfs");
    assert_eq!(file_system_of(Path::new("/no/suchlike"), mounts), "ext4");
    assert_eq!(file_system_of(Path::new("/etc"), "no list"), "an unknown file system");
}

#[test]
fn dropping_firewall_is_detected() {
    let chain = |policy: &str| {
        format!(
            "table ip filter {{\n\tchain FORWARD {{\n\t\ttype filter hook forward priority filter; policy {policy};\n\t}}\n}}\n"
        )
    };
    assert!(drops_forwarded(&chain("drop")) && !drops_forwarded(&chain("accept")) && !drops_forwarded(""));
}

#[test]
fn this_machine_can_be_examined() {
    let folder = tempfile::tempdir().unwrap();
    let report = examine(&folder.path().join("not/yet/there"), &Plan::default());
    assert_eq!(report.checks.len(), 23);
    assert_eq!(report.ready, report.checks.iter().all(|check| check.status != Status::Missing));
    assert!(!folder.path().join("not").exists(), "the checks created a file");
}
