//! `monstrum plugin install`: installs a package from a local file, or from the server's registry by its name.
//!
//! The server accepts only packages with the signature of a trusted key. With `--allow-unsigned`, the command does not
//! install through the API: it checks the package like the server and writes it into the plugins folder. This needs no
//! permission from the server, because a user with write access to the folder could also write the files by hand.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use futures::stream;
use indicatif::ProgressBar;
use monstrum_manifest::Manifest;
use monstrum_package::{MANIFEST, PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX, SIGNATURE_SUFFIX, SUFFIX, digest};
use reqwest::Body;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output, resolve};
use super::{show_loaded, validate};
use crate::config::ServeFlags;
use monstrum_core::plugins::Package;
use monstrum_core::plugins::folder::staging::Staged;
use monstrum_core::plugins::folder::{MANIFEST_BYTES_MAX, PluginFolder, check_plugins_dir};
use monstrum_core::plugins::packages;

/// The size of a chunk of the upload. The progress bar moves after each chunk.
const CHUNK_BYTES: usize = 64 << 10;

const EXAMPLES: &str = "\
Examples:
  monstrum plugin install github-1.0.0.mst      with github-1.0.0.mst.sig in the same folder
  monstrum plugin install github                the newest version in the server's registry
  monstrum plugin install github@1.0.0 --allow-downgrade
  monstrum plugin install mine.mst --allow-unsigned --plugins-dir /srv/plugins

The server accepts packages signed with a trusted key (`monstrum trust add`). With --allow-unsigned, this command does
not send the package: it checks the package like a server and writes it into the plugins folder, which must be on this
machine.";

/// Install a package, or a plugin from the registry
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Install {
    /// A file whose name ends with .mst, or NAME or NAME@VERSION of a plugin in the registry
    #[arg(value_name = "FILE|NAME[@VERSION]")]
    what: String,
    /// Allow a version that is older than the recorded version
    #[arg(long)]
    allow_downgrade: bool,
    /// Write an unsigned package into the plugins folder on this machine
    #[arg(long)]
    allow_unsigned: bool,
    /// The server's plugins folder, for --allow-unsigned
    #[arg(long, env = "MONSTRUM_PLUGINS_DIR", value_name = "DIR")]
    plugins_dir: Option<PathBuf>,
}

impl Install {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let is_file = self.what.ends_with(SUFFIX) || self.what.contains('/');
        if !self.what.ends_with(SUFFIX) && Path::new(&self.what).exists() {
            let message = format!("{} is not a package: expected a file name that ends with {SUFFIX}", self.what);
            return Err(Failure::new(message, "create a package of a plugin's folder with `monstrum plugin pack DIR`"));
        }
        match (is_file, self.allow_unsigned) {
            (true, false) => self.upload(options).await,
            (true, true) => self.place(options).await,
            (false, false) => {
                let (name, version) = match self.what.split_once('@') {
                    Some((name, version)) => (name, Some(version)),
                    None => (self.what.as_str(), None),
                };
                let entry = named(&Client::new(options)?, name, version, self.allow_downgrade).await?;
                show_loaded(name, &entry, options.json)
            }
            (false, true) => Err(Failure::new(
                "packages from a registry must be signed",
                "use --allow-unsigned only with a local file",
            )),
        }
    }

    /// Sends the package and its signature file to the server.
    async fn upload(&self, options: &Options) -> Result<ExitCode, Failure> {
        let file = Path::new(&self.what);
        let package = read(file, PACKAGE_BYTES_MAX, "check the name of the file")?;
        let signature = PathBuf::from(format!("{}{SIGNATURE_SUFFIX}", self.what));
        let unsigned = "sign the package with `monstrum plugin pack`, or see --allow-unsigned";
        let signature = read(&signature, SIGNATURE_BYTES_MAX, unsigned)?;
        let client = Client::new(options)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = package.len() as u64;
        let bar = output::progress(Some(bytes), "{wide_bar} {bytes}/{total_bytes} {eta}");
        let body = Body::wrap_stream(chunks(&package, bar.clone()));
        let mut form = Form::new()
            .part("signature", Part::bytes(signature).file_name(format!("{name}{SIGNATURE_SUFFIX}")))
            .part("package", Part::stream_with_length(body, bytes).file_name(name));
        if self.allow_downgrade {
            form = form.text("allow_downgrade", "true");
        }
        let entry = client.upload(&["api", "plugins"], form).await;
        bar.finish_and_clear();
        let entry = entry?;
        show_loaded(&output::cell(&entry["name"]), &entry, options.json)
    }

    /// Writes the package into the plugins folder and asks the server to load it.
    async fn place(&self, options: &Options) -> Result<ExitCode, Failure> {
        let file = Path::new(&self.what);
        let package = read(file, PACKAGE_BYTES_MAX, "check the name of the file")?;
        let file_name = file.file_name().unwrap_or_default().to_string_lossy();
        let Package { manifest, files } = packages::unpack(&package, None, Some(&file_name))
            .map_err(|error| Failure::from_error(&error, "create the package with `monstrum plugin pack`"))?;
        let flags = ServeFlags {
            data_dir: options.data_dir.clone(),
            plugins_dir: self.plugins_dir.clone(),
            ..ServeFlags::default()
        };
        let plugins_dir = resolve(flags)?.plugins_dir;
        let hint = "set --plugins-dir to the server's plugins folder, which must be on this machine";
        check_plugins_dir(&plugins_dir).map_err(|error| Failure::from_error(&error, hint))?;
        if !self.allow_downgrade {
            check_not_older(&plugins_dir, &manifest)?;
        }
        let failed = |error: &dyn std::error::Error| {
            Failure::of("the package cannot be installed; the plugins folder is unchanged", error, hint)
        };
        // The package is first unpacked into a temporary folder and checked. A plugin that the server could not load is
        // not installed.
        let trial = tempfile::tempdir().map_err(|error| failed(&error))?;
        let staged = Staged::write(trial.path(), &manifest.name, &files).map_err(|error| failed(&error))?;
        staged.put_in_place(&manifest.name).map_err(|error| failed(&error))?;
        validate::valid(&trial.path().join(manifest.name.as_str())).await?;
        let staged = Staged::write(&plugins_dir, &manifest.name, &files).map_err(|error| failed(&error))?;
        staged.put_in_place(&manifest.name).map_err(|error| failed(&error))?;
        let place = plugins_dir.join(manifest.name.as_str());
        output::warning(&format!("the plugin in {} is unsigned", place.display()));
        output::note("asking the server to load the plugin; a stopped server loads it at its next start");
        let name = manifest.name.as_str();
        let entry = Client::new(options)?.post(&["api", "plugins", name, "reload"], None).await?;
        let component = files.get(&manifest.executor.component).map(|bytes| digest(bytes).to_string());
        check_is_this(&entry, &manifest, component.as_deref(), &plugins_dir)?;
        show_loaded(name, &entry, options.json)
    }
}

