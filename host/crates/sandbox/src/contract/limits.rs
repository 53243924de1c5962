//! The limits of one sandbox, with commands that exceed them.

use std::time::{Duration, Instant};

use super::{Subject, eventually, python, random_hex};
use crate::{ExecRequest, Limits, SandboxError, Termination};

pub async fn memory_limit_ends_the_command_only(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { memory_mib: 128, ..Subject::small() }).await;
    for command in ["exec python3 -c 'x = bytearray(10**9)'", "head -c 1G /dev/zero | tail"] {
        let output = sandbox.run(command).await;
        assert_eq!((output.exit_code, output.termination), (137, Termination::OutOfMemory), "{command}: {output:?}");
        assert_eq!(sandbox.text("echo still here").await, "still here");
    }
    let small = sandbox.python("print(len(bytearray(32 * 2**20)))").await;
    assert_eq!(small, "33554432", "a program within the memory limit failed");
}

pub async fn killed_is_not_out_of_memory(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { memory_mib: 128, ..Subject::small() }).await;
    assert_eq!(sandbox.run("exec python3 -c 'x = bytearray(10**9)'").await.termination, Termination::OutOfMemory);
    assert_eq!(
        sandbox.run("kill -9 $$").await.termination,
        Termination::Signalled,
        "an earlier out-of-memory kill was reported for a later command"
    );
}

pub async fn unmapped_memory_ends_the_command_only(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { memory_mib: 128, ..Subject::small() }).await;
    sandbox.start("sleep 4343").await;
    let program = "import os; fd = os.memfd_create('x'); piece = b'x' * 65536\nwhile True: os.write(fd, piece)";
    for _ in 0..3 {
        let output = sandbox.run(format!("exec python3 -S -I -c \"{program}\"")).await;
        assert_eq!((output.exit_code, output.termination), (137, Termination::OutOfMemory), "{output:?}");
        assert_eq!(sandbox.processes("sleep 4343").await, 1, "a background job was ended");
    }
}

/// A program that sends data to its own sockets without reading it, and prints the growth of the socket buffers in MiB.
const FILL_SOCKETS: &str = "
import socket, sys
def pages(kind):
    for line in open('/proc/net/sockstat'):
        words = line.split()
        if words[0] == kind + ':':
            return int(words[words.index('mem') + 1])
def tcp():
    client = socket.create_connection(listener.getsockname(), timeout=2)
    server, _ = listener.accept()
    client.setblocking(False)
    held.extend([client, server])
    while client.send(piece) > 0: pass
def udp():
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(('127.0.0.1', 0))
    held.append(receiver)
    receiver.setblocking(False)
    for _ in range(400): receiver.sendto(piece[:1024], receiver.getsockname())
held, piece = [], b'x' * 65536
listener = socket.create_server(('127.0.0.1', 0))
for kind, fill, most in (('TCP', tcp, 150), ('UDP', udp, 1500)):
    before = pages(kind)
    for _ in range(most):
        try:
            fill()
        except OSError:
            pass
        if pages(kind) - before > 200 * 256:
            break
    print((pages(kind) - before) // 256)
    held.clear()
";

/// The kernel counts socket buffers for the whole machine: a sandbox that fills them stops the network of all other
/// processes.
pub async fn buffers_of_sockets_are_limited(subject: &Subject) {
    if subject.is_degraded("sockets") {
        return;
    }
    let sandbox = subject.sandbox_under(Limits { memory_mib: 128, ..Subject::small() }).await;
    let grown = sandbox.python(FILL_SOCKETS).await;
    for (kind, mib) in ["TCP", "UDP"].into_iter().zip(grown.lines()) {
        let mib: i64 = mib.parse().expect("a number");
        assert!(mib < 96, "the buffers of {kind} grew by {mib} MiB, but the sandbox has only 128 MiB of memory");
    }
    assert_eq!(grown.lines().count(), 2, "{grown}");
}

pub async fn open_files_are_limited(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import resource
held = []
try:
    while len(held) < 100000: held.append(open('/dev/null'))
except OSError as error:
    print(error.strerror)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
    print('raised')
except (OSError, ValueError):
    print('final')";
    assert_eq!(sandbox.python(program).await, "Too many open files\n(4096, 4096)\nfinal");
    if subject.host.is_some() && !subject.is_degraded("open_files") {
        let read = |path: &str| std::fs::read_to_string(path).expect("the host has it");
        let most: u64 = read("/proc/sys/fs/file-max").trim().parse().expect("a number");
        let memory = read("/proc/meminfo");
        let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it is named");
        let kib: u64 = memory.trim().trim_end_matches(" kB").parse().expect("a number");
        // Each open file costs its sandbox at least 192 bytes of memory, and the host keeps at least an eighth of its
        // memory.
        assert!(
            most >= kib * 1024 / 8 * 7 / 192,
            "the host runs out of open files before the sandbox runs out of memory"
        );
    }
}

pub async fn tmp_size_is_limited(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { tmp_mib: 16, ..Subject::small() }).await;
    let full = sandbox.run("head -c 64M /dev/zero >/tmp/big").await;
    assert!(full.exit_code != 0 && full.stderr.text.contains("No space left"), "{full:?}");
    let size: u64 = sandbox.text("stat -c %s /tmp/big").await.parse().expect("a size");
    assert!(size > 8 << 20 && size <= 16 << 20, "{size} bytes");
    sandbox.text("rm /tmp/big && head -c 8M /dev/zero >/tmp/small && rm /tmp/small").await;
    let inodes = python("for n in range(400000): open('/tmp/%d' % n, 'w').close()");
    let many = sandbox.run(inodes).await;
    assert_ne!(many.exit_code, 0, "the number of empty files in memory is not limited");
}

