//! The contract suite with the embedded provider, and tests of this provider only. Needs root.
#![cfg(target_os = "linux")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monstrum_sandbox::contract::{self, LocalHost, Subject};
use monstrum_sandbox::{ExecRequest, Limits, SandboxError, SandboxName, SandboxProvider, Spec};
use monstrum_sandbox_embedded::{Embedded, EmbeddedOptions, TemplateKind, TotalSettings};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

fn options(folder: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(folder);
    options.program = Some(env!("CARGO_BIN_EXE_sandbox-init").into());
    options
}

/// The variable with the path of a built template for the contract suite. Example: `sandbox/template/built` of a data
/// folder.
const TEMPLATE: &str = "MONSTRUM_TEST_TEMPLATE";

/// Starts a provider with its own temporary folder.
#[expect(clippy::disallowed_methods, reason = "an option of this test alone is not a setting")]
async fn subject() -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut options = options(folder.path());
    if let Some(built) = std::env::var_os(TEMPLATE) {
        let templates = folder.path().join("template");
        std::fs::create_dir(&templates).expect("it is made");
        std::os::unix::fs::symlink(built, templates.join("built")).expect("it is made");
        options.template = TemplateKind::Built;
    }
    let provider = Embedded::start(options).await.expect("this machine can run sandboxes");
    Subject { provider: Arc::new(provider), host: Some(LocalHost::new(folder.path())), keep: Box::new(folder) }
}

monstrum_sandbox::contract_suite!(subject());

#[tokio::test]
async fn data_folder_in_usr_is_refused() {
    let _turn = contract::in_parallel().await;
    let folder = tempfile::tempdir_in("/usr/local").expect("root can write to /usr/local");
    let refused = Embedded::start(options(folder.path())).await.err().expect("it is refused");
    assert!(refused.to_string().contains("is in /usr"), "{refused}");
}

#[tokio::test]
async fn start_that_could_fill_the_disk_is_refused() {
    let _turn = contract::in_parallel().await;
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let disk = c"size=600m";
    mount("disk", folder.path(), "tmpfs", MountFlags::empty(), disk).expect("root can mount");
    let refused = async {
        let provider = Embedded::start(options(folder.path())).await?;
        let limits = Limits { disk_mib: 256, ..Subject::small() };
        let name: SandboxName = "ms-1-2".parse()?;
        let refused = provider.ensure_running(&name, Spec { limits, ..Spec::default() }).await;
        let left = provider.list().await?;
        Ok::<_, SandboxError>((refused, left))
    };
    let refused = refused.await;
    unmount(folder.path(), UnmountFlags::DETACH).expect("it can be unmounted");
    let (refused, left) = refused.expect("the provider itself is ready");
    assert!(matches!(refused, Err(SandboxError::Exhausted(_))), "{refused:?}");
    assert_eq!(left, [], "the failed creation left files behind");
}

