//! `monstrum plugin validate`: checks a folder like the server, shows each error with its line, and summarizes the
//! permissions of the plugin.

use std::path::Path;
use std::process::ExitCode;

use monstrum_manifest::{Manifest, ManifestError};
use monstrum_runtime::{Runtime, RuntimeOptions};
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::output;
use super::faults::{fault, show};
use super::permissions::Permissions;
use monstrum_core::plugins::Ceilings;
use monstrum_core::plugins::folder::{COMPONENT_BYTES_MAX, FolderError, MANIFEST, MANIFEST_BYTES_MAX, PluginFolder};
use monstrum_core::plugins::{self, LoadError};

/// The errors in a folder.
struct Findings {
    /// The text of the manifest, from which the errors show lines.
    source: String,
    faults: Vec<ManifestError>,
    /// Whether the component is missing, because it was not built or not copied to its path.
    is_unbuilt: bool,
}

/// Checks `dir` and prints the result.
pub(super) async fn run(dir: &Path, json: bool) -> Result<ExitCode, Failure> {
    match check(dir).await? {
        Ok(plugin) => {
            tell_valid(&plugin, json)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(findings) if json => {
            output::json(&json!({ "valid": false, "errors": findings.faults, "warnings": [] }))?;
            Ok(ExitCode::FAILURE)
        }
        Err(findings) => Err(refusal(dir, &findings)),
    }
}

/// Checks `dir` and returns its plugin, for commands that need a valid plugin.
pub(super) async fn valid(dir: &Path) -> Result<plugins::Plugin, Failure> {
    check(dir).await?.map_err(|findings| refusal(dir, &findings))
}

/// Shows the errors and returns the failure.
fn refusal(dir: &Path, findings: &Findings) -> Failure {
    for fault in &findings.faults {
        show(fault, &findings.source);
    }
    let count = match findings.faults.len() {
        1 => "1 error".to_owned(),
        many => format!("{many} errors"),
    };
    let message = format!("the plugin in {} would not load: {count}", dir.display());
    let hint = if findings.is_unbuilt {
        "build the component first: run `monstrum plugin dev` in the folder; or run `cargo build --release --target \
         wasm32-wasip2` and copy the .wasm file to this path"
    } else {
        "correct the errors above and run this command again"
    };
    Failure::new(message, hint)
}

/// Returns the plugin as the server would load it, or all its errors.
async fn check(dir: &Path) -> Result<Result<plugins::Plugin, Findings>, Failure> {
    let cannot_check = |error: &dyn std::error::Error| {
        Failure::of(
            "the component cannot be checked on this machine",
            error,
            "check the free space in the temporary folder",
        )
    };
    let mut findings = Findings { source: String::new(), faults: Vec::new(), is_unbuilt: false };
    let read = match read(dir, &mut findings) {
        Some(read) => read,
        None => return Ok(Err(findings)),
    };
    let cache = tempfile::tempdir().map_err(|error| cannot_check(&error))?;
    // The cache exists only while this command runs, so its key needs no secrecy.
    let options = RuntimeOptions { cache_dir: cache.path().join("cache"), cache_mac_key: [0; 32] };
    let runtime = Runtime::new(options).map_err(|error| cannot_check(&error))?;
    let Read { manifest, locales, component } = read;
    let component_name = manifest.executor.component.clone();
    match plugins::build(&runtime, Ceilings::default(), manifest, locales, component).await {
        Ok(plugin) => Ok(Ok(plugin)),
        Err(error) => {
            findings.faults.extend(faults(dir, &component_name, error));
            Ok(Err(findings))
        }
    }
}

/// The files of a folder with a valid manifest.
struct Read {
    manifest: Manifest,
    locales: std::collections::BTreeMap<String, String>,
    component: Vec<u8>,
}

/// Reads all files, so that the errors of several files are reported together.
fn read(dir: &Path, findings: &mut Findings) -> Option<Read> {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let folder = match PluginFolder::open(&whole) {
        Ok(folder) => folder,
        Err(error) => {
            findings.faults.push(of_folder(dir, "", &error));
            return None;
        }
    };
    match folder.text(MANIFEST, MANIFEST_BYTES_MAX) {
        Ok(text) => findings.source = text,
        Err(error) => {
            findings.faults.push(of_folder(dir, MANIFEST, &error));
            return None;
        }
    }
    let manifest = match monstrum_manifest::parse(&file(dir, MANIFEST), &findings.source) {
        Ok(manifest) => manifest,
        Err(errors) => {
            findings.faults.extend(errors.0);
            return None;
        }
    };
    let folder_name = whole.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    if let Some(folder_name) = folder_name.filter(|name| name != manifest.name.as_str()) {
        let error = LoadError::Name { folder: folder_name, name: manifest.name.clone() };
        findings.faults.extend(faults(dir, "", error));
    }
    let locales = folder.locales(&manifest.locales_dir).map_err(|error| of_folder(dir, &manifest.locales_dir, &error));
    let name = &manifest.executor.component;
    let component = folder.bytes(name, COMPONENT_BYTES_MAX).map_err(|error| {
        findings.is_unbuilt = matches!(error, FolderError::Absent { .. });
        of_folder(dir, name, &error)
    });
    if let Err(error) = folder.icon(&manifest.resource_type.icon) {
        findings.faults.push(of_folder(dir, &manifest.resource_type.icon, &error));
    }
    let (locales, component) = match (locales, component) {
        (Ok(locales), Ok(component)) if findings.faults.is_empty() => (locales, component),
        (locales, component) => {
            findings.faults.extend(locales.err());
            findings.faults.extend(component.err());
            return None;
        }
    };
    Some(Read { manifest, locales, component })
}

fn file(dir: &Path, name: &str) -> String {
    let path = if name.is_empty() { dir.to_owned() } else { dir.join(name) };
    path.display().to_string()
}

fn of_folder(dir: &Path, name: &str, error: &FolderError) -> ManifestError {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let mut message = error.to_string();
    // The error already names the file with the user's path, so this removes the absolute path.
    if let Some(rest) = message.strip_prefix(&file(&whole, name)) {
        message = rest.trim_start().to_owned();
    }
    if let Some(cause) = std::error::Error::source(error) {
        message = format!("{message}: {cause}");
    }
    fault(file(dir, name), String::new(), message)
}

fn faults(dir: &Path, component: &str, error: LoadError) -> Vec<ManifestError> {
    match error {
        LoadError::Manifest(errors) => errors.0,
        LoadError::Name { folder, name } => {
            let message = format!("expected `{folder}`, the name of the folder, found `{name}`");
            vec![fault(file(dir, MANIFEST), "name".to_owned(), message)]
        }
        LoadError::Schema { index, field, why } => {
            vec![fault(file(dir, MANIFEST), format!("resource_type.tools[{index}].{field}"), why)]
        }
        error @ LoadError::Component(_) => vec![fault(file(dir, component), String::new(), error.to_string())],
        other => vec![fault(file(dir, ""), String::new(), other.to_string())],
    }
}

fn tell_valid(plugin: &plugins::Plugin, json: bool) -> Result<(), Failure> {
    let permissions = Permissions::of(plugin);
    let tools: Vec<&str> = plugin.tools.iter().map(|tool| tool.manifest.name.as_str()).collect();
    if json {
        let value: Value = json!({
            "valid": true,
            "name": plugin.name,
            "version": plugin.manifest.version,
            "digest": plugin.digest(),
            "tools": tools,
            "imports": plugin.component.as_ref().map(|component| component.imports()),
            "capabilities": plugin.manifest.executor.capabilities,
            "permissions": permissions,
            "errors": [],
            "warnings": plugin.warnings,
        });
        return output::json(&value);
    }
    for warning in &plugin.warnings {
        output::warning(warning);
    }
    let count = if tools.len() == 1 { "1 tool".to_owned() } else { format!("{} tools", tools.len()) };
    let digest = plugin.digest().map(ToString::to_string).unwrap_or_default();
    let text = format!("{} {} is valid: {count}, component {digest}", plugin.name, plugin.manifest.version);
    output::line(output::plain(&text))?;
    permissions.show()
}
