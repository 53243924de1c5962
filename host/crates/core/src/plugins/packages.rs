//! Signed packages. The host verifies the signature and its key before it unpacks a package.
//!
//! The API installs a package only if a key that is trusted for the plugin's name has signed it. A root key decides
//! which keys are trusted. If the plugin does not own its resource type, the key must be trusted for the type too. No
//! option weakens these checks. The signature, the manifest and the file name must contain the same name and version.

use std::collections::BTreeMap;
use std::sync::Arc;

use monstrum_guardian::match_glob;
use monstrum_package::{Archive, ArchiveError, PackageSignature, ResolveError, SignatureError, claimed_by_name};
use monstrum_store::{Store, StoreError};
use monstrum_types::{Digest, PluginName};
use parking_lot::Mutex;
use semver::Version;

use crate::plugins::folder::MANIFEST;
use crate::plugins::registry::{Registry, RegistryError};
use crate::plugins::{InstallError, Installed, Package, Pending, Plugins, TrustedTypes};

/// The maximum number of packages that are unpacked at the same time. The limit bounds the memory for packages. It does
/// not delay installs, because only one install runs at a time.
const UNPACKED_AT_ONCE: usize = 2;

/// An uploaded package.
pub struct Upload {
    pub package: Vec<u8>,
    /// The file name of the package.
    pub file_name: Option<String>,
    /// The content of `NAME-VERSION.mst.sig`.
    pub signature: Option<Vec<u8>>,
}

/// The reason why a package was not installed.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("the package is not signed; send its signature NAME-VERSION.mst.sig too")]
    Unsigned,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("the package is signed by an untrusted key: {key}; to trust it, run `monstrum trust add`")]
    UntrustedKey { key: String },
    #[error(
        "the package is signed by {key}, which is trusted for {} but not for `{name}`; to trust the key for this name, \
         run `monstrum trust add`",
        globs.join(", ")
    )]
    UntrustedName { key: String, name: PluginName, globs: Vec<String> },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the package's {MANIFEST} is not UTF-8 text")]
    NotText,
    #[error("the package's {0}")]
    Manifest(#[from] monstrum_manifest::ManifestErrors),
    #[error("the package was renamed: {what} contains `{found}`, but the manifest contains `{manifest}`")]
    Renamed { what: &'static str, found: String, manifest: String },
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("no registry is configured; start the server with --registry")]
    NoRegistry,
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the package could not be read completely; try again")]
    Interrupted,
}

/// Installs packages.
pub struct Packages {
    store: Store,
    plugins: Arc<Plugins>,
    registry: Option<Registry>,
    unpacking: tokio::sync::Semaphore,
    /// The keys that signed the packages whose versions wait. They are kept in memory only: a row of the database could
    /// be forged, and a person relies on the key.
    signers: Mutex<BTreeMap<PluginName, Signer>>,
}

/// The key that signed a package, and the version in the package.
struct Signer {
    component: Digest,
    manifest: Digest,
    key: String,
}

impl Packages {
    /// Creates an installer of packages into `plugins`.
    pub fn new(store: Store, plugins: Arc<Plugins>, registry: Option<Registry>) -> Packages {
        let unpacking = tokio::sync::Semaphore::new(UNPACKED_AT_ONCE);
        Packages { store, plugins, registry, unpacking, signers: Mutex::default() }
    }

