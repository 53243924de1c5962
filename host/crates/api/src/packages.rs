//! Inputs of an installation.

use monstrum_types::PluginName;
use semver::Version;
use serde::Deserialize;
use utoipa::ToSchema;

/// A plugin of the registry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub name: PluginName,
    /// By default the newest version without pre-releases.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub version: Option<Version>,
    /// Whether an older version than the one on record may be installed.
    #[serde(default)]
    pub allow_downgrade: bool,
}

/// A package in a form.
#[derive(ToSchema)]
#[schema(as = PackageForm)]
pub struct Form {
    /// `NAME-VERSION.mst`
    #[schema(value_type = String, format = Binary)]
    pub package: Vec<u8>,
    /// `NAME-VERSION.mst.sig`
    #[schema(value_type = String, format = Binary)]
    pub signature: Vec<u8>,
    /// `true` or `false`
    pub allow_downgrade: Option<bool>,
}
