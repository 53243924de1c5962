//! The sandboxes of this server and their provider.

use std::path::Path;
use std::sync::Arc;

use monstrum_sandbox::{SandboxError, SandboxProvider};
#[cfg(target_os = "linux")]
pub(crate) use monstrum_sandbox_embedded::{KeptImages, kept_images};
use monstrum_types::{Clock, with_causes};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::data::Data;
use crate::config::{SandboxKind, SandboxSettings, Settings};
use monstrum_core::app::App;
use monstrum_core::sandboxes::outputs::Outputs;
use monstrum_core::sandboxes::{Place, Sandboxes};

/// The folder of the embedded provider's images, in the data folder.
pub const SANDBOX_FOLDER: &str = "sandbox";
/// The delay between the start of the server and the warm-up. During the delay, the start itself needs all processors.
#[cfg(target_os = "linux")]
const WARM_UP_AFTER: std::time::Duration = std::time::Duration::from_secs(10);

/// Opens the sandboxes of this server with the provider `other` or, without it, the provider that the settings name, and
/// the records of their commands.
pub(super) async fn open(
    settings: &Settings,
    data: &Data,
    clock: Arc<dyn Clock>,
    other: Option<Arc<dyn SandboxProvider>>,
) -> (Arc<Sandboxes>, Arc<Outputs>) {
    let place = Place { node: data.node.clone(), is_shared: false };
    let provider = match (other, settings.sandboxes.kind) {
        (Some(other), _) => Ok(other),
        (None, SandboxKind::Off) => Err(SandboxError::unavailable("sandboxes are off on this server (--sandbox off)")),
        (None, SandboxKind::Embedded) => embedded(&data.path.join(SANDBOX_FOLDER), &settings.sandboxes).await,
    };
    let (store, vault) = (data.store.clone(), Arc::clone(&data.vault));
    let outputs = Outputs::new(store, vault, Arc::clone(&clock), settings.sandboxes.keep_outputs);
    let sandboxes = Sandboxes::new(provider, place, data.store.clone(), clock, settings.sandboxes.options.clone());
    if let Err(error) = sandboxes.nothing_runs_yet().await {
        tracing::warn!(
            %error,
            "cannot mark sandboxes as stopped; their recorded status may be wrong until the provider is checked"
        );
    }
    (sandboxes, outputs)
}

/// Starts the embedded provider. If that fails, the server runs without sandboxes.
#[cfg(target_os = "linux")]
async fn embedded(folder: &Path, settings: &SandboxSettings) -> Result<Arc<dyn SandboxProvider>, SandboxError> {
    use monstrum_sandbox_embedded::{Embedded, EmbeddedOptions, TemplateKind, TotalSettings};

    use crate::config::SandboxTemplate;
    let mut options = EmbeddedOptions::new(folder);
    options.template = match settings.template {
        SandboxTemplate::Host => TemplateKind::Host,
        SandboxTemplate::Built => TemplateKind::Built,
    };
    options.totals = TotalSettings { memory_mib: settings.totals.memory_mib, processes: settings.totals.processes };
    if let Some(range) = settings.network {
        options.network.range = range;
    }
    if let Some(resolvers) = &settings.resolvers {
        options.network.resolvers.clone_from(resolvers);
    }
    match Embedded::start(options).await {
        Ok(provider) => {
            let provider = Arc::new(provider);
            tokio::spawn(warm_up(Arc::downgrade(&provider)));
            Ok(provider)
        }
        Err(error) => {
            let cause = with_causes(&error);
            tracing::warn!(error = %cause, "sandboxes are unavailable; `monstrum sandbox doctor` reports the reason");
            Err(error)
        }
    }
}

/// Prepares the template that the first sandbox needs, unless it exists or the server has stopped.
#[cfg(target_os = "linux")]
async fn warm_up(provider: std::sync::Weak<monstrum_sandbox_embedded::Embedded>) {
    tokio::time::sleep(WARM_UP_AFTER).await;
    let Some(provider) = provider.upgrade() else { return };
    if let Err(error) = provider.warm_up().await {
        let cause = with_causes(&error);
        tracing::warn!(error = %cause, "the template of sandboxes could not be prepared; the first sandbox retries");
    }
}

#[cfg(not(target_os = "linux"))]
async fn embedded(_: &Path, _: &SandboxSettings) -> Result<Arc<dyn SandboxProvider>, SandboxError> {
    Err(SandboxError::unavailable("the embedded provider of sandboxes requires Linux"))
}

/// Starts the background tasks of sandboxes, which run until the server stops.
pub(super) fn chores(app: &Arc<App>, stop: &CancellationToken) -> [JoinHandle<()>; 6] {
    let sandboxes = &app.sandboxes;
    [
        tokio::spawn(Arc::clone(sandboxes).follow_start(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_uses(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_idle(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_switches(stop.clone())),
        tokio::spawn(Arc::clone(sandboxes).follow_deletions(stop.clone())),
        tokio::spawn(follow_policy(Arc::clone(app), stop.clone())),
    ]
}

/// After each new snapshot of the policy, checks whether sandboxes were switched on or off for any bot.
async fn follow_policy(app: Arc<App>, stop: CancellationToken) {
    let mut renewals = app.policy.renewals();
    while let Some(Ok(())) = stop.run_until_cancelled(renewals.changed()).await {
        app.sandboxes.switches_may_have_changed();
    }
}