pub async fn other_memory_file_systems_are_limited(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { memory_mib: 128, tmp_mib: 16, ..Subject::small() }).await;
    for folder in ["/dev/shm", "/dev", "/run", "/var/tmp", "/dev/mqueue"] {
        let output =
            sandbox.run(format!("head -c 1G /dev/zero >{folder}/big; code=$?; rm -f {folder}/big; exit $code")).await;
        assert_ne!(output.exit_code, 0, "1 GiB could be written to {folder}");
    }
    assert_eq!(sandbox.text("echo still here").await, "still here");
}

pub async fn fork_bomb_is_contained(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let other = subject.sandbox().await;
    let bomb = ExecRequest::new("bomb() { bomb | bomb & }; bomb; sleep 1").with_timeout(Duration::from_secs(10));
    let exec = sandbox.exec(bomb);
    let beside = async {
        let started = Instant::now();
        assert_eq!(other.text("echo fine").await, "fine");
        assert!(started.elapsed() < Duration::from_secs(30), "another sandbox was blocked by the fork bomb");
    };
    tokio::join!(exec, beside);
    let next = tokio::time::timeout(Duration::from_secs(30), sandbox.text("echo still here")).await;
    assert_eq!(next.expect("the next command is run in time"), "still here");
    eventually("all processes of the fork bomb have ended", Duration::from_secs(30), async || {
        let count: usize = sandbox.text("ls -d /proc/[0-9]* | wc -l").await.parse().expect("a number");
        count < 10
    })
    .await;
}

pub async fn processes_of_one_command_are_limited(subject: &Subject) {
    subject.must_enforce("processes");
    let sandbox = subject.sandbox_under(Limits { processes: 64, processes_per_exec: 16, ..Subject::small() }).await;
    let program = "
import os, signal, time
children = []
try:
    while len(children) < 60:
        child = os.fork()
        if child == 0:
            time.sleep(300)
        children.append(child)
except OSError:
    pass
print(len(children))
for child in children: os.kill(child, signal.SIGKILL)";
    let count: usize = sandbox.python(program).await.parse().expect("a number");
    // The shell and the Python program count towards the limit as well.
    assert!((8..16).contains(&count), "a command with a limit of 16 processes started {count} further processes");
    assert_eq!(sandbox.text("echo next").await, "next");
}

