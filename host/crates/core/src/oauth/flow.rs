//! The rows of authorizations: what they record, and to what their sealed records are bound.

use monstrum_store::{FlowStatus, OauthFlowRow, OauthProviderRow};
use monstrum_types::{KeyId, OauthFlowId, OauthProviderId, ResourceId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::AssociatedData;
use serde_json::json;
use subtle::ConstantTimeEq as _;

use super::{OauthError, hash};
use crate::credentials::GivenFor;
use crate::policy::Resource;

pub(super) fn new_flow(
    resource: &Resource,
    provider: &OauthProviderRow,
    key: KeyId,
    given_for: &GivenFor,
    now: UtcMillis,
) -> OauthFlowRow {
    OauthFlowRow {
        id: OauthFlowId::new(),
        workspace_id: resource.row.workspace_id,
        resource_id: resource.row.id,
        provider_id: provider.id,
        key_id: key,
        auth_method: given_for.auth_method.as_str().to_owned(),
        given_for: json!(given_for),
        status: FlowStatus::Failed,
        ticket_hash: None,
        state_hash: None,
        browser_hash: None,
        sealed: None,
        message: None,
        poll_interval_s: None,
        next_poll_at: None,
        created_at: now,
        expires_at: now,
        subject: None,
        return_to: None,
    }
}

/// Returns the purpose of the credential that was recorded at the start of the authorization.
pub(super) fn agreed(flow: &OauthFlowRow) -> Result<GivenFor, OauthError> {
    serde_json::from_value(flow.given_for.clone()).map_err(|_| OauthError::Changed)
}

pub(super) fn place_of(flow: &OauthFlowRow) -> AssociatedData {
    let purpose = (&flow.given_for, flow.subject.as_ref());
    place(flow.workspace_id, flow.id, flow.resource_id, flow.provider_id, purpose)
}

/// Returns the associated data of a sealed flow: its ids, and the purpose and the user that were recorded at its start.
pub fn place(
    workspace: WorkspaceId,
    flow: OauthFlowId,
    resource: ResourceId,
    provider: OauthProviderId,
    (given_for, subject): (&serde_json::Value, Option<&serde_json::Value>),
) -> AssociatedData {
    let associated = AssociatedData::new("oauth flow")
        .with("workspace", &workspace)
        .with("flow", &flow)
        .with("resource", &resource)
        .with("provider", &provider)
        .with_json("given_for", given_for);
    match subject {
        Some(subject) => associated.with_json("subject", subject),
        None => associated,
    }
}

/// Checks that `browser` is the secret of the browser that opened the begin page, and returns this secret.
pub(super) fn same_browser(flow: &OauthFlowRow, browser: Option<&str>) -> Result<Secret, OauthError> {
    let (Some(expected), Some(browser)) = (&flow.browser_hash, browser) else {
        return Err(OauthError::NotThisBrowser);
    };
    let is_same: bool = hash(browser).as_bytes().ct_eq(expected.as_bytes()).into();
    if is_same { Ok(Secret::new(browser.to_owned())) } else { Err(OauthError::NotThisBrowser) }
}
