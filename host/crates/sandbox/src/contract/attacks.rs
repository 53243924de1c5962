//! Attempts to leave a sandbox: kernel settings, namespaces, mounts, system calls.

use super::{Subject, python, random_hex};

/// Files that change settings of the kernel, which all processes of the host share.
const KNOBS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/mmap_min_addr",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/fs/protected_symlinks",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/acpi/wakeup",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/security/apparmor/.load",
    "/sys/power/state",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/block/vda/queue/scheduler",
];

/// Files that reveal the host's kernel or memory.
const TELLTALES: &[&str] = &[
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/kpagecount",
    "/proc/iomem",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/1/mem",
    "/proc/1/maps",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/vda",
    "/dev/sda",
    "/dev/loop0",
    "/dev/loop-control",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/net/tun",
    "/sys/firmware/acpi/tables/DSDT",
    "/sys/kernel/debug/sleep_time",
    "/sys/kernel/notes",
];

pub async fn kernel_knobs_cannot_be_turned(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let before = subject.host.as_ref().map(|_| knob_contents());
    for knob in KNOBS {
        // The write does not change the value, so that the test machine is not affected if the sandbox allows the
        // write.
        let output =
            sandbox.run(format!("v=$(cat {knob} 2>/dev/null || echo 1); [ -e {knob} ] && echo \"$v\" >{knob}")).await;
        assert_ne!(output.exit_code, 0, "the sandbox can write {knob}");
        let chmod = sandbox.run(format!("chmod 666 {knob}")).await;
        assert_ne!(chmod.exit_code, 0, "the sandbox can change the mode of {knob}");
    }
    assert_eq!(before, subject.host.as_ref().map(|_| knob_contents()), "a kernel setting of the host was changed");
    let open = sandbox.text("find /proc/sys /sys -type f -writable 2>/dev/null | head -n 3; true").await;
    for path in open.lines() {
        let write = sandbox.run(format!("exec 3<>{path}")).await;
        assert_ne!(write.exit_code, 0, "the sandbox can open {path} for writing");
    }
}

/// Returns the contents of all knobs, except files whose contents change even if no process writes to them.
fn knob_contents() -> Vec<Option<Vec<u8>>> {
    let is_steady = |knob: &&&str| !knob.contains("drop_caches") && !knob.contains("cgroup.procs");
    KNOBS.iter().filter(is_steady).map(|knob| std::fs::read(knob).ok()).collect()
}

pub async fn kernel_memory_and_state_cannot_be_read(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for path in TELLTALES {
        let output = sandbox.run(format!("timeout 2 head -c 64 {path} 2>/dev/null | wc -c")).await;
        assert_eq!(output.stdout.text.trim(), "0", "the sandbox can read {path}");
    }
    let agents = sandbox
        .text("find / -xdev -name release_agent 2>/dev/null; find /sys -name release_agent 2>/dev/null; true")
        .await;
    assert_eq!(agents, "", "the sandbox can see the release agent of a control group");
    let log = sandbox.run("dmesg").await;
    assert_ne!(log.exit_code, 0, "the sandbox can read the log of the kernel");
}

pub async fn nested_namespaces_are_denied(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
flags = {'user': 0x10000000, 'mount': 0x20000, 'pid': 0x20000000, 'net': 0x40000000, 'ipc': 0x8000000, 'uts': 0x4000000, 'cgroup': 0x2000000, 'time': 0x80}
for name, flag in flags.items():
    for also in (0, 0x10000000):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if libc.unshare(flag | also) == 0 else 1)
        if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
            print('unshared', name, also)
print('tried')";
    assert_eq!(sandbox.python(program).await, "tried");
    for command in ["unshare -Ur true", "unshare -Urm true", "unshare -Urn true", "unshare -Urpf true"] {
        assert_ne!(sandbox.run(command).await.exit_code, 0, "{command}");
    }
}

