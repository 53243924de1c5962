//! Trusted keys, which may sign packages of certain plugins.

use monstrum_types::{TrustId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::not_null;

/// A trusted key, which may sign packages of certain plugins.
#[derive(Serialize, ToSchema)]
pub struct Trust {
    pub id: TrustId,
    /// The public key: `ed25519:` and 44 characters of base64.
    pub public_key: String,
    /// A glob that matches the names of the plugins that the key may sign.
    pub name_glob: String,
    /// A glob that matches the resource types that these plugins may define or take over. `-` and `_` are equivalent.
    pub type_glob: String,
    pub created_at: UtcMillis,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrust {
    /// The public key, in the format that `monstrum plugin pack` prints.
    pub public_key: String,
    /// A glob that matches the names of the plugins that the key may sign, such as `github` or `acme-*`.
    pub name_glob: String,
    /// A glob that matches the resource types that these plugins may define or take over, such as `github` or `acme-*`.
    /// `-` and `_` are equivalent. The default is `name_glob`. An update of a plugin that already owns its type does
    /// not need to match.
    #[serde(default, deserialize_with = "not_null")]
    pub type_glob: Option<String>,
}

lists! {
    Trust => TrustList "A page of trusted keys.",
}