pub async fn processes_of_a_sandbox_are_limited(subject: &Subject) {
    subject.must_enforce("processes");
    let sandbox = subject.sandbox_under(Limits { processes: 32, processes_per_exec: 24, ..Subject::small() }).await;
    let marker = format!("86400{}", u16::from_str_radix(&random_hex(2), 16).expect("hex digits"));
    let command = format!("for i in $(seq 1 12); do sleep {marker} & done 2>/dev/null");
    for _ in 0..4 {
        // The last commands may fail to start, or may start and then fail to fork.
        let hoard = ExecRequest::new(&command).with_timeout(Duration::from_secs(5));
        match sandbox.provider.exec(&sandbox.name, hoard, None).await {
            Ok(_) | Err(SandboxError::Exhausted(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    if let Some(host) = &subject.host {
        let count = host.processes(&marker);
        assert!((12..=32).contains(&count), "a sandbox with a limit of 32 processes has {count} processes");
    }
    let spec = crate::Spec { limits: Subject::small(), network: crate::Network::None };
    sandbox.provider.stop(&sandbox.name).await.expect("it is stopped, full as it is");
    sandbox.provider.ensure_running(&sandbox.name, spec).await.expect("it runs again");
    assert_eq!(sandbox.text("echo next").await, "next");
}

pub async fn processor_quota_is_enforced(subject: &Subject) {
    subject.must_enforce("cpu");
    let sandbox = subject.sandbox_under(Limits { cpu_millis: 500, ..Subject::small() }).await;
    let program = "
import os, time
started = time.monotonic()
children = []
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() - started < 3: pass
        os._exit(0)
for _ in range(2): os.wait()
used = os.times()
print((used.children_user + used.children_system) / (time.monotonic() - started))";
    let share: f64 = sandbox.python(program).await.parse().expect("a number");
    assert!(share < 0.65, "two loops used {share} of a processor, but the limit is 0.5");
    assert!(share > 0.2, "two loops used only {share} of a processor, but the limit is 0.5");
}

pub async fn disk_is_limited_and_deleting_frees_space(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { disk_mib: 96, ..Subject::small() }).await;
    for folder in ["/workspace", "/root", "/usr/local", "/etc", "/var"] {
        let full = sandbox.run(format!("head -c 256M /dev/zero >{folder}/big")).await;
        assert!(full.exit_code != 0 && full.stderr.text.contains("No space left"), "{folder}: {full:?}");
        let size: u64 = sandbox.text(format!("stat -c %s {folder}/big")).await.parse().expect("a size");
        assert!(size > 32 << 20 && size <= 96 << 20, "{folder} accepted {size} bytes");
        let error = sandbox.write("/workspace/more", &"a".repeat(1 << 20)).await.expect_err("the disk is full");
        assert!(matches!(error, SandboxError::Exhausted(_)), "{error:?}");
        sandbox.text(format!("rm {folder}/big")).await;
        sandbox.text("head -c 32M /dev/zero >/workspace/again && rm /workspace/again").await;
    }
    assert_eq!(
        sandbox.names("/workspace").await.expect("it can be listed"),
        ["lost+found"; 0],
        "an incomplete file was left"
    );
}

pub async fn inodes_are_limited(subject: &Subject) {
    let sandbox = subject.sandbox_under(Limits { disk_mib: 64, ..Subject::small() }).await;
    let program = "
import os, shutil
os.mkdir('/workspace/many')
made = 0
try:
    while made < 400000:
        open('/workspace/many/%d' % made, 'w').close()
        made += 1
    print('endless')
except OSError as error:
    print(error.strerror)
shutil.rmtree('/workspace/many')
open('/workspace/again', 'w').close()";
    let request = ExecRequest::new(python(program)).with_timeout(Duration::from_secs(120));
    let output = sandbox.exec(request).await;
    assert_eq!(output.stdout.text.trim_end(), "No space left on device", "{output:?}");
}

pub async fn sandbox_without_free_inodes_is_resumed(subject: &Subject) {
    let limits = Limits { disk_mib: 64, ..Subject::small() };
    let sandbox = subject.sandbox_under(limits).await;
    let fill = "
import os
os.makedirs('/workspace/many', exist_ok=True)
made = 0
try:
    while True:
        open('/workspace/many/%d' % made, 'x').close()
        made += 1
except FileExistsError:
    pass
except OSError as error:
    print(error.strerror)";
    for _ in 0..2 {
        let full = sandbox.exec(ExecRequest::new(python(fill)).with_timeout(Duration::from_secs(120))).await;
        assert_eq!(full.stdout.text.trim_end(), "No space left on device", "{full:?}");
        sandbox.provider.stop(&sandbox.name).await.expect("it stops");
        sandbox.ensure(limits).await;
        assert_eq!(sandbox.text("echo still here").await, "still here");
        sandbox.provider.remove(&sandbox.name, "many").await.expect("files can be removed");
        sandbox.text("echo room >again && rm again").await;
    }
}

pub async fn resume_applies_new_limits(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let hoard = "exec python3 -c 'print(len(bytearray(200 * 2**20)))'";
    assert_eq!(sandbox.text(hoard).await, "209715200");
    sandbox.provider.stop(&sandbox.name).await.expect("it is stopped");
    sandbox.ensure(Limits { memory_mib: 96, ..Subject::small() }).await;
    assert_eq!(sandbox.run(hoard).await.termination, Termination::OutOfMemory);
}

pub async fn crash_leaves_no_dump(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    assert_eq!(sandbox.text("ulimit -c; ulimit -Hc").await, "0\n0");
    let crash = sandbox.run("kill -SEGV $$").await;
    assert_eq!((crash.exit_code, crash.termination), (139, Termination::Signalled));
}

pub async fn kernel_counters_are_per_sandbox(subject: &Subject) {
    let (greedy, other) = (subject.sandbox().await, subject.sandbox().await);
    let take_all = "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nheld = []\n\
                    while libc.inotify_init() >= 0: pass\n\
                    try:\n    while True: held.append(os.openpty())\nexcept OSError: pass\n\
                    open('/workspace/full', 'w').close()\ntime.sleep(600)";
    greedy.start(&python(take_all)).await;
    let is_full = async || greedy.run("[ -e /workspace/full ]").await.exit_code == 0;
    eventually("all resources of the first sandbox are used up", Duration::from_secs(30), is_full).await;
    let take_some = "import ctypes, os\nlibc = ctypes.CDLL(None)\n\
                     assert all(libc.inotify_init() >= 0 for _ in range(16)), 'inotify'\n\
                     held = [os.openpty() for _ in range(16)]";
    other.python(take_some).await;
}
