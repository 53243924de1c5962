//! Authorizations by OAuth that an admin starts.

use monstrum_types::{OauthFlowId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where an admin's browser begins.
#[derive(Serialize, ToSchema)]
pub struct Started {
    /// A page of this server, good for one browser. It leads on to the provider.
    pub authorization_url: String,
    pub expires_at: UtcMillis,
}

/// What a person needs to authorize by entering a code (RFC 8628).
#[derive(Serialize, ToSchema)]
pub struct DeviceStarted {
    pub id: OauthFlowId,
    pub user_code: String,
    pub verification_uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// Seconds.
    pub expires_in: i64,
    /// Seconds between two questions of this server to the provider; it asks by itself.
    pub interval: i64,
}

/// How an authorization by a code stands.
#[derive(Serialize, ToSchema)]
pub struct DeviceProgress {
    pub id: OauthFlowId,
    /// `pending`, `done` or `failed`.
    pub status: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub expires_at: UtcMillis,
}

/// Nothing can be chosen yet.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