pub async fn mounts_are_denied(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let before = sandbox.text("cat /proc/self/mountinfo").await;
    for command in [
        "mount -t tmpfs none /mnt",
        "mount -t proc proc /mnt",
        "mount -t sysfs sysfs /mnt",
        "mount -t cgroup cgroup /mnt",
        "mount -t cgroup2 cgroup2 /mnt",
        "mount -t overlay overlay -o lowerdir=/usr:/etc /mnt",
        "mount --bind /proc/1/root /mnt",
        "mount --bind / /mnt",
        "mount --move /tmp /mnt",
        "mount -o remount,rw,bind /proc/sys",
        "mount -o remount,rw /",
        "mount --make-rshared /",
        "umount /proc/sys",
        "umount -l /proc",
        "umount -l /usr",
        "umount -l /tmp",
        "umount -l /workspace",
        "pivot_root / /mnt",
    ] {
        assert_ne!(sandbox.run(command).await.exit_code, 0, "{command}");
    }
    assert_eq!(sandbox.text("cat /proc/self/mountinfo").await, before);
}

pub async fn namespaces_of_the_init_cannot_be_joined(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in [name for name in os.listdir('/proc') if name.isdigit()]:
    try:
        kinds = os.listdir('/proc/%s/ns' % pid)
    except OSError:
        continue
    for kind in kinds:
        try:
            fd = os.open('/proc/%s/ns/%s' % (pid, kind), os.O_RDONLY)
        except OSError:
            continue
        if libc.setns(fd, 0) == 0:
            print('joined', pid, kind)
        for request in (0xb701, 0xb702):
            parent = libc.ioctl(fd, request)
            if parent >= 0 and libc.setns(parent, 0) == 0:
                print('joined a parent of', pid, kind)
        os.close(fd)
print('tried')";
    assert_eq!(sandbox.python(program).await, "tried");
}

pub async fn chroot_does_not_escape(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let marker = subject.host.as_ref().map(|host| host.plant());
    let path = marker.as_ref().map_or("/none".to_owned(), |markers| markers.paths[0].display().to_string());
    let program = format!(
        "
import os
os.makedirs('/workspace/jail', exist_ok=True)
root = os.open('/', os.O_RDONLY)
try:
    os.chroot('/workspace/jail')
except OSError:
    pass
for _ in range(64):
    os.chdir('..')
os.fchdir(root)
for _ in range(64):
    os.chdir('..')
try:
    os.chroot('.')
except OSError:
    pass
print(os.path.exists('{path}'))"
    );
    assert_eq!(sandbox.python(&program).await, "False");
}

