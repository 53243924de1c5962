//! The metadata of a credential, and the result of a credential test. Responses never contain secrets.

use std::collections::BTreeMap;

use monstrum_manifest::OriginPattern;
use monstrum_types::{Code, RequestId, Status, UtcMillis};
use serde::Serialize;
use utoipa::ToSchema;

/// The metadata of a credential.
#[derive(Serialize, ToSchema)]
pub struct CredentialMetadata {
    /// The status: `ready`, `expired` or `needs-authorization`.
    pub status: String,
    pub method: String,
    /// The origins to which the credential may be sent.
    #[schema(value_type = Vec<String>)]
    pub audience: Vec<OriginPattern>,
    /// The origins that would receive the credential if an admin confirmed it. Present only while the credential needs
    /// authorization.
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_audience: Option<Vec<OriginPattern>>,
    pub expires_at: Option<UtcMillis>,
    pub updated_at: UtcMillis,
}

/// A new credential. The `credential_schema` of the auth method describes the `fields`.
#[derive(ToSchema)]
#[schema(as = NewCredential)]
pub struct CredentialInput {
    #[schema(example = "token")]
    pub auth_method: String,
    #[schema(write_only)]
    pub fields: BTreeMap<String, String>,
}

/// The result of a credential test.
#[derive(Serialize, ToSchema)]
pub struct CredentialTest {
    pub request_id: RequestId,
    /// The status. Later versions can add values: only `success` means that the credential works.
    pub status: Status,
    /// The reason for a status other than success. Absent on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// A description of the failure. Absent on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub duration_ms: i64,
}
