//! `monstrum registry`: creates the index of a folder of packages, which any web server can serve.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use monstrum_package::{
    Index, IndexEntry, METADATA_BYTES_MAX, PACKAGE_BYTES_MAX, PackageSignature, SIGNATURE_BYTES_MAX, SIGNATURE_SUFFIX,
    SUFFIX, TAGS_MAX, digest, package_file,
};
use serde_json::json;

use super::failure::Failure;
use super::{Options, output};
use monstrum_core::plugins::packages::unpack;

/// The file name of the index.
const INDEX: &str = "index.json";
/// The maximum length of a description in the index. Lists show this description. The package contains the complete
/// description.
const DESCRIPTION_CHARS_MAX: usize = 200;

const INDEX_EXAMPLES: &str = "\
Examples:
  monstrum plugin pack plugins/github --out packages/github-1.0.0.mst
  monstrum registry index packages
  monstrum serve --registry packages
  monstrum serve --registry https://packages.example/monstrum

Writes DIR/index.json for the packages in DIR and their signatures. The folder is then a registry, as a local folder or
on any web server. If a package does not match its name, its manifest or its signature, the command names the package
and writes no index.";

/// Create a registry of packages
#[derive(Subcommand)]
pub(super) enum Registry {
    /// Write the index of a folder of packages
    #[command(after_help = INDEX_EXAMPLES)]
    Index {
        /// The folder with the files NAME-VERSION.mst and NAME-VERSION.mst.sig
        dir: PathBuf,
    },
}

impl Registry {
    pub(super) fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let Registry::Index { dir } = self;
        let hint = "set DIR to the folder with the packages";
        let unreadable = |error: &std::io::Error| Failure::of(format!("cannot read {}", dir.display()), error, hint);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|error| unreadable(&error))? {
            let name = entry.map_err(|error| unreadable(&error))?.file_name().to_string_lossy().into_owned();
            if name.ends_with(SUFFIX) && !name.starts_with('.') {
                files.push(name);
            }
        }
        files.sort();
        let entries = files.iter().map(|file| entry(&dir, file)).collect::<Result<Vec<_>, _>>()?;
        let index = Index::new(entries).map_err(|error| {
            Failure::from_error(
                &error,
                "remove or correct the package that the error names; if the index is too large, remove packages",
            )
        })?;
        let path = dir.join(INDEX);
        write(&dir, &path, &index).map_err(|error| {
            Failure::of(
                format!("cannot write {}", path.display()),
                &error,
                "check your write permission for this folder",
            )
        })?;
        if options.json {
            output::json(&json!({ "index": path, "packages": index.packages() }))?;
        } else {
            let rows = index.packages().iter().map(|entry| {
                vec![entry.name.to_string(), entry.version.to_string(), entry.size.to_string(), entry.file.clone()]
            });
            output::table(&["NAME", "VERSION", "BYTES", "FILE"], rows.collect())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn entry(dir: &Path, file: &str) -> Result<IndexEntry, Failure> {
    let refused = |error: &dyn std::error::Error| {
        let hint = "pack it again with `monstrum plugin pack`, or remove it from the folder";
        Failure::of(format!("{file} cannot be part of a registry"), error, hint)
    };
    let package = read(&dir.join(file), PACKAGE_BYTES_MAX).map_err(|error| refused(&error))?;
    let signature_file = format!("{file}{SIGNATURE_SUFFIX}");
    let signature = read(&dir.join(&signature_file), SIGNATURE_BYTES_MAX)
        .map_err(|error| refused(&error).because(&format!("expected its signature in {signature_file}")))?;
    let signature = PackageSignature::parse(&signature).map_err(|error| refused(&error))?;
    signature.verify(&package).map_err(|error| refused(&error))?;
    let manifest = unpack(&package, Some(&signature), Some(file)).map_err(|error| refused(&error))?.manifest;
    let called = package_file(&manifest.name, &manifest.version);
    if called != file {
        let message = format!("{file} cannot be part of a registry: its name must be {called}");
        return Err(Failure::new(message, "rename the package and its signature"));
    }
    Ok(IndexEntry {
        description: manifest.description.chars().take(DESCRIPTION_CHARS_MAX).collect(),
        author: within(&manifest.author),
        license: within(&manifest.license),
        tags: manifest.tags.iter().take(TAGS_MAX).map(|tag| within(tag)).collect(),
        name: manifest.name,
        version: manifest.version,
        file: called,
        size: package.len() as u64,
        sha256: digest(&package),
        signature: signature_file,
    })
}

/// Truncates a text to the maximum length of a field in the index.
fn within(text: &str) -> String {
    text[..text.floor_char_boundary(METADATA_BYTES_MAX)].to_owned()
}

/// Writes the index atomically: a concurrent reader gets the old index or the new one.
fn write(dir: &Path, path: &Path, index: &Index) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(index.to_text().as_bytes())?;
    file.as_file().sync_all()?;
    // Temporary files are private, but all users may read the index.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(mode)?;
    file.persist(path)?;
    Ok(())
}

fn read(path: &Path, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut content)?;
    if content.len() > bytes_max { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
}
