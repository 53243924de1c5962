//! Programs that are not written for a sandbox.

use std::time::Duration;

use super::{Subject, eventually};
use crate::{EXEC_TIMEOUT_MAX, ExecRequest, Limits};

pub async fn programs_see_the_size_of_the_sandbox(subject: &Subject) {
    let limits = Limits { cpu_millis: 1000, memory_mib: 640, ..Subject::small() };
    let sandbox = subject.sandbox_under(limits).await;
    assert_eq!(sandbox.text("nproc").await, "1");
    assert_eq!(sandbox.text("free -m | awk '/^Mem:/ { print $2 }'").await, "640");
    assert_eq!(sandbox.text("grep -c ^processor /proc/cpuinfo").await, "1");
    assert_eq!(sandbox.python("import os; print(os.cpu_count())").await, "1");
    if subject.provider.capabilities().is_ok_and(|has| has.programs.iter().any(|program| program == "node")) {
        let heap = "node -p 'Math.round(v8.getHeapStatistics().heap_size_limit / 2 ** 20)'";
        let heap: u64 = sandbox.text(heap).await.parse().expect("a number");
        assert!(heap < 640, "node uses a heap of up to {heap} MiB, but the sandbox has only 640 MiB");
    }
    sandbox.provider.stop(&sandbox.name).await.expect("it stops");
    sandbox.ensure(Limits { cpu_millis: 1500, ..limits }).await;
    assert_eq!(sandbox.text("nproc; cat /sys/devices/system/cpu/online").await, "2\n0-1");
}

/// Tests the program `man` only, because the manual pages need not be installed.
pub async fn manuals_can_be_looked_up(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let output = sandbox.run("command -v man >/dev/null || exit 0; man no-such-page-of-ours").await;
    assert!(!output.stderr.text.contains("configuration"), "{output:?}");
}

/// Compares the time with a start of the same program, because a start takes seconds on a busy machine. A single retry
/// would take longer than several starts.
pub async fn package_managers_fail_at_once_without_a_network(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for (program, start, command) in [
        ("pip", "pip --version", "pip install no-such-package-of-ours"),
        ("apt-get", "apt-get --version", "apt-get update"),
        ("npm", "npm --version", "npm install no-such-package-of-ours"),
    ] {
        if sandbox.run(format!("command -v {program}")).await.exit_code != 0 {
            continue;
        }
        let soonest = async |command: &str| {
            let mut soonest = Duration::MAX;
            for _ in 0..3 {
                let request = ExecRequest::new(command).with_timeout(Duration::from_secs(60));
                soonest = soonest.min(sandbox.exec(request).await.duration);
            }
            soonest
        };
        let (start, failed) = (soonest(start).await, soonest(command).await);
        assert!(
            failed < start * 4 + Duration::from_secs(1),
            "{program} took {failed:?} to fail, but only {start:?} to start"
        );
    }
}

/// Checks that no package manager retries a request, because each retry waits longer than the previous retry.
pub async fn package_managers_ask_once_without_a_network(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    // Records each request and never answers with success.
    let server = "
import socket
listener = socket.create_server(('127.0.0.1', 8123))
open('/workspace/ready', 'w').close()
while True:
    connection, _ = listener.accept()
    line = connection.recv(65536).split(b'\\r\\n')[0]
    with open('/workspace/asked', 'ab') as asked:
        asked.write(line + b'\\n')
    connection.sendall(b'HTTP/1.1 503 Unavailable\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n')
    connection.close()";
    sandbox.write("server.py", server).await.expect("it is written");
    sandbox.start("python3 server.py").await;
    eventually("it listens", Duration::from_secs(30), async || sandbox.read("ready").await.is_ok()).await;
    let url = "http://127.0.0.1:8123";
    sandbox.write("sources.list", &format!("deb [trusted=yes] {url}/debian ./\n")).await.expect("it is written");
    for (program, command) in [
        ("pip", format!("pip install --index-url {url}/simple no-such-package-of-ours")),
        (
            "apt-get",
            "apt-get update -o Dir::Etc::sourcelist=/workspace/sources.list -o Dir::Etc::sourceparts=-".to_owned(),
        ),
        ("npm", format!("npm install --registry {url} no-such-package-of-ours")),
    ] {
        if sandbox.run(format!("command -v {program}")).await.exit_code != 0 {
            continue;
        }
        sandbox.text("rm -f asked").await;
        let output = sandbox.exec(ExecRequest::new(command).with_timeout(EXEC_TIMEOUT_MAX)).await;
        let asked = sandbox.read("asked").await.unwrap_or_default();
        let mut lines: Vec<&str> = asked.lines().collect();
        let count = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert!(count > 0 && lines.len() == count, "{program} repeated a request: {asked}{output:?}");
    }
}
