//! OAuth by discovery: looks for the authorization server of an MCP server, and makes it the OAuth provider of the
//! resource when an admin confirms what was found.

use monstrum_api::oauth::{OauthConfirmation, OauthProposal};
use monstrum_api::oauth_providers::OauthProvider;
use monstrum_store::{OauthProviderRow, ResourceRow, StoreError};
use monstrum_types::{ClientRegistration, OauthProviderId, ResourceId, Secret, TokenAuth, UtcMillis};
use serde_json::json;

use super::change::{Change, changed_at};
use super::credentials::served;
use super::oauth_providers::{check, sealed, view};
use super::resources::resource;
use super::{Admin, OperationError};
use crate::app::App;
use crate::credentials::provider::ConfirmedServer;
use crate::oauth::{OauthError, Proposal, Proposed, Registered};
use crate::policy::Resource;

/// The reason why a proposal was not confirmed.
#[derive(Debug)]
pub enum Unconfirmed {
    /// The request names another digest than that of the current proposal.
    OtherDigest(Box<OauthProposal>),
    Operation(OperationError),
}

impl From<OperationError> for Unconfirmed {
    fn from(error: OperationError) -> Self {
        Unconfirmed::Operation(error)
    }
}

impl From<OauthError> for Unconfirmed {
    fn from(error: OauthError) -> Self {
        Unconfirmed::Operation(error.into())
    }
}

impl From<StoreError> for Unconfirmed {
    fn from(error: StoreError) -> Self {
        Unconfirmed::Operation(error.into())
    }
}

/// Looks for the authorization server of an MCP server. Sends no credential, and changes nothing but the proposal.
pub async fn discover(app: &App, caller: &Admin, id: ResourceId) -> Result<OauthProposal, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let proposal = app.oauth.look_up(serving).await?;
    // A value that no provider can have is refused now, and not when an admin confirms it.
    let provider = provider(&row, OauthProviderId::new(), &proposal, "client".to_owned(), app.clock.now());
    check(&provider, None).map_err(|error| {
        OperationError::BadGateway(format!("the metadata of the authorization server cannot be used: {error}"))
    })?;
    Ok(shown(&app.oauth.propose(serving, proposal).await?))
}

/// Makes the proposed authorization server the OAuth provider of the resource. Registers a client first, if the
/// authorization server registers clients and the input names none.
pub async fn confirm(
    app: &App,
    caller: &Admin,
    id: ResourceId,
    input: OauthConfirmation,
) -> Result<OauthProvider, Unconfirmed> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let none = || OperationError::conflict("the resource has no current proposal; discover its authorization server");
    let proposed = app.oauth.proposed(serving).await?.ok_or_else(none)?;
    if proposed.row.digest.as_str() != input.digest {
        return Err(Unconfirmed::OtherDigest(Box::new(shown(&proposed))));
    }
    let proposal = &proposed.proposal;
    let client = ChosenClient::new(app, proposal, input.client_id, input.client_secret)?;
    let before = app.store.oauth_provider_of_resource(caller.workspace, id).await?;
    let after = json!({
        "resource_id": id, "digest": input.digest, "issuer": proposal.issuer,
        "authorization_url": proposal.authorization_url, "token_url": proposal.token_url,
        "scopes": proposal.scopes, "client_id": client.id(), "has_client_secret": client.has_secret(),
        "registration": client.registration(),
    });
    let provider_id = before.as_ref().map_or_else(OauthProviderId::new, |before| before.id);
    let change = Change::new("oauth_provider.confirm", &provider_id).of_resource(id).to(&after);
    let change = match &before {
        Some(before) => change.from(&view(before.clone())),
        None => change,
    };
    let put = put(app, (&row, serving.as_ref()), proposal, client, (provider_id, before.as_ref()));
    Ok(view(change.apply(app, caller, put).await?))
}

/// The client that the provider gets.
enum ChosenClient {
    /// A client that an admin has registered, or the document of this host.
    Known { id: String, secret: Option<Secret>, auth: TokenAuth, registration: ClientRegistration },
    /// A client that is registered when the confirmation has been recorded.
    Dynamic,
}

impl ChosenClient {
    fn new(
        app: &App,
        proposal: &Proposal,
        id: Option<String>,
        secret: Option<Secret>,
    ) -> Result<ChosenClient, OperationError> {
        if let Some(id) = id {
            let auth = auth_of(proposal, secret.is_some())?;
            return Ok(ChosenClient::Known { id, secret, auth, registration: ClientRegistration::Given });
        }
        if secret.is_some() {
            return Err(OperationError::invalid_at("/client_id", "required with a `client_secret`"));
        }
        match proposal.registration {
            ClientRegistration::Dynamic => Ok(ChosenClient::Dynamic),
            ClientRegistration::ClientIdMetadata => {
                let registration = ClientRegistration::ClientIdMetadata;
                let id = app.oauth.client_id().ok_or_else(|| {
                    OperationError::conflict("the public URL of this server has changed; discover again")
                })?;
                Ok(ChosenClient::Known { id, secret: None, auth: TokenAuth::None, registration })
            }
            ClientRegistration::Given => {
                let message = "required, because the authorization server registers no clients on request";
                Err(OperationError::invalid_at("/client_id", message))
            }
        }
    }