    /// Returns the configured registry.
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_ref()
    }

    /// Installs an uploaded package.
    pub async fn install(&self, upload: Upload, allow_downgrade: bool) -> Result<Installed, PackageError> {
        let _turn = self.unpacking.acquire().await.map_err(|_| PackageError::Interrupted)?;
        let (package, trusted) = self.verified(upload).await?;
        let installed = self.plugins.install(package, &trusted, allow_downgrade).await?;
        if let Some(pending) = &installed.entry.pending {
            let (component, manifest) = (pending.digest().clone(), pending.manifest_digest().clone());
            let name = pending.plugin.manifest.name.clone();
            self.signers.lock().insert(name, Signer { component, manifest, key: trusted.key });
        }
        Ok(installed)
    }

    /// Returns the key that signed the package of a version that waits, if this server has installed the package since
    /// its start.
    pub fn signer(&self, pending: &Pending) -> Option<String> {
        let signers = self.signers.lock();
        let signer = signers.get(&pending.plugin.manifest.name)?;
        let is_same = signer.component == *pending.digest() && signer.manifest == *pending.manifest_digest();
        is_same.then(|| signer.key.clone())
    }

    /// Installs a version of a plugin from the registry. The default is the newest version that is not a pre-release.
    pub async fn install_named(
        &self,
        name: &PluginName,
        version: Option<&Version>,
        allow_downgrade: bool,
    ) -> Result<Installed, PackageError> {
        let registry = self.registry.as_ref().ok_or(PackageError::NoRegistry)?;
        let index = registry.index().await?;
        let entry = index.resolve(name, version)?;
        let package = registry.package(entry).await?;
        let signature = registry.signature(entry).await?;
        let upload = Upload { package, file_name: Some(entry.file.clone()), signature: Some(signature) };
        self.install(upload, allow_downgrade).await
    }

    /// Verifies and unpacks a package. Returns the package with the types for which its key is trusted.
    async fn verified(&self, upload: Upload) -> Result<(Package, TrustedTypes), PackageError> {
        let signature = upload.signature.as_deref().ok_or(PackageError::Unsigned)?;
        let signature = PackageSignature::parse(signature)?;
        let signed = signature.clone();
        let checked = tokio::task::spawn_blocking(move || signed.verify(&upload.package).map(|()| upload.package));
        let package = checked.await.map_err(|_| PackageError::Interrupted)??;
        let trusted = self.check_trusted(&signature).await?;
        let unpacked =
            tokio::task::spawn_blocking(move || unpack(&package, Some(&signature), upload.file_name.as_deref()));
        let package = unpacked.await.map_err(|_| PackageError::Interrupted)??;
        Ok((package, trusted))
    }

    async fn check_trusted(&self, signature: &PackageSignature) -> Result<TrustedTypes, PackageError> {
        let (key, name) = (signature.public_key.to_string(), &signature.name);
        let rows = self.store.trust_of_key(&key).await?;
        if rows.is_empty() {
            return Err(PackageError::UntrustedKey { key });
        }
        let (trusted, others): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| match_glob(name.as_str(), &row.name_glob));
        if !trusted.is_empty() {
            return Ok(TrustedTypes { key, globs: trusted.into_iter().map(|row| row.type_glob).collect() });
        }
        let globs = others.into_iter().map(|row| format!("`{}`", row.name_glob)).collect();
        Err(PackageError::UntrustedName { key, name: name.clone(), globs })
    }
}

/// Unpacks a package and checks that its manifest matches its signature and its file name.
pub fn unpack(
    package: &[u8],
    signature: Option<&PackageSignature>,
    file_name: Option<&str>,
) -> Result<Package, PackageError> {
    let archive = Archive::read(package)?;
    let text = std::str::from_utf8(archive.manifest()).map_err(|_| PackageError::NotText)?;
    let manifest = monstrum_manifest::parse(MANIFEST, text)?;
    let (name, version) = (&manifest.name, &manifest.version);
    if let Some(signature) = signature {
        check_named((&signature.name, &signature.version), "the signature", (name, version))?;
    }
    if let Some((claimed, of_version)) = file_name.and_then(claimed_by_name) {
        check_named((&claimed, &of_version), "the file name", (name, version))?;
    }
    if let Some(folder) = archive.folder().filter(|folder| *folder != name.as_str()) {
        let (found, manifest) = (folder.to_owned(), name.to_string());
        return Err(PackageError::Renamed { what: "the folder in the package", found, manifest });
    }
    Ok(Package { manifest, files: archive.into_files() })
}

fn check_named(
    found: (&PluginName, &Version),
    what: &'static str,
    manifest: (&PluginName, &Version),
) -> Result<(), PackageError> {
    if found == manifest {
        return Ok(());
    }
    let shown = |(name, version): (&PluginName, &Version)| format!("{name} {version}");
    Err(PackageError::Renamed { what, found: shown(found), manifest: shown(manifest) })
}
