//! Obtains the credential of a resource by OAuth, and refreshes it.

use monstrum_api::credentials::CredentialMetadata;
use monstrum_api::oauth::{DeviceProgress, DeviceStarted, Started};
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_store::{FlowStatus, OauthFlowRow};
use monstrum_types::{OauthFlowId, ResourceId};

use super::change::Change;
use super::credentials::{as_it_stands, credential_of, served};
use super::resources::resource;
use super::{Admin, OperationError};
use crate::app::App;
use crate::oauth::OauthError;

/// Starts an authorization in a browser.
///
/// The browser visits the OAuth provider of the type, and the server then stores the credential of the resource. The
/// link is valid for ten minutes and for one browser.
pub async fn start(app: &App, caller: &Admin, id: ResourceId) -> Result<Started, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    Ok(app.oauth.start(served(&snapshot, &row)?, caller.key).await?)
}

/// Starts an authorization that a person confirms by entering a code on another device.
pub async fn device(app: &App, caller: &Admin, id: ResourceId) -> Result<DeviceStarted, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    Ok(app.oauth.start_device(served(&snapshot, &row)?, caller.key).await?)
}

/// Shows the progress of an authorization that was started with `device`.
pub async fn show_device(
    app: &App,
    caller: &Admin,
    id: ResourceId,
    flow_id: OauthFlowId,
) -> Result<DeviceProgress, OperationError> {
    let flow = app.store.oauth_flow(caller.workspace, id, flow_id).await?;
    let flow =
        flow.filter(|flow| flow.poll_interval_s.is_some()).ok_or_else(|| OperationError::not_found("authorization"))?;
    let status = match flow.status {
        FlowStatus::Done | FlowStatus::Failed => flow.status,
        _ if flow.expires_at <= app.clock.now() => FlowStatus::Failed,
        _ => FlowStatus::Pending,
    };
    let OauthFlowRow { id, message, expires_at, .. } = flow;
    Ok(DeviceProgress { id, status: status.as_str(), message, expires_at })
}

/// Refreshes the credential of a resource.
///
/// A credential that this server refreshed within the last ten seconds is not refreshed again.
pub async fn refresh(app: &App, caller: &Admin, id: ResourceId) -> Result<CredentialMetadata, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let source = serving.credential_source();
    let credential = source.current().await.map_err(not_refreshed)?;
    if !credential.refreshable {
        let why = "this credential cannot be refreshed: it was not obtained through OAuth, or has no refresh token";
        return Err(OperationError::conflict(why));
    }
    let change = Change::new("credential.refresh", &id).of_resource(id).from(&credential_of(app, &row).await?);
    let refresh = async { source.refresh(&credential).await.map(|_| ()).map_err(not_refreshed) };
    change.apply(app, caller, refresh).await?;
    as_it_stands(app, &row).await
}

fn not_refreshed(state: CredentialState) -> OperationError {
    match state {
        CredentialState::Unavailable => {
            OperationError::unavailable("the provider or the database is not available; try again")
        }
        CredentialState::None | CredentialState::NotNeeded => OperationError::not_found("credential"),
        _ => OperationError::conflict("the credential must be authorized again"),
    }
}

impl From<OauthError> for OperationError {
    fn from(error: OauthError) -> Self {
        match error {
            OauthError::Token(error) => OperationError::BadGateway(error.to_string()),
            OauthError::Store(error) => error.into(),
            OauthError::Vault(error) => OperationError::internal(error),
            OauthError::Audit(error) => OperationError::unavailable(error.to_string()),
            refused => OperationError::conflict(refused.to_string()),
        }
    }
}
