//! Installs the plugins that are part of the program. Their origin is the program itself, so they need no signature.

use std::collections::BTreeMap;

use monstrum_bundled::Bundled;
use monstrum_types::Digest;

use crate::plugins::folder::MANIFEST;
use crate::plugins::version::sha256;
use crate::plugins::{Entry, InstallError, Installed, Package, Plugins, TrustedTypes};

/// The name that errors show in place of the key of a package.
const THIS_PROGRAM: &str = "this program";

/// The reason why a bundled plugin was not installed.
#[derive(Debug, thiserror::Error)]
pub enum BundledError {
    #[error("the manifest of the bundled plugin is not valid")]
    Manifest(#[from] monstrum_manifest::ManifestErrors),
    #[error("the plugins folder already has a plugin `{0}`, which is not the bundled one; remove it first")]
    Taken(&'static str),
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// Returns the SHA-256 of the component of a bundled plugin.
pub fn digest(bundled: &Bundled) -> Digest {
    sha256(bundled.component)
}

impl Plugins {
    /// Returns whether a plugin of this name is loaded, or has a folder that is not loaded yet.
    pub fn has(&self, name: &str) -> bool {
        self.entry(name).is_some() || self.reader.dir.join(name).symlink_metadata().is_ok()
    }

    /// Installs a bundled plugin. It replaces no plugin.
    pub async fn install_bundled(&self, bundled: &Bundled) -> Result<Entry, BundledError> {
        if self.has(bundled.name) {
            return Err(BundledError::Taken(bundled.name));
        }
        let package = package(bundled)?;
        let id = package.manifest.resource_type.id.to_string();
        let trusted = TrustedTypes { key: THIS_PROGRAM.to_owned(), globs: vec![id] };
        let Installed { entry, .. } = self.install(package, &trusted, false).await?;
        Ok(entry)
    }
}

/// Returns the files of a bundled plugin.
fn package(bundled: &Bundled) -> Result<Package, BundledError> {
    let manifest = monstrum_manifest::parse(MANIFEST, bundled.manifest)?;
    let texts = bundled.files.iter().copied().chain([(MANIFEST, bundled.manifest)]);
    let mut files: BTreeMap<_, _> = texts.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).collect();
    files.insert(bundled.component_file.to_owned(), bundled.component.to_vec());
    Ok(Package { manifest, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_the_files() {
        let Some(notebook) = monstrum_bundled::NOTEBOOK else { return };
        let package = package(&notebook).unwrap();
        assert_eq!(package.manifest.name.as_str(), notebook.name);
        let names: Vec<&str> = package.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["locales/en-US.json", "locales/zh-CN.json", MANIFEST, notebook.component_file]);
    }
}
