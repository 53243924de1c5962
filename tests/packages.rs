//! Packages: hostile archives, signatures, the registry, and power cuts during an install.

mod archives;
mod commands;
mod crash;
mod hostile;
mod lifecycle;
mod owners;
mod registry;
mod signatures;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use monstrum_package::{PackageSignature, SigningKey, pack, package_file};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};
use support::{Api, Server};

use crate::http::send;

/// The files of a plugin, as its author has them.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

/// A package in the form that is sent to the server.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) file_name: String,
    pub(super) package: Vec<u8>,
    pub(super) signature: Option<String>,
}

impl Source {
    /// Returns one of the plugins that are built for the tests, with another version.
    pub(super) fn of(plugin: &str, version: &str) -> Result<Source> {
        let folder = Server::plugin_source(plugin)?;
        let mut files = BTreeMap::new();
        collect(&folder, &folder, &mut files)?;
        let mut source = Source { name: plugin.to_owned(), version: version.to_owned(), files };
        source.edit(|text| text.replace("version: 1.0.0", &format!("version: {version}")))?;
        // The file differs between versions, so that a mixture of two versions is not equal to either version.
        source.files.insert("README.md".to_owned(), format!("{plugin} {version}\n").into_bytes());
        Ok(source)
    }

    /// Changes the manifest.
    pub(super) fn edit(&mut self, change: impl FnOnce(String) -> String) -> Result<()> {
        let manifest = self.files.get_mut("monstrum.yaml").context("the plugin has no manifest")?;
        *manifest = change(String::from_utf8(manifest.clone())?).into_bytes();
        Ok(())
    }

    /// Packs and signs the plugin like `monstrum plugin pack`.
    pub(super) fn packed(&self, key: &SigningKey) -> Result<Sent> {
        self.signed(pack(&self.files)?, key)
    }

    /// Signs any bytes as a package of this plugin.
    pub(super) fn signed(&self, package: Vec<u8>, key: &SigningKey) -> Result<Sent> {
        let signature = self.signature(&package, key)?;
        let file_name = package_file(&signature.name, &signature.version);
        Ok(Sent { file_name, package, signature: Some(signature.to_text()) })
    }

    fn signature(&self, package: &[u8], key: &SigningKey) -> Result<PackageSignature> {
        Ok(key.sign(&self.name.parse()?, &self.version.parse()?, package))
    }
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let name = path.strip_prefix(root)?.to_str().context("the name of the file is not UTF-8")?.to_owned();
            files.insert(name, fs::read(&path)?);
        }
    }
    Ok(())
}

impl Sent {
    /// Sends the package to the server.
    pub(super) async fn to(&self, api: &Api) -> Result<(u16, Value)> {
        self.with(api, false).await
    }

    pub(super) async fn with(&self, api: &Api, allow_downgrade: bool) -> Result<(u16, Value)> {
        let part = Part::bytes(self.package.clone()).file_name(self.file_name.clone());
        let mut form = Form::new().part("package", part);
        if let Some(signature) = &self.signature {
            form = form.part("signature", Part::text(signature.clone()));
        }
        if allow_downgrade {
            form = form.text("allow_downgrade", "true");
        }
        let (status, _, body) = send(api.request(Method::POST, "/api/plugins").multipart(form)).await?;
        Ok((status, body))
    }
}

/// Creates a key that the server trusts for every plugin.
pub(super) async fn trusted(api: &Api) -> Result<SigningKey> {
    let key = SigningKey::generate()?;
    trust(api, &key, "*").await?;
    Ok(key)
}

pub(super) async fn trust(api: &Api, key: &SigningKey, name_glob: &str) -> Result<()> {
    let body = json!({ "public_key": key.public().to_string(), "name_glob": name_glob });
    let (status, answer) = api.post("/api/trust", &body).await?;
    ensure!(status == 201, "{status} {answer}");
    Ok(())
}

/// Returns the paths in the server's folders, except the data folder.
pub(super) fn left(server: &Server) -> Result<Vec<String>> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            if name == "data" {
                continue;
            }
            if path.symlink_metadata()?.is_dir() {
                walk(root, &path, found)?;
            }
            found.push(name);
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(server.home(), server.home(), &mut found)?;
    found.sort();
    Ok(found)
}

/// Returns the files of a plugin's folder.
pub(super) fn in_place(server: &Server, name: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = server.plugins_dir().join(name);
    let mut files = BTreeMap::new();
    collect(&folder, &folder, &mut files)?;
    Ok(files)
}

/// Formats the status and the detail of a rejection.
pub(super) fn detail((status, body): &(u16, Value)) -> String {
    format!("{status} {}", body["detail"].as_str().unwrap_or_default())
}
