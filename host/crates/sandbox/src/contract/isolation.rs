//! Isolation: a sandbox can neither see nor reach the host, other sandboxes, or a network.

use std::path::Path;
use std::time::Duration;

use super::local_host::memory_contains;
use super::{Subject, eventually, python, random_hex};
use crate::ExecRequest;

/// The interfaces that the kernel adds to every new network namespace if tunnel modules are loaded. The interfaces are
/// down.
const TUNNELS: [&str; 9] = ["sit0", "tunl0", "gre0", "gretap0", "erspan0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0"];

/// The program folders of every Linux system.
const PROGRAMS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns a program that connects to each address and prints the addresses that answer.
fn connections(addresses: &[String]) -> String {
    python(&format!(
        "
import socket
for text in {addresses:?}:
    host, port = text.rsplit(':', 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print('reached', text)
    except OSError:
        pass
print('tried')"
    ))
}

pub async fn has_only_loopback(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let flags = "
import fcntl, socket, struct
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for line in open('/proc/net/dev').readlines()[2:]:
    name = line.split(':')[0].strip()
    request = fcntl.ioctl(probe, 0x8913, struct.pack('40s', name.encode()))
    print(name, 'up' if struct.unpack_from('H', request, 16)[0] & 1 else 'down')";
    let interfaces = sandbox.python(flags).await;
    let is_idle = |line: &str| line.strip_suffix(" down").is_some_and(|name| TUNNELS.contains(&name));
    let in_use: Vec<&str> = interfaces.lines().filter(|line| !is_idle(line)).collect();
    assert_eq!(in_use, ["lo up"]);
    assert_eq!(sandbox.text("tail -n +2 /proc/net/route | wc -l").await, "0");
    let program = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
socket.create_connection(listener.getsockname(), timeout=2).close()
print('itself')";
    assert_eq!(sandbox.python(program).await, "itself");
}

pub async fn cannot_reach_the_host_nor_any_network(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let mut addresses: Vec<String> =
        ["169.254.169.254:80", "1.1.1.1:53", "10.0.0.1:80", "[::1]:22"].map(str::to_owned).into();
    let listener = subject.host.as_ref().map(|host| (host.listener(), host.address()));
    if let Some((listener, address)) = &listener {
        let port = listener.local_addr().expect("it listens").port();
        addresses.push(format!("127.0.0.1:{port}"));
        addresses.extend(address.map(|address| format!("{address}:{port}")));
    }
    assert_eq!(sandbox.text(connections(&addresses)).await, "tried");
}

pub async fn cannot_reach_sockets_without_files(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let (sandbox, (_listener, name)) = (subject.sandbox().await, host.abstract_socket());
    let program = format!(
        "
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        socket.socket(socket.AF_UNIX, kind).connect('\\0{name}')
        print('reached')
    except OSError:
        pass
print('tried')"
    );
    assert_eq!(sandbox.python(&program).await, "tried");
}

pub async fn uncommon_socket_families_are_refused(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    // Socket families that reach the hypervisor, the raw network, or kernel code that no program in a sandbox needs.
    let program = "
import socket
names = {40: 'vsock', 38: 'alg', 17: 'packet', 31: 'bluetooth', 30: 'tipc', 29: 'can', 39: 'nfc', 44: 'xdp', 15: 'key', 41: 'kcm', 42: 'qipcrtr', 43: 'smc', 21: 'rds'}
for family, name in names.items():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind)
            print('opened', name, kind)
        except OSError:
            pass
print('tried')";
    assert_eq!(sandbox.python(program).await, "tried");
}

pub async fn other_sandboxes_are_invisible(subject: &Subject) {
    let (first, second) = (subject.sandbox().await, subject.sandbox().await);
    let marker = format!("marker-{}", random_hex(8));
    first.text(format!("for d in /workspace /tmp /root /dev/shm /var/tmp; do touch $d/{marker}; done")).await;
    first
        .start(&python(&format!(
            "
import socket, sys, time
listener = socket.create_server(('0.0.0.0', 47001))
local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
local.bind('\\0{marker}')
local.listen()
time.sleep(600)"
        )))
        .await;
    first.start(&format!("exec -a {marker} sleep 600")).await;
    first.text("ipcmk -Q >/dev/null && tail -n +2 /proc/sysvipc/msg | grep -q .").await;

    let found = second.text(format!("find / -xdev -name {marker} 2>/dev/null; find /tmp /dev -name {marker}")).await;
    assert_eq!(found, "");
    assert_eq!(second.processes(&marker).await, 0);
    assert_eq!(second.text("tail -n +2 /proc/sysvipc/msg | wc -l").await, "0");
    assert_eq!(second.text(connections(&["127.0.0.1:47001".to_owned()])).await, "tried");
    let local = format!(
        "
import socket
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect('\\0{marker}')
    print('reached')
except OSError:
    print('tried')"
    );
    assert_eq!(second.python(&local).await, "tried");
    assert_eq!(first.processes(&marker).await, 1, "the marked process does not exist in its own sandbox");
}