    fn id(&self) -> Option<&str> {
        match self {
            ChosenClient::Known { id, .. } => Some(id),
            ChosenClient::Dynamic => None,
        }
    }

    fn has_secret(&self) -> bool {
        matches!(self, ChosenClient::Known { secret: Some(_), .. })
    }

    fn registration(&self) -> ClientRegistration {
        match self {
            ChosenClient::Known { registration, .. } => *registration,
            ChosenClient::Dynamic => ClientRegistration::Dynamic,
        }
    }
}

/// Returns how a client that an admin has registered authenticates.
fn auth_of(proposal: &Proposal, has_secret: bool) -> Result<TokenAuth, OperationError> {
    let fits = |auth: &&TokenAuth| (**auth != TokenAuth::None) == has_secret;
    let message = if has_secret {
        "the authorization server does not support clients with a secret"
    } else {
        "required, because the authorization server does not support clients without a secret"
    };
    let found = proposal.token_auths.iter().find(fits).copied();
    found.ok_or_else(|| OperationError::invalid_at("/client_secret", message))
}

/// Writes the provider, after it has registered a client if it must.
async fn put(
    app: &App,
    (row, resource): (&ResourceRow, &Resource),
    proposal: &Proposal,
    client: ChosenClient,
    (id, before): (OauthProviderId, Option<&OauthProviderRow>),
) -> Result<OauthProviderRow, OperationError> {
    let is_registered = matches!(client, ChosenClient::Dynamic);
    let Registered { client_id, client_secret, token_auth } = match client {
        ChosenClient::Known { id, secret, auth, .. } => {
            Registered { client_id: id, client_secret: secret, token_auth: auth }
        }
        ChosenClient::Dynamic => app.oauth.register(resource, proposal).await?,
    };
    let proposal = Proposal { token_auth, ..proposal.clone() };
    let now = before.map_or_else(|| app.clock.now(), |before| changed_at(app, before.updated_at));
    let mut provider = provider(row, id, &proposal, client_id, now);
    check(&provider, client_secret.as_ref()).map_err(|error| match error {
        // The values of a registration are not those of the caller.
        OperationError::Invalid(_) if is_registered => {
            OperationError::BadGateway(format!("the registration of a client cannot be used: {error}"))
        }
        error => error,
    })?;
    provider.client_secret = sealed(app, &provider, client_secret.as_ref())?;
    match before {
        Some(before) => {
            provider.created_at = before.created_at;
            if !app.store.update_oauth_provider(&provider, before.updated_at).await? {
                return Err(OperationError::changed_meanwhile());
            }
        }
        None => app.store.insert_oauth_provider(&provider).await?,
    }
    Ok(provider)
}

/// Returns the provider of a proposal, without a client secret.
fn provider(
    resource: &ResourceRow,
    id: OauthProviderId,
    proposal: &Proposal,
    client_id: String,
    now: UtcMillis,
) -> OauthProviderRow {
    let server = ConfirmedServer {
        issuer: proposal.issuer.clone(),
        resource: proposal.resource.clone(),
        token_auth: proposal.token_auth,
        requires_iss: proposal.requires_iss,
    };
    OauthProviderRow {
        id,
        workspace_id: resource.workspace_id,
        resource_type: resource.resource_type.clone(),
        resource_id: Some(resource.id),
        client_id,
        client_secret: None,
        authorization_url: Some(proposal.authorization_url.clone()),
        token_url: proposal.token_url.clone(),
        device_authorization_url: None,
        scopes: json!(proposal.scopes),
        server: Some(json!(server)),
        created_at: now,
        updated_at: now,
    }
}

fn shown(proposed: &Proposed) -> OauthProposal {
    let Proposed { row, proposal } = proposed;
    OauthProposal {
        digest: row.digest.to_string(),
        resource: proposal.resource.clone(),
        issuer: proposal.issuer.clone(),
        authorization_url: proposal.authorization_url.clone(),
        token_url: proposal.token_url.clone(),
        registration_url: proposal.registration_url.clone(),
        token_auth: proposal.token_auth,
        scopes: proposal.scopes.clone(),
        registration: proposal.registration,
        expires_at: row.expires_at,
    }
}
