//! OAuth authorizations, which an admin starts.

use monstrum_types::{AppUser, ClientRegistration, OauthFlowId, Secret, TokenAuth, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A started authorization in a browser.
#[derive(Serialize, ToSchema)]
pub struct Started {
    /// The URL of a page of this server, which redirects to the provider. Only the first browser that opens the page
    /// can use it.
    pub authorization_url: String,
    pub expires_at: UtcMillis,
}

/// The data that a person needs for an authorization with a user code (RFC 8628).
#[derive(Serialize, ToSchema)]
pub struct DeviceStarted {
    pub id: OauthFlowId,
    pub user_code: String,
    pub verification_uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// The number of seconds until the user code expires.
    pub expires_in: i64,
    /// The number of seconds between polls of the provider. This server polls the provider automatically.
    pub interval: i64,
}

/// The progress of an authorization with a user code.
#[derive(Serialize, ToSchema)]
pub struct DeviceProgress {
    pub id: OauthFlowId,
    /// The status: `pending`, `done` or `failed`.
    pub status: &'static str,
    /// The code that a person enters, while the authorization is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_code: Option<String>,
    /// The address of the page on which a person enters the code, while the authorization is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification_uri: Option<String>,
    /// The address of that page with the code, while the authorization is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// The number of seconds between polls of the provider, while the authorization is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
    /// Whether the provider has asked for fewer polls.
    pub slow_down: bool,
    /// The kind of the failure: `denied` (a person has refused), `expired`, `superseded` (another authorization of the
    /// resource was started) or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The text of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub expires_at: UtcMillis,
    /// The `return_to` of the request that started the authorization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_to: Option<String>,
}

/// What is authorized in a browser.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartInput {
    /// The user whose credential is obtained, if the resource uses the credentials of users. Without a user, the
    /// credential of the resource is obtained.
    pub user: Option<AppUser>,
    /// With a user, the URL to which the browser goes when the credential is stored: a path of this server, or an https
    /// URL whose origin is one of `--oauth-return-origins`. Without a user, a path below `/console`, to which the last
    /// page links.
    #[schema(max_length = 2048)]
    pub return_to: Option<String>,
}

/// The options of an authorization with a user code.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceInput {
    /// A path below `/console`, which the progress of the authorization repeats.
    #[schema(max_length = 2048)]
    pub return_to: Option<String>,
}

/// An empty object: the request has no options yet.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// What a look-up of the authorization server of an MCP server has found. Nothing is used before an admin confirms the
/// proposal.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OauthProposal {
    /// The SHA-256 of the proposal. The confirmation repeats it.
    pub digest: String,
    /// The protected resource for which tokens are issued, which is the URL of the MCP server.
    pub resource: String,
    /// The authorization server that issues the tokens.
    pub issuer: String,
    pub authorization_url: String,
    pub token_url: String,
    /// The URL at which this server would register a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration_url: Option<String>,
    pub token_auth: TokenAuth,
    /// The scopes that this server would request.
    pub scopes: Vec<String>,
    pub registration: ClientRegistration,
    pub expires_at: UtcMillis,
}

/// The confirmation of a proposal.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthConfirmation {
    /// The digest of the proposal that the admin has read.
    pub digest: String,
    /// The id of a client that an admin has registered. Required if `registration` is `given`; takes precedence
    /// otherwise.
    pub client_id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    pub client_secret: Option<Secret>,
}

/// The metadata of this server as an OAuth client. Its URL is the client id.
#[derive(Serialize, ToSchema)]
pub struct ClientDocument {
    pub client_id: String,
    pub client_name: &'static str,
    pub client_uri: String,
    pub application_type: &'static str,
    pub redirect_uris: Vec<String>,
    pub grant_types: Vec<&'static str>,
    pub response_types: Vec<&'static str>,
    pub token_endpoint_auth_method: TokenAuth,
}
