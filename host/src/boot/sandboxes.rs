//! Which provider the sandboxes of this server have.

use std::sync::Arc;

use monstrum_sandbox::{SandboxError, SandboxProvider};
use monstrum_types::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::data::Data;
use crate::config::{SandboxKind, Settings};
use crate::sandboxes::{Place, Sandboxes};

/// The sandboxes of this server, with the provider that its settings name, or with `other`.
pub(super) fn open(
    settings: &Settings,
    data: &Data,
    clock: Arc<dyn Clock>,
    other: Option<Arc<dyn SandboxProvider>>,
) -> Arc<Sandboxes> {
    let place = Place { node: data.node.clone(), is_shared: false };
    let provider = other.map_or_else(|| provider(settings), Ok);
    Sandboxes::new(provider, place, data.store.clone(), clock, settings.sandboxes.clone())
}

fn provider(settings: &Settings) -> Result<Arc<dyn SandboxProvider>, SandboxError> {
    match settings.sandboxes.kind {
        SandboxKind::Off => {
            Err(SandboxError::Unavailable("sandboxes are off on this server (--sandbox off)".to_owned()))
        }
        SandboxKind::Embedded => Err(SandboxError::Unavailable("this server has no sandbox provider yet".to_owned())),
    }
}

/// What is done for them in the background, until the server stops.
pub(super) fn chores(sandboxes: &Arc<Sandboxes>, stop: &CancellationToken) -> [JoinHandle<()>; 4] {
    [
        tokio::spawn(Arc::clone(sandboxes).follow_start(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_uses(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_idle(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_deletions(stop.clone())),
    ]
}
