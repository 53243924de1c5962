//! `monstrum plugin pack`: creates a signed package of a plugin's folder. The command rejects a plugin that a server
//! could not load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use monstrum_manifest::Manifest;
use monstrum_package::{MANIFEST, SIGNATURE_SUFFIX, digest, pack, package_file};
use serde_json::json;

use super::super::failure::Failure;
use super::super::{Options, output};
use super::{signing, validate};
use monstrum_core::plugins::TrustedTypes;
use monstrum_core::plugins::folder::{
    COMPONENT_BYTES_MAX, FolderError, ICON_BYTES_MAX, LOCALE_BYTES_MAX, MANIFEST_BYTES_MAX, PluginFolder,
};

/// Documentation and licence files, which a package includes if they exist.
const TEXTS: [&str; 6] = ["README.md", "CHANGELOG.md", "LICENSE", "LICENSE.txt", "LICENSE-MIT", "LICENSE-APACHE"];

const EXAMPLES: &str = "\
Examples:
  monstrum plugin pack plugins/github
  monstrum plugin pack . --out dist/github-1.0.0.mst
  monstrum plugin pack . --key-file ci-signing.key --json

Writes NAME-VERSION.mst and NAME-VERSION.mst.sig. The package contains the manifest, the component, the translations,
the icon, and README, CHANGELOG and LICENSE if they exist. The same files result in the same package. The first use
creates a signing key. A server installs the package only if it trusts this key: run the printed command once.";

/// Create a signed package of a plugin's folder
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Pack {
    /// The folder with monstrum.yaml
    dir: PathBuf,
    /// The file of the package [default: NAME-VERSION.mst in the working directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The signing key, created if it does not exist [default: monstrum/signing.key in your settings folder]
    #[arg(long, env = "MONSTRUM_SIGNING_KEY", value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Pack {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let manifest = validate::valid(&self.dir).await?.manifest;
        let (name, version) = (&manifest.name, &manifest.version);
        let hint = "run `monstrum plugin validate DIR` to see the errors of the plugin's folder";
        let files = files(&self.dir, &manifest).map_err(|error| Failure::of("cannot pack the folder", &error, hint))?;
        let package = pack(&files).map_err(|error| Failure::of("cannot pack the folder", &error, hint))?;
        let key = signing::key(self.key_file.as_deref())?;
        let signature = key.sign(name, version, &package);
        let out = self.out.unwrap_or_else(|| PathBuf::from(package_file(name, version)));
        let mut signature_file = out.clone().into_os_string();
        signature_file.push(SIGNATURE_SUFFIX);
        let signature_file = PathBuf::from(signature_file);
        write(&signature_file, signature.to_text().as_bytes())?;
        write(&out, &package)?;
        let public_key = key.public().to_string();
        let mut trust = format!("monstrum trust add {public_key} --name {name}");
        // A key that is trusted for a plugin name is also trusted for the resource type of the same name.
        let by_name = TrustedTypes { key: public_key.clone(), globs: vec![name.to_string()] };
        let type_id = &manifest.resource_type.id;
        if !by_name.include(type_id) {
            trust = format!("{trust} --type {type_id}");
        }
        if options.json {
            output::json(&json!({
                "name": name,
                "version": version,
                "file": out,
                "signature": signature_file,
                "size": package.len(),
                "sha256": digest(&package),
                "public_key": public_key,
                "trust": trust,
            }))?;
        } else {
            output::fields(&[
                ("package", out.display().to_string()),
                ("signature", signature_file.display().to_string()),
                ("sha256", digest(&package).to_string()),
                ("trust", trust),
            ])?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the files of a folder that the package includes. Omits files that the plugin format does not define.
fn files(dir: &Path, manifest: &Manifest) -> Result<BTreeMap<String, Vec<u8>>, FolderError> {
    let whole = std::path::absolute(dir).map_err(|source| FolderError::Read { path: dir.to_owned(), source })?;
    let folder = PluginFolder::open(&whole)?;
    let component = &manifest.executor.component;
    let mut files = BTreeMap::from([
        (MANIFEST.to_owned(), folder.bytes(MANIFEST, MANIFEST_BYTES_MAX)?),
        (component.clone(), folder.bytes(component, COMPONENT_BYTES_MAX)?),
    ]);
    for (tag, text) in folder.locales(&manifest.locales_dir)? {
        files.insert(format!("{}/{tag}.json", manifest.locales_dir), text.into_bytes());
    }
    let icon = &manifest.resource_type.icon;
    if folder.icon(icon)?.is_some() {
        files.insert(icon.clone(), folder.bytes(icon, ICON_BYTES_MAX)?);
    }
    for text in TEXTS {
        match folder.bytes(text, LOCALE_BYTES_MAX) {
            Ok(bytes) => drop(files.insert(text.to_owned(), bytes)),
            Err(FolderError::Absent { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, content).map_err(|error| {
        Failure::of(
            format!("cannot write {}", path.display()),
            &error,
            "choose another file with --out, and check that its folder exists",
        )
    })
}