pub async fn host_files_are_invisible(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let (sandbox, markers) = (subject.sandbox().await, host.plant());
    let found =
        sandbox.text(format!("find / -path /proc -prune -o -name {} -print 2>/dev/null; true", markers.name)).await;
    assert_eq!(found, "");
    for path in &markers.paths {
        for root in ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/self/cwd/../../../..", "/.."] {
            let output = sandbox.run(format!("cat {root}{}", path.display())).await;
            assert!(output.exit_code != 0 && !output.stdout.text.contains(&markers.text), "{root}{}", path.display());
        }
    }
}

pub async fn host_passwords_are_not_there(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let passwords = sandbox
        .text("cat /etc/passwd /etc/group /etc/shadow /etc/gshadow 2>/dev/null | cut -d: -f2 | sort -u; true")
        .await;
    for password in passwords.lines() {
        assert!(password.trim_start_matches(['*', '!', 'x']).is_empty(), "an account has a password");
    }
    let accounts = sandbox.text("cut -d: -f1,3 /etc/passwd").await;
    for account in accounts.lines() {
        let (name, id) = account.split_once(':').expect("a name and an id");
        let id: u32 = id.parse().expect("an id");
        assert!(id < 1000 || id == 65534, "the sandbox contains the account `{name}` of a person");
    }
}

pub async fn host_folders_are_not_there(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let sandbox = subject.sandbox().await;
    for secret in [
        "/etc/ssl/private/",
        "/etc/ssh/",
        "/root/.ssh/",
        "/var/log/",
        "/var/lib/postgresql/",
        "/var/spool/cron/",
        "/run/systemd/",
        "/var/backups/",
    ] {
        let files = sandbox.text(format!("find {secret} -type f 2>/dev/null; true")).await;
        assert_eq!(files, "", "the sandbox can see files in {secret}");
    }
    for folder in ["/root", "/home", "/opt", "/srv", "/mnt", "/media"] {
        let common = [".bashrc", ".profile", ".cache", ".local", ".config", ".npm"];
        let inside = sandbox.text(format!("ls -A {folder} 2>/dev/null; true")).await;
        let shared = inside.lines().find(|name| !common.contains(name) && Path::new(folder).join(name).exists());
        assert_eq!(shared, None, "the sandbox can see files of the host in {folder}");
    }
    let mounts = sandbox.text("cat /proc/self/mountinfo").await;
    let data_dir = host.data_dir().to_str().expect("a path that is text");
    assert!(!mounts.contains(data_dir), "the list of mounts reveals the provider's folder on the host:\n{mounts}");
}

pub async fn host_processes_are_invisible(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let (sandbox, process) = (subject.sandbox().await, host.marked_process());
    let is_there = async || host.processes(&process.marker) > 0;
    eventually("the marked process is running", Duration::from_secs(5), is_there).await;
    assert_eq!(sandbox.processes(&process.marker).await, 0);
    assert_eq!(sandbox.text("tr '\\0' ' ' </proc/1/cmdline").await.trim(), "init");
    let own = std::process::id();
    sandbox.text(format!("[ ! -e /proc/{own}/root/proc/1/exe ] || [ /proc/{own}/root -ef / ]")).await;
}

pub async fn root_inside_is_unprivileged_outside(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let sandbox = subject.sandbox().await;
    let marker = format!("8640{}", u32::from_str_radix(&random_hex(3), 16).expect("hex digits"));
    sandbox.start(&format!("exec sleep {marker}")).await;
    eventually("it runs", Duration::from_secs(5), async || host.owners(&marker).len() == 4).await;
    let owners = host.owners(&marker);
    assert!(
        owners.iter().all(|owner| *owner >= 65_536),
        "a process of a sandbox runs as a user of the host: {owners:?}"
    );
}

