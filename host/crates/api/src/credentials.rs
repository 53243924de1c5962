//! The metadata of a credential, and the result of a credential test. Responses never contain secrets.

use std::collections::BTreeMap;

use monstrum_manifest::OriginPattern;
use monstrum_types::{AppUser, Code, RequestId, Status, UtcMillis};
use serde::Serialize;
use utoipa::ToSchema;

use crate::list::lists;

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
    /// The scopes that the server has asked for and that the credential does not have. An admin adds them to the OAuth
    /// provider, if the bots need them, and authorizes the resource again. Absent if the server has asked for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_scopes: Option<Vec<String>>,
    pub expires_at: Option<UtcMillis>,
    pub updated_at: UtcMillis,
}

/// The credential of a user for a resource.
#[derive(Serialize, ToSchema)]
pub struct UserCredential {
    pub user: AppUser,
    #[serde(flatten)]
    pub credential: CredentialMetadata,
}

lists! {
    UserCredential => UserCredentialList "A page of credentials of users.",
}

/// A new credential. The `credential_schema` of the auth method describes the `fields`.
#[derive(ToSchema)]
#[schema(as = NewCredential)]
pub struct CredentialInput {
    #[schema(example = "token")]
    pub auth_method: String,
    #[schema(write_only)]
    pub fields: BTreeMap<String, String>,
    /// The user whose credential this is. Without a user, this is the credential of the resource.
    pub user: Option<AppUser>,
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
