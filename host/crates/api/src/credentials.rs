//! What is known of a credential, and the result of a test. Secrets are never part of an answer.

use std::collections::BTreeMap;

use monstrum_manifest::OriginPattern;
use monstrum_types::{Code, RequestId, Status, UtcMillis};
use serde::Serialize;
use utoipa::ToSchema;

/// What is known of a credential.
#[derive(Serialize, ToSchema)]
pub struct CredentialMetadata {
    /// `ready`, `expired` or `needs-authorization`.
    pub status: String,
    pub method: String,
    /// The origins that may get it.
    #[schema(value_type = Vec<String>)]
    pub audience: Vec<OriginPattern>,
    /// The origins that ask for it while it needs authorization.
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_audience: Option<Vec<OriginPattern>>,
    pub expires_at: Option<UtcMillis>,
    pub updated_at: UtcMillis,
}

/// How a credential is given: `fields` by the `credential_schema` of the auth method.
#[derive(ToSchema)]
#[schema(as = NewCredential)]
pub struct CredentialInput {
    #[schema(example = "token")]
    pub auth_method: String,
    #[schema(write_only)]
    pub fields: BTreeMap<String, String>,
}

/// How a credential fared.
#[derive(Serialize, ToSchema)]
pub struct CredentialTest {
    pub request_id: RequestId,
    /// An open set: only `success` says that the credential works.
    pub status: Status,
    /// On anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// On anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub duration_ms: i64,
}