pub async fn host_environment_is_invisible(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let sandbox = subject.sandbox().await;
    let environments = sandbox.text("cat /proc/[0-9]*/environ /proc/self/environ 2>/dev/null; true").await;
    for (name, value) in host.environment() {
        // A PATH that consists only of these folders reveals nothing about the host. The sandbox may have the same
        // PATH.
        let is_common = |path: &str| path.split(':').all(|folder| PROGRAMS.contains(&folder));
        if name == "PATH" && value.to_str().is_some_and(is_common) {
            continue;
        }
        let pair = [name.as_encoded_bytes(), b"=", value.as_encoded_bytes()].concat();
        assert!(
            !memory_contains(environments.as_bytes(), &pair),
            "the sandbox can read the variable `{}` of the host",
            name.display()
        );
    }
    let arguments = sandbox.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    let data_dir = host.data_dir().to_str().expect("a path that is text");
    assert!(!arguments.contains(data_dir) && !arguments.contains("monstrum"), "{arguments}");
}

pub async fn only_harmless_devices_exist(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let allowed = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr",
        "mqueue", "console", "core",
    ];
    let devices = sandbox.text("ls /dev").await;
    for device in devices.lines() {
        assert!(allowed.contains(&device), "/dev/{device}");
    }
    for device in ["null", "zero", "full", "random", "urandom"] {
        sandbox.text(format!("[ -c /dev/{device} ] && head -c 1 /dev/{device} >/dev/null")).await;
    }
    let output =
        sandbox.exec(ExecRequest::new("find / -xdev \\( -type b -o -type c \\) -not -path '/dev/*' | wc -l")).await;
    assert_eq!(output.stdout.text.trim_end(), "0", "a device elsewhere");
}

/// Each sandbox needs separate device files, because locks, watches and times of a file are visible to every process
/// that has the file open.
pub async fn devices_are_not_shared(subject: &Subject) {
    let (first, second) = (subject.sandbox().await, subject.sandbox().await);
    let files =
        "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /proc/kcore /proc/keys /proc/timer_list";
    let lock = format!("for f in {files}; do exec {{fd}}<$f && flock -n $fd; done 2>/dev/null; touch held; sleep 60");
    first.start(&lock).await;
    eventually("the locks are held", Duration::from_secs(10), async || first.read("held").await.is_ok()).await;
    let taken = first.text("flock -n /dev/full true && echo free || echo held").await;
    assert_eq!(taken, "held", "a lock has no effect in the sandbox that holds it");
    let look = format!("for f in {files}; do [ -r $f ] && ! flock -n $f true 2>/dev/null && echo $f; done; true");
    assert_eq!(second.text(look).await.replace("/dev/tty", "").trim(), "", "a lock of another sandbox has an effect");
    if subject.host.is_some() {
        let before = modified("/dev/null");
        first.text("touch -d 2001-02-03 /dev/null").await;
        assert_eq!(modified("/dev/null"), before, "a file of the host was changed");
    }
}

fn modified(path: &str) -> std::time::SystemTime {
    std::fs::metadata(path).and_then(|found| found.modified()).expect("the host has it")
}

pub async fn state_of_the_host_is_invisible(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for path in ["pressure/memory", "pressure/cpu", "buddyinfo", "schedstat", "softirqs", "swaps", "vmstat"] {
        let path = format!("/proc/{path}");
        let output = sandbox.run(format!("cat {path} 2>/dev/null | wc -c")).await;
        assert_eq!(output.stdout.text.trim(), "0", "{path} reveals the host");
    }
    assert_eq!(sandbox.text("cat /proc/loadavg /proc/sys/fs/file-nr").await, "0.00 0.00 0.00 1/1 1\n0\t0\t0");
    assert_eq!(sandbox.text("grep -c '^cpu[0-9]' /proc/stat").await, sandbox.text("nproc").await);
    assert_eq!(sandbox.text("grep -E '^(ctxt|processes|intr) [^0]' /proc/stat || echo none").await, "none");
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let other = subject.sandbox().await;
    let own = sandbox.text(format!("cat {boot_id}")).await;
    assert_ne!(own, other.text(format!("cat {boot_id}")).await, "two sandboxes can detect that they share a host");
    let Some(_) = &subject.host else { return };
    assert_ne!(own, std::fs::read_to_string(boot_id).expect("the host has it").trim());
    let memory = std::fs::read_to_string("/proc/meminfo").expect("the host has it");
    let total = memory.lines().next().expect("a line").to_owned();
    assert!(
        !sandbox.text("cat /proc/meminfo").await.contains(&total),
        "the sandbox can see the memory size of the host"
    );
}
