//! The embedded provider, held to the contract of every provider. Needs root.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::Arc;

use monstrum_sandbox::contract::{LocalHost, Subject};
use monstrum_sandbox::embedded::{Embedded, EmbeddedOptions};
use monstrum_sandbox::{Limits, SandboxError, SandboxName, SandboxProvider, Spec};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

fn options(folder: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(folder);
    options.program = Some(env!("CARGO_BIN_EXE_sandbox-init").into());
    options
}

/// A provider with a folder of its own.
async fn subject() -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let options = options(folder.path());
    let provider = Embedded::start(options).await.expect("this machine can run sandboxes");
    Subject { provider: Arc::new(provider), host: Some(LocalHost::new(folder.path())), keep: Box::new(folder) }
}

monstrum_sandbox::contract_suite!(subject());

#[tokio::test]
async fn data_that_every_sandbox_could_read_is_refused() {
    let folder = tempfile::tempdir_in("/usr/local").expect("root can write to /usr/local");
    let refused = Embedded::start(options(folder.path())).await.err().expect("it is refused");
    assert!(refused.to_string().contains("lies in /usr"), "{refused}");
}

#[tokio::test]
async fn none_starts_that_could_fill_the_disk() {
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
    assert_eq!(left, [], "nothing half made stays");
}
