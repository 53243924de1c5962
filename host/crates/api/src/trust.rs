//! Trusted keys: whose signature counts for which plugins.

use monstrum_types::{TrustId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::not_null;

/// A key whose signature counts for some plugins.
#[derive(Serialize, ToSchema)]
pub struct Trust {
    pub id: TrustId,
    /// `ed25519:` and 44 characters of base64.
    pub public_key: String,
    /// A glob over the names of plugins.
    pub name_glob: String,
    /// A glob over the resource types that these plugins may bring or take over; `-` and `_` count as the same.
    pub type_glob: String,
    pub created_at: UtcMillis,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrust {
    /// As `monstrum plugin pack` prints it.
    pub public_key: String,
    /// Which plugins the key may sign, such as `github` or `acme-*`.
    pub name_glob: String,
    /// Which resource types these plugins may bring or take over, such as `github` or `acme-*`, where `-` and `_` count as
    /// the same. The same as `name_glob` where it is left out. Updates of a plugin that owns its type need no match.
    #[serde(default, deserialize_with = "not_null")]
    pub type_glob: Option<String>,
}

lists! {
    Trust => TrustList "A page of trust.",
}
