//! The embedded provider, held to the contract of every provider. Needs root.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use monstrum_sandbox::contract::{LocalHost, Subject};
use monstrum_sandbox::embedded::{Embedded, EmbeddedOptions};

/// A provider with a folder of its own.
async fn subject() -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut options = EmbeddedOptions::new(folder.path());
    options.program = Some(env!("CARGO_BIN_EXE_sandbox-init").into());
    let provider = Embedded::start(options).await.expect("this machine can run sandboxes");
    Subject { provider: Arc::new(provider), host: Some(LocalHost::new(folder.path())), keep: Box::new(folder) }
}

monstrum_sandbox::contract_suite!(subject());