pub async fn init_cannot_be_touched(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.run("kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1; true").await;
    assert_eq!(sandbox.text("echo still here").await, "still here");
    for path in ["/proc/1/mem", "/proc/1/environ", "/proc/1/exe", "/proc/1/auxv", "/proc/1/stack"] {
        let output = sandbox.run(format!("head -c 4096 {path} 2>/dev/null | grep -ac monstrum")).await;
        assert_eq!(output.stdout.text.trim(), "0", "{path} reveals the host");
    }
    // No process has memory at this address, so the call must fail because of the permission and not because of the
    // address.
    let program = "
import ctypes, errno
class Vector(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(8)
own, other = Vector(ctypes.addressof(buffer), 8), Vector(16, 8)
for call in (libc.process_vm_readv, libc.process_vm_writev):
    result = call(1, ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
    print(result, ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.ESRCH))";
    assert_eq!(sandbox.python(program).await, "-1 True\n-1 True");
    for write in ["echo x >/proc/1/mem", "echo 0 >/proc/1/oom_score_adj", "echo x >/proc/1/comm", "exec 3>/proc/1/exe"]
    {
        assert_ne!(sandbox.run(write).await.exit_code, 0, "{write}");
    }
}

pub async fn killing_everything_kills_only_the_sandbox(subject: &Subject) {
    let (sandbox, other) = (subject.sandbox().await, subject.sandbox().await);
    other.start("sleep 4242").await;
    // The signal may end the command itself and even its own sandbox, but no other sandbox.
    let killed = sandbox.provider.exec(&sandbox.name, crate::ExecRequest::new("kill -9 -1; sleep 1"), None).await;
    assert!(killed.is_ok(), "{killed:?}");
    sandbox.ensure(Subject::small()).await;
    assert_eq!(sandbox.text("echo still here").await, "still here");
    assert_eq!(other.processes("sleep 4242").await, 1);
}

/// Privileged or dangerous system calls with their numbers on x86-64 and in the generic table of newer architectures.
/// The arguments are harmless even if a call is allowed.
const CALLS: &str = "
calls = {
    'mount': (165, 40, 0, 0, 0, 0, 0), 'umount2': (166, 39, b'/none', 0), 'pivot_root': (155, 41, b'/', b'/'),
    'fsopen': (430, 430, b'tmpfs', 0), 'open_tree': (428, 428, -100, b'/', 1), 'fspick': (433, 433, -100, b'/', 0),
    'move_mount': (429, 429, -100, b'/none', -100, b'/none', 0), 'mount_setattr': (442, 442, -100, b'/', 0, 0, 0),
    'setns': (308, 268, -1, 0), 'ptrace': (101, 117, 16, 1, 0, 0), 'kcmp': (312, 272, 1, 1, 0, 0, 0),
    'init_module': (175, 105, 0, 0, 0), 'finit_module': (313, 273, -1, b'', 0), 'delete_module': (176, 106, b'none', 0),
    'bpf': (321, 280, 0, 0, 0), 'perf_event_open': (298, 241, 0, 0, -1, -1, 0), 'userfaultfd': (323, 282, 0),
    'keyctl': (250, 219, 0, -3, 0), 'add_key': (248, 217, b'user', b'd', b'p', 1, -3), 'request_key': (249, 218, b'user', b'd', 0, 0),
    'io_uring_setup': (425, 425, 1, 0), 'io_uring_enter': (426, 426, -1, 0, 0, 0), 'io_uring_register': (427, 427, -1, 0, 0, 0),
    'kexec_load': (246, 104, 0, 0, 0, 0), 'reboot': (169, 142, 0, 0, 0, 0), 'swapon': (167, 224, b'/none', 0),
    'swapoff': (168, 225, b'/none'), 'acct': (163, 89, b'/none'), 'settimeofday': (164, 170, 0, 0),
    'clock_settime': (227, 112, 0, 0), 'clock_adjtime': (305, 266, 0, 0), 'open_by_handle_at': (304, 265, -1, 0, 0),
    'syslog': (103, 116, 3, 0, 0), 'quotactl': (179, 60, 0, 0, 0, 0), 'fanotify_init': (300, 262, 0, 0),
    'vhangup': (153, 58), 'lookup_dcookie': (212, 18, 0, 0, 0), 'move_pages': (279, 239, 1, 0, 0, 0, 0, 0),
    'pidfd_getfd': (438, 438, -1, 0, 0),
}";

pub async fn dangerous_system_calls_are_denied(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = format!(
        "
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
column = 0 if platform.machine() == 'x86_64' else 1
refused = (errno.EPERM, errno.EACCES, errno.ENOSYS)
{CALLS}
for name, (*numbers, ) in calls.items():
    number, arguments = numbers[column], numbers[2:]
    pid = os.fork()
    if pid == 0:
        arguments = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
        result = libc.syscall(ctypes.c_long(number), *arguments)
        os._exit(0 if result == -1 and ctypes.get_errno() in refused else ctypes.get_errno() or 255)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    if code > 0:
        print(name, errno.errorcode.get(code, 'went through'))
print('tried')"
    );
    assert_eq!(sandbox.python(&program).await, "tried");
}

/// Sends requests for which the kernel loads a module before it checks permissions.
pub async fn requests_that_load_code_are_denied(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(256)
def expect(name, result, expected):
    code = 0 if result >= 0 else ctypes.get_errno()
    if code not in expected:
        print(name, errno.errorcode.get(code, 'went through'))
# Types of IP: SEQPACKET, DCCP, PACKET, and unused ones.
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15):
        expect('type %d' % kind, libc.socket(family, kind | socket.SOCK_CLOEXEC, 0), (errno.ESOCKTNOSUPPORT,))
    expect('raw', libc.socket(family, socket.SOCK_RAW, 1), (errno.ESOCKTNOSUPPORT, errno.EPERM))
stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
for request in (0x8940, 0x8941, 0x8982, 0x8983, 0x89a0, 0x89a1, 0x89a2, 0x89a3):
    expect('ioctl %x' % request, libc.ioctl(stream.fileno(), request, buffer), (errno.EPERM, errno.ENOSYS))
terminal, _ = os.openpty()
for discipline in (0, 3, 27):
    number = ctypes.c_int(discipline)
    expect('discipline', libc.ioctl(terminal, 0x5423, ctypes.byref(number)), (errno.EPERM, errno.ENOSYS))
# Signatures, protocols above TCP and authentication, whose names the kernel makes names of modules of.
for option in (14, 31, 32, 38):
    expect('tcp %d' % option, libc.setsockopt(stream.fileno(), 6, option, buffer, 216), (errno.EPERM,))
socket.create_server(('127.0.0.1', 0)); socket.socket(socket.AF_INET, socket.SOCK_DGRAM); os.ttyname(terminal)
print('tried')";
    assert_eq!(sandbox.python(program).await, "tried");
}