/// Checks that the server has loaded this plugin. The server may use another plugins folder than `folder`.
fn check_is_this(entry: &Value, manifest: &Manifest, component: Option<&str>, folder: &Path) -> Result<(), Failure> {
    let version = manifest.version.to_string();
    let is_this = |loaded: &Value| loaded["version"] == version && loaded["digest"].as_str() == component;
    if entry["status"] == "failed" || is_this(entry) || is_this(&entry["pending"]) {
        return Ok(());
    }
    let (name, loaded) = (&manifest.name, output::cell(&entry["version"]));
    let message = format!(
        "the server did not load the plugin in {}: the server has another plugin `{name}`, version {loaded}",
        folder.display()
    );
    let hint = "set --plugins-dir to the server's plugins folder, and remove the plugin from the other folder";
    Err(Failure::new(message, hint))
}

/// Asks the server to install a plugin from its registry. Returns the server's entry of the plugin.
pub(super) async fn named(
    client: &Client,
    name: &str,
    version: Option<&str>,
    allow_downgrade: bool,
) -> Result<Value, Failure> {
    let mut body = json!({ "name": name });
    if let Some(version) = version {
        body["version"] = json!(version);
    }
    if allow_downgrade {
        body["allow_downgrade"] = json!(true);
    }
    let bar = output::progress(None, "{spinner} {msg} {elapsed}");
    bar.set_message(format!("the server is downloading {}", output::plain(name)));
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    let entry = client.post(&["api", "plugins"], Some(&body)).await;
    bar.finish_and_clear();
    entry
}

/// Rejects a package that is older than the version in the plugins folder.
fn check_not_older(plugins_dir: &Path, manifest: &Manifest) -> Result<(), Failure> {
    let there = std::path::absolute(plugins_dir.join(manifest.name.as_str())).ok();
    let text = there.and_then(|path| PluginFolder::open(&path).ok()?.text(MANIFEST, MANIFEST_BYTES_MAX).ok());
    // An unreadable manifest has no version to compare with.
    let Some(there) = text.and_then(|text| monstrum_manifest::parse_stored(MANIFEST, &text).ok()) else {
        return Ok(());
    };
    if manifest.version.cmp_precedence(&there.version).is_lt() {
        let message = format!("version {} is older than the installed version {}", manifest.version, there.version);
        return Err(Failure::new(message, "use --allow-downgrade to install the older version"));
    }
    Ok(())
}

fn read(path: &Path, bytes_max: usize, hint: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: &std::io::Error| Failure::of(format!("cannot read {}", path.display()), error, hint);
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut content = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut content).map_err(|error| failed(&error))?;
    if content.len() > bytes_max {
        return Err(Failure::new(
            format!("{} exceeds the limit of {bytes_max} bytes", path.display()),
            "check the name of the file",
        ));
    }
    Ok(content)
}

fn chunks(package: &[u8], bar: ProgressBar) -> impl stream::Stream<Item = std::io::Result<Vec<u8>>> + Send + use<> {
    let parts: Vec<Vec<u8>> = package.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect();
    stream::iter(parts.into_iter().map(move |part| {
        bar.inc(part.len() as u64);
        Ok(part)
    }))
}
