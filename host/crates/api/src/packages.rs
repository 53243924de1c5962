//! Requests to install a plugin.

use monstrum_types::PluginName;
use semver::Version;
use serde::Deserialize;
use utoipa::ToSchema;

/// A plugin to install from the registry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub name: PluginName,
    /// The version to install. The default is the newest version that is not a pre-release.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub version: Option<Version>,
    /// Whether a version that is older than the recorded version may be installed.
    #[serde(default)]
    pub allow_downgrade: bool,
}

/// A form with a package to install.
#[derive(ToSchema)]
#[schema(as = PackageForm)]
pub struct Form {
    /// The file `NAME-VERSION.mst`.
    #[schema(value_type = String, format = Binary)]
    pub package: Vec<u8>,
    /// The file `NAME-VERSION.mst.sig`.
    #[schema(value_type = String, format = Binary)]
    pub signature: Vec<u8>,
    /// Whether a version that is older than the recorded version may be installed: `true` or `false`.
    pub allow_downgrade: Option<bool>,
}
