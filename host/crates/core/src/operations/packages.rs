//! Installs plugins from signed packages or the registry, and uninstalls plugins. Changes require a root key.

use std::sync::Arc;

use monstrum_api::packages::Named;
use monstrum_api::plugins::Plugin;
use monstrum_package::digest;
use monstrum_types::with_causes;
use serde_json::{Value, json};

use super::change::Change;
use super::plugins::view;
use super::{OperationError, Root};
use crate::app::App;
use crate::plugins::folder::staging::StageError;
use crate::plugins::packages::{PackageError, Upload};
use crate::plugins::{InstallError, Installed, LoadError, UninstallError};

/// A plugin to install: named, or uploaded as a package.
pub enum Wanted {
    Named(Named),
    Upload(Upload, bool),
}

impl Wanted {
    /// Returns the name under which the audit records the installation: the requested plugin, or the file name of an
    /// upload, because the plugin's name is unknown until the package is opened.
    fn name(&self) -> &str {
        match self {
            Wanted::Named(named) => named.name.as_str(),
            Wanted::Upload(upload, _) => upload.file_name.as_deref().unwrap_or("package"),
        }
    }

    /// Returns the entry for the audit.
    fn shown(&self) -> Value {
        match self {
            Wanted::Named(Named { version, allow_downgrade, .. }) => {
                json!({ "version": version.as_ref().map(ToString::to_string), "allow_downgrade": allow_downgrade })
            }
            Wanted::Upload(upload, allow_downgrade) => {
                json!({ "package_sha256": digest(&upload.package), "allow_downgrade": allow_downgrade })
            }
        }
    }
}

/// Installs a plugin from a signed package, or from the registry by name. The second value states whether the plugin
/// replaced another version.
pub async fn install(app: &Arc<App>, caller: &Root, wanted: Wanted) -> Result<(Plugin, bool), OperationError> {
    let before = app.plugins.entry(wanted.name()).map(view);
    let change = Change::new("plugin.install", wanted.name()).from(&before).to(&wanted.shown());
    // The work runs in a task. Otherwise, if the caller disconnected, a plugin could be on disk but not in force.
    let (app, caller) = (Arc::clone(app), caller.clone());
    let installing = tokio::spawn(async move { change.apply(&app, &caller, install_wanted(&app, wanted)).await });
    let Installed { entry, replaced } = installing.await.map_err(OperationError::internal)??;
    Ok((view(entry), replaced))
}

async fn install_wanted(app: &App, wanted: Wanted) -> Result<Installed, OperationError> {
    let installed = match wanted {
        Wanted::Upload(upload, allow_downgrade) => app.packages.install(upload, allow_downgrade).await,
        Wanted::Named(Named { name, version, allow_downgrade }) => {
            app.packages.install_named(&name, version.as_ref(), allow_downgrade).await
        }
    };
    installed.map_err(|error| {
        tracing::warn!(error = ?with_causes(&error), "failed to install a package");
        error.into()
    })
}

/// Uninstalls a plugin. Fails if a binding uses a resource of the plugin.
pub async fn uninstall(app: &Arc<App>, caller: &Root, name: String) -> Result<(), OperationError> {
    let before = app.plugins.entry(&name).ok_or_else(|| OperationError::not_found("plugin"))?;
    let change = Change::new("plugin.uninstall", &name).from(&view(before));
    // The work runs in a task, as in `install`.
    let (app, caller) = (Arc::clone(app), caller.clone());
    let removing = tokio::spawn(async move {
        let remove = async {
            app.plugins.uninstall(&name).await.map_err(|error| match error {
                UninstallError::Absent => OperationError::not_found("plugin"),
                UninstallError::Bound { .. } => OperationError::conflict(error.to_string()),
                UninstallError::Store(error) => error.into(),
                UninstallError::Stage(_) | UninstallError::Interrupted => OperationError::internal(error),
            })
        };
        change.apply(&app, &caller, remove).await
    });
    removing.await.map_err(OperationError::internal)?
}

/// Converts the error of a package that was not installed.
impl From<PackageError> for OperationError {
    fn from(error: PackageError) -> Self {
        match error {
            PackageError::Unsigned
            | PackageError::Signature(_)
            | PackageError::UntrustedKey { .. }
            | PackageError::UntrustedName { .. }
            | PackageError::Install(InstallError::UntrustedType { .. }) => {
                OperationError::invalid_at("/signature", error.to_string())
            }
            PackageError::Archive(_)
            | PackageError::NotText
            | PackageError::Manifest(_)
            | PackageError::Renamed { .. } => OperationError::invalid_at("/package", error.to_string()),
            PackageError::NoRegistry | PackageError::Resolve(_) => {
                OperationError::invalid_at("/name", error.to_string())
            }
            PackageError::Registry(_) => OperationError::BadGateway(with_causes(&error)),
            PackageError::Store(error) | PackageError::Install(InstallError::Load(LoadError::Store(error))) => {
                error.into()
            }
            PackageError::Install(InstallError::Older { .. }) => OperationError::conflict(error.to_string()),
            PackageError::Install(InstallError::Load(_)) => OperationError::invalid_at("/package", error.to_string()),
            // An operator can fix the cause of these errors, and their messages contain no secrets.
            PackageError::Install(InstallError::Stage(
                StageError::InTheWay { .. } | StageError::NoExchange { .. } | StageError::Changing { .. },
            )) => OperationError::conflict(error.to_string()),
            PackageError::Install(InstallError::Stage(_) | InstallError::Interrupted) | PackageError::Interrupted => {
                OperationError::internal(error)
            }
        }
    }
}