#[tokio::test]
async fn private_files_in_usr_stay_private() {
    let _turn = contract::in_parallel().await;
    let usr = tempfile::tempdir_in("/usr/local").expect("root can write to /usr/local");
    let make = |path: &str, mode: u32| {
        let path = usr.path().join(path);
        if path.extension().is_some() {
            std::fs::write(&path, "of the host").expect("it is written");
        } else {
            std::fs::create_dir_all(&path).expect("it is made");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is set");
    };
    for folder in ["", "open", "closed"] {
        make(folder, 0o755);
    }
    for (file, mode) in
        [("open/all.txt", 0o644), ("open/own.key", 0o600), ("open/group.key", 0o640), ("closed/all.txt", 0o644)]
    {
        make(file, mode);
    }
    make("closed", 0o700);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let provider = Embedded::start(options(folder.path())).await.expect("this machine can run sandboxes");
    let name: SandboxName = "ms-1-2".parse().expect("a name");
    let spec = Spec { limits: Subject::small(), ..Spec::default() };
    let run = async |command: &str| {
        let command = format!("cd {}; {command}", usr.path().display());
        let output = provider.exec(&name, ExecRequest::new(command), None).await.expect("it is run");
        output.stdout.text + &output.stderr.text
    };
    provider.ensure_running(&name, spec).await.expect("it starts");
    assert_eq!(
        run("find . | sort; cat open/*; stat -c %a.%u open").await,
        ".\n./open\n./open/all.txt\nof the host755.0\n"
    );
    // The sandbox can replace the hidden files, and the replacements are kept.
    assert_eq!(
        run("mkdir closed; echo mine | tee open/own.key closed/own; rm open/all.txt; ls open closed").await,
        "mine\nclosed:\nown\n\nopen:\nown.key\n"
    );
    provider.stop(&name).await.expect("it stops");
    provider.ensure_running(&name, spec).await.expect("it starts again");
    assert_eq!(
        run("find . -type f | sort; cat open/own.key; rm -r open closed; ls").await,
        "./closed/own\n./open/own.key\nmine\n"
    );
    provider.stop(&name).await.expect("it stops");
    std::fs::remove_file(folder.path().join("hidden")).expect("the list is there");
    let refused = provider.ensure_running(&name, spec).await;
    assert!(
        matches!(refused, Err(SandboxError::Unavailable(_))),
        "a start without the list was not rejected: {refused:?}"
    );
    let intact = std::fs::read_to_string(usr.path().join("open/own.key")).expect("it is there");
    assert_eq!(intact, "of the host");
    provider.delete(&name).await.expect("it goes");
}

#[tokio::test]
async fn number_of_drained_streams_is_limited() {
    let _turn = contract::in_parallel().await;
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let provider = Embedded::start(options(folder.path())).await.expect("this machine can run sandboxes");
    let name: SandboxName = "ms-1-2".parse().expect("a name");
    let limits = Limits { processes: 1024, memory_mib: 512, ..Subject::small() };
    provider.ensure_running(&name, Spec { limits, ..Spec::default() }).await.expect("it starts");
    let run = async |command: String| provider.exec(&name, ExecRequest::new(command), None).await.expect("it is run");
    for number in 1..=70 {
        // The loop ends when its pipe is no longer read.
        run(format!(
            "(trap '' PIPE; exec 2>/dev/null; while echo here; do sleep 0.2; done; echo {number} >>/workspace/ended) &"
        ))
        .await;
    }
    let ended = async || run("sort -n /workspace/ended 2>/dev/null | tr '\\n' ' '".to_owned()).await.stdout.text;
    let until = Instant::now() + Duration::from_secs(30);
    while ended().await.split(' ').count() <= 6 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ended().await, "1 2 3 4 5 6 ", "streams other than the oldest streams were closed");
    provider.delete(&name).await.expect("it goes");
}

/// Counts the processes on this machine with these arguments.
fn running(words: &str) -> usize {
    let words = words.replace(' ', "\0") + "\0";
    let entries = std::fs::read_dir("/proc").expect("/proc can be listed").flatten();
    let arguments = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    arguments.filter(|arguments| *arguments == words.as_bytes()).count()
}

#[tokio::test]
async fn all_sandboxes_together_have_limits() {
    let _turn = contract::in_parallel().await;
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut options = options(folder.path());
    options.totals = TotalSettings { memory_mib: Some(320), processes: Some(96) };
    let provider = Embedded::start(options).await.expect("this machine can run sandboxes");
    let names: [SandboxName; 2] = ["ms-1-1", "ms-1-2"].map(|name| name.parse().expect("a name"));
    let spec = Spec { limits: Limits { memory_mib: 256, ..Subject::small() }, ..Spec::default() };
    let run = async |name: &SandboxName, command: &str| {
        let request = ExecRequest::new(command).with_timeout(Duration::from_secs(30));
        provider.exec(name, request, None).await.expect("it is run")
    };
    for name in &names {
        provider.ensure_running(name, spec).await.expect("it starts");
        // The program is in Python because a shell retries each failed fork for seconds.
        run(
            name,
            "python3 -c 'import subprocess\nfor _ in range(80):\n  try: subprocess.Popen([\"sleep\", \"86419\"])\n  except OSError: break'",
        )
        .await;
    }
    let processes = running("sleep 86419");
    assert!(
        (40..=96).contains(&processes),
        "two sandboxes together have {processes} processes, outside the expected range"
    );
    for name in &names {
        provider.stop(name).await.expect("it stops");
        provider.ensure_running(name, spec).await.expect("it starts");
    }
    let hoard =
        "python3 -c 'import time; held = bytearray(190 << 20); open(\"/workspace/full\", \"w\"); time.sleep(20)'";
    let (first, second) = tokio::join!(run(&names[0], hoard), run(&names[1], hoard));
    let ended = [first, second].iter().filter(|output| output.exit_code == 137).count();
    assert!(ended >= 1, "two sandboxes together used 380 MiB, but the limit is 320 MiB");
    for name in &names {
        provider.delete(name).await.expect("it goes");
    }
}