/// Filters must be denied because the compiled filters of all processes share one limit of the host, and no control
/// group counts their memory.
pub async fn filters_cannot_be_attached(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import ctypes, errno, platform, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
rule = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
filter = Program(1, ctypes.addressof(rule))
def expect(name, result, expected):
    code = 0 if result >= 0 else ctypes.get_errno()
    if code not in expected:
        print(name, errno.errorcode.get(code, 'went through'))
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    probe = socket.socket(socket.AF_INET, kind)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for option in (26, 50, 51, 52):
        expect('option %d' % option, libc.setsockopt(probe.fileno(), 1, option, ctypes.byref(filter), 16), (errno.EPERM,))
number = 317 if platform.machine() == 'x86_64' else 277
expect('seccomp', libc.syscall(number, 1, 0, ctypes.byref(filter)), (errno.EINVAL,))
expect('prctl', libc.prctl(22, 2, ctypes.byref(filter), 0, 0), (errno.EINVAL,))
expect('a name', libc.prctl(15, b'name', 0, 0, 0), (0,))
print('tried')";
    assert_eq!(sandbox.python(program).await, "tried");
}

pub async fn devices_cannot_be_made(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for folder in ["/workspace", "/tmp", "/dev", "/root"] {
        for device in ["b 254 0", "b 8 0", "b 7 0", "c 1 1", "c 1 11", "c 10 200", "c 5 1"] {
            let output = sandbox.run(format!("mknod {folder}/made {device} && head -c 1 {folder}/made")).await;
            assert_ne!(output.exit_code, 0, "the sandbox can create and read the device {folder}/made {device}");
        }
    }
}

pub async fn privileges_are_bounded(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let status = sandbox.text("grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status").await;
    let forbidden = [
        ("linux_immutable", 9),
        ("net_admin", 12),
        ("sys_module", 16),
        ("sys_rawio", 17),
        ("sys_ptrace", 19),
        ("sys_pacct", 20),
        ("sys_admin", 21),
        ("sys_boot", 22),
        ("sys_nice", 23),
        ("sys_resource", 24),
        ("sys_time", 25),
        ("sys_tty_config", 26),
        ("mknod", 27),
        ("lease", 28),
        ("audit_control", 30),
        ("mac_override", 32),
        ("mac_admin", 33),
        ("syslog", 34),
        ("wake_alarm", 35),
        ("perfmon", 38),
        ("bpf", 39),
        ("checkpoint_restore", 40),
    ];
    for line in status.lines() {
        let (name, value) = line.split_once(":\t").expect("a name and a value");
        match name {
            "NoNewPrivs" => assert_eq!(value, "1"),
            "Seccomp" => assert_eq!(value, "2"),
            _ => {
                let set = u64::from_str_radix(value, 16).expect("hex digits");
                let held = forbidden.iter().find(|(_, bit)| set & (1 << bit) != 0);
                assert_eq!(held, None, "{name}: {value}");
            }
        }
    }
    assert_eq!(status.lines().count(), 7, "{status}");
}

pub async fn setuid_programs_gain_nothing(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let name = format!("marker-{}", random_hex(4));
    let command = format!(
        "cp /usr/bin/id /workspace/{name} && chmod 4755 /workspace/{name} && \
         setpriv --reuid 1 --regid 1 --clear-groups /workspace/{name} -u"
    );
    let output = sandbox.run(command).await;
    assert_ne!(output.stdout.text.trim(), "0", "a program with the set-user-id bit made its caller root");
    let program = python("import os; os.setuid(70000)");
    assert_ne!(sandbox.run(program).await.exit_code, 0, "the sandbox can use an id outside its range");
}
