//! What a version that waits for approval touches: bindings, and credentials that an approval makes wait.

use monstrum_api::plugins::{PluginTouches, TouchedBinding, TouchedCredential};
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_manifest::{Manifest, config_values};
use monstrum_store::StoreError;

use crate::app::App;
use crate::beside::in_place;
use crate::credentials::{ResourceCredential, ServedResource};
use crate::policy::{Resource, Snapshot};

/// The maximum number of bindings, and of credentials, that are named. A person can read this many.
const NAMED_MAX: u32 = 200;

/// Returns what the version with this manifest touches, in all workspaces.
pub(super) async fn touches(app: &App, manifest: &Manifest) -> Result<PluginTouches, StoreError> {
    let bound = app.store.bound(&manifest.resource_type.id, NAMED_MAX).await?;
    let bindings = bound.into_iter().map(|bound| TouchedBinding {
        workspace: bound.workspace,
        resource: bound.resource,
        bot: bound.bot,
    });
    let policy = app.policy.load();
    // Each credential is decrypted.
    let credentials = in_place(true, || waiting(&policy, manifest));
    Ok(PluginTouches { bindings: bindings.collect(), credentials })
}

/// Returns the resources whose credential can be used now and will wait for an admin when the version is in force.
fn waiting(policy: &Snapshot, manifest: &Manifest) -> Vec<TouchedCredential> {
    let resources = policy.resources().filter(|resource| resource.row.resource_type == manifest.resource_type.id);
    let waiting = resources.filter(|resource| makes_wait(resource, manifest)).take(NAMED_MAX as usize);
    let mut waiting: Vec<_> = waiting
        .map(|resource| TouchedCredential {
            workspace_id: resource.row.workspace_id,
            resource_id: resource.row.id,
            resource: resource.row.name.clone(),
        })
        .collect();
    waiting.sort_by(|a, b| (a.workspace_id, &a.resource).cmp(&(b.workspace_id, &b.resource)));
    waiting
}

fn makes_wait(resource: &Resource, manifest: &Manifest) -> bool {
    let waits = |credential: &ResourceCredential| credential.status() == CredentialState::NeedsAuthorization;
    let Some(held) = resource.credential.as_deref().filter(|_| !waits(resource.credential_source())) else {
        return false;
    };
    let config = resource.row.config.as_object().cloned().unwrap_or_default();
    // A version that refuses the configuration makes the resource unusable, with any credential.
    let Ok(config) = config_values(&manifest.resource_type, config) else { return false };
    let served = ServedResource {
        row: &resource.row,
        manifest,
        config: &config,
        network: &resource.scope.network,
        legacy_plugin: resource.legacy_plugin.as_ref(),
    };
    waits(&ResourceCredential::of(served, Some(held)))
}
