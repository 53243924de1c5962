//! OAuth authorizations, which an admin starts.

use monstrum_types::{OauthFlowId, UtcMillis};
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
    /// The reason for the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub expires_at: UtcMillis,
}

/// An empty object: the request has no options yet.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
