//! `monstrum doctor`: finds weak settings and broken parts of an installation, and suggests a remedy for each finding.
//! The command changes nothing and does not lock the data folder, so a server may be running.

mod archive;
mod patterns;
mod rows;
#[cfg(target_os = "linux")]
mod sandboxes;
mod tools;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use monstrum_api::plugins::PluginStatus;
use monstrum_egress::{CredentialSource, CredentialState, Egress, EgressOptions};
use monstrum_runtime::{Runtime, RuntimeOptions};
use monstrum_store::{PAGE_ITEMS_MAX, Page, ResourceRow, StoreError, TrustRow};
use monstrum_types::{Clock, SystemClock, with_causes};
use serde::Serialize;

use crate::boot::{ADMIN_KEY_FILE, Data, DataError, Inspected, lost_key_versions};
use crate::config::{MASTER_KEY_FILE, MasterKeyPlace, Settings};
use monstrum_core::audit::{Anchors, find_rollback};
use monstrum_core::credentials::Refresher;
use monstrum_core::plugins::{Plugin, Plugins};
use monstrum_core::policy::row_seals::RowKeyError;
use monstrum_core::policy::{Policy, Resource};

/// The minimum free disk space. The audit rows of one hour can fill less space than this.
const FREE_BYTES_MIN: u64 = 1 << 30;

const FINISH_ROTATION: &str = "stop the server and finish the rotation: monstrum vault rotate --row-key";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The subject works, but is less secure than it could be.
    Weak,
    /// The subject does not work.
    Broken,
}

/// One problem, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// The subject: a setting, a file, `database`, `plugin github`, `resource shop`.
    pub about: String,
    pub what: String,
    pub remedy: String,
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn weak(&mut self, about: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Weak, about.into(), what.into(), remedy.into());
    }

    fn broken(&mut self, about: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Broken, about.into(), what.into(), remedy.into());
    }

    fn add(&mut self, severity: Severity, about: String, what: String, remedy: String) {
        self.0.push(Finding { severity, about, what, remedy });
    }
}

/// Examines the installation with these settings and returns all findings.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let mut found = Findings::default();
    check_settings(&mut found, settings);
    if !settings.data_dir.is_dir() {
        let what = format!("the data folder {} does not exist", settings.data_dir.display());
        found.broken(
            "data_dir",
            what,
            "start a server once with `monstrum serve`, or set the data folder with --data-dir",
        );
        return found.0;
    }
    check_files(&mut found, settings);
    match Data::inspect(settings).await {
        Err(error) => cannot_open(&mut found, &error),
        Ok(data) => {
            check_heads(&mut found, &data).await;
            archive::check(&mut found, settings, &data).await;
            if data.store.is_rotating_row_key() {
                found.broken("database", RowKeyError::Interrupted.to_string(), FINISH_ROTATION);
            }
            if let Err(error) = check_policy(&mut found, settings, &data).await {
                found.broken(
                    "database",
                    with_causes(&error),
                    "check that the database is complete, and run `monstrum audit verify` to check the audit",
                );
            }
            data.store.close().await;
        }
    }
    found.0
}

/// Reports a database that is older than its signed heads. A server does not start with such a database.
async fn check_heads(found: &mut Findings, data: &Inspected) {
    match find_rollback(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => found.broken("audit", with_causes(&error), "run doctor as the user who runs the server"),
        Ok(older) => {
            for way in older {
                let remedy = "restore the database that belongs to this folder; if the older database was restored on \
                              purpose, run `monstrum audit accept-loss --reason TEXT`";
                found.broken("audit", way.to_string(), remedy);
            }
        }
    }
}

fn check_settings(found: &mut Findings, settings: &Settings) {
    let is_local = settings.listen.ip().is_loopback();
    let public = settings.public_url.as_ref().map(ToString::to_string);
    let public = public.as_deref();
    let is_encrypted = public.is_some_and(|url| url.starts_with("https://"));
    if !is_local && !is_encrypted {
        let what = format!("other machines can connect to {}, and they send API keys unencrypted", settings.listen);
        let remedy = "put a TLS proxy in front of the server, listen on 127.0.0.1, and set the address of the proxy \
                      with --public-url https://…";
        found.weak("listen", what, remedy);
    } else if is_local && public.is_some_and(|url| url.starts_with("http://") && !is_loopback(url)) {
        found.weak(
            "public_url",
            "clients connect to this server without encryption",
            "put a TLS proxy in front of the server, and set --public-url to its https:// URL",
        );
    }
    if settings.public_docs && (!is_local || public.is_some()) {
        let what = "/metrics, /docs and the API description are public";
        found.weak("public_docs", what, "remove the setting, and configure Prometheus with an API key");
    }
    if settings.otlp_endpoint.as_deref().is_some_and(|url| url.starts_with("http://") && !is_loopback(url)) {
        let what = "spans, which name bots and tools, are sent to another machine unencrypted";
        found.weak("otlp_endpoint", what, "send the spans to a collector on this machine, or over https://");
    }
}

fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).split(['/', '?', '#']).next().unwrap_or_default();
    ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|name| host.strip_prefix(name).is_some_and(|port| port.is_empty() || port.starts_with(':')))
}

/// Checks that files of the data folder are private and that its disk has free space.
fn check_files(found: &mut Findings, settings: &Settings) {
    let folder = &settings.data_dir;
    let database = settings.database_url.is_none().then_some("monstrum.db");
    let files = [MASTER_KEY_FILE, ADMIN_KEY_FILE].into_iter().chain(database).map(|name| folder.join(name));
    let key_file = match &settings.master_key {
        MasterKeyPlace::File(path) if *path != folder.join(MASTER_KEY_FILE) => Some(path.clone()),
        _ => None,
    };
    for path in std::iter::once(folder.clone()).chain(files).chain(key_file) {
        let Ok(metadata) = path.metadata() else { continue };
        if metadata.mode() & 0o077 != 0 {
            let what = format!("the group or other users can read it (mode {:03o})", metadata.mode() & 0o777);
            found.weak(path.display().to_string(), what, format!("chmod go= {}", path.display()));
        }
    }
    if let Ok(space) = rustix::fs::statvfs(folder) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < FREE_BYTES_MIN {
            let what = format!(
                "only {} MiB of disk space are free; when the audit cannot be written, the server rejects calls",
                free >> 20
            );
            found.broken(
                folder.display().to_string(),
                what,
                "free disk space, or move the data folder to a larger disk",
            );
        }
    }
}

fn cannot_open(found: &mut Findings, error: &DataError) {
    let (about, remedy) = match error {
        DataError::MasterKeyMissing { .. } => {
            ("master key", "restore master.key from a backup; without this key, credentials cannot be decrypted")
        }
        DataError::MasterKeyText(_) => (
            "master key",
            "set the variable to the lines of a key file, separated by commas: a version, a space and 64 hex digits",
        ),
        DataError::NoMasterKey { .. } => ("master key", "use the master keys of this database's last rotation"),
        DataError::Vault(_) | DataError::WrongMasterKey { .. } => {
            ("master key", "restore the master.key that belongs to this database")
        }
        DataError::Store(StoreError::Older { .. }) => {
            ("database", "make a backup, then start the server, which migrates the database")
        }
        DataError::Store(StoreError::Newer { .. }) => ("database", "install a newer release of monstrum"),
        DataError::Rows(RowKeyError::Unsealed) => {
            ("database", "stop all servers that use this database, and run `monstrum vault seal` once")
        }
        DataError::Rows(_) => ("database", FINISH_ROTATION),
        DataError::Store(_) => (
            "database",
            "check that the database is running and reachable, that its user may log in, and that its file exists",
        ),
        _ => ("data_dir", "run doctor as the user who runs the server"),
    };
    found.broken(about, with_causes(error), remedy);
}

/// Checks plugins, resources and credentials with the functions that a server uses.
async fn check_policy(found: &mut Findings, settings: &Settings, data: &Inspected) -> Result<(), StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let about = settings.plugins_dir.display().to_string();
    // The doctor must not write to the server's cache, and does not have the key that authenticates the cache.
    let cache = match tempfile::tempdir() {
        Ok(cache) => cache,
        Err(error) => {
            found.broken(
                "plugins",
                format!("plugins cannot be checked: {error}"),
                "free space in the temporary folder",
            );
            return Ok(());
        }
    };
    let options = RuntimeOptions { cache_dir: cache.path().join("cache"), cache_mac_key: [0; 32] };
    let runtime = match Runtime::new(options) {
        Ok(runtime) => runtime,
        Err(error) => {
            found.broken("engine", with_causes(&error), "raise the limits of the process (ulimit -v, ulimit -u)");
            return Ok(());
        }
    };
    let plugins =
        Plugins::new(&settings.plugins_dir, runtime, data.store.clone(), Arc::clone(&clock), settings.ceilings);
    let plugins = match plugins {
        Ok(plugins) => Arc::new(plugins),
        Err(error) => {
            found.broken(about, with_causes(&error), "correct this error; until then, no plugin is loaded");
            return Ok(());
        }
    };
    if let Err(error) = plugins.examine().await {
        found.broken(about, with_causes(&error), "correct this error; until then, no plugin is loaded");
    }
    check_plugins(found, &plugins, &settings.plugins_dir);
    tools::check_prefixes(found, &plugins);
    check_keys(found, settings, data).await?;
    #[cfg(target_os = "linux")]
    sandboxes::check(found, settings, data).await?;
    check_trust(found, data).await?;
    // Credentials are decrypted but never sent.
    let egress = Egress::new(EgressOptions::default());
    let refresher = Refresher::new(data.store.clone(), Arc::clone(&data.vault), egress, Arc::new(SystemClock));
    let policy = Policy::open(data.store.clone(), Arc::new(refresher), plugins).await?;
    check_rows(found, data).await?;
    let rows = data.store.snapshot().await?;
    patterns::check(found, settings, &rows, &policy);
    tools::check(found, &rows.resources, &policy, &data.store).await?;
    check_resources(found, rows.resources, &policy, clock.as_ref());
    Ok(())
}

/// Reports credentials that are encrypted with a missing or an older master key. A server checks only the newest key
/// when it starts.
async fn check_keys(found: &mut Findings, settings: &Settings, data: &Inspected) -> Result<(), StoreError> {
    for version in lost_key_versions(&data.store, &data.vault).await? {
        let what = format!("{}: key version {version}, which encrypts credentials, is missing", settings.master_key);
        found.broken("master key", what, "restore the key from a backup, or save these credentials again");
    }
    let newest = i64::from(data.vault.key_version());
    let held: Vec<i64> = data.vault.keys().versions().map(i64::from).filter(|version| *version < newest).collect();
    if data.store.credential_key_versions().await?.iter().any(|version| held.contains(version)) {
        let what = format!(
            "{}: some credentials are still encrypted with a key older than version {newest}",
            settings.master_key
        );
        found.weak("master key", what, "stop the server and finish the rotation: monstrum vault rotate");
    }
    Ok(())
}

/// Reports keys that are trusted for every resource type: a plugin that such a key signs may define any resource type
/// that no other plugin owns.
async fn check_trust(found: &mut Findings, data: &Inspected) -> Result<(), StoreError> {
    let mut page = Page::first(PAGE_ITEMS_MAX);
    loop {
        let listed = data.store.trust(&page).await?;
        for row in listed.items.iter().filter(|row| row.type_glob == "*") {
            let TrustRow { id, public_key, name_glob, .. } = row;
            let what = format!("the key {public_key} may sign plugins that match `{name_glob}` for any resource type");
            let remedy = format!(
                "limit the key to its resource types: monstrum trust remove {id}, then \
                 monstrum trust add {public_key} --name '{name_glob}' --type GLOB"
            );
            found.weak(format!("trust {id}"), what, remedy);
        }
        match listed.next_cursor {
            Some(cursor) => page = Page { cursor: Some(cursor), ..page },
            None => return Ok(()),
        }
    }
}

fn check_plugins(found: &mut Findings, plugins: &Plugins, dir: &Path) {
    for entry in plugins.entries() {
        let about = format!("plugin {}", entry.name);
        let folder = dir.join(&entry.name);
        if let Some(serving) = &entry.serving {
            check_limits(found, serving);
        }
        let serves_on = entry.serving.map(|plugin| format!(" (version {} stays in force)", plugin.manifest.version));
        match (entry.status, entry.error, entry.pending) {
            (PluginStatus::Failed, error, _) => {
                let error = error.unwrap_or_default();
                let what = format!("the plugin cannot be loaded{}: {error}", serves_on.unwrap_or_default());
                found.broken(
                    about,
                    what,
                    format!("run `monstrum plugin validate {}` to see the position of each error", folder.display()),
                );
            }
            (PluginStatus::NeedsApproval, _, Some(pending)) => {
                let version = &pending.plugin.manifest.version;
                let what = format!(
                    "version {version} requests more permissions and waits for approval: {}",
                    pending.added.join("; ")
                );
                let remedy = format!(
                    "if these permissions are intended: monstrum plugin approve {} --digest {} --manifest-digest {}",
                    entry.name,
                    pending.digest(),
                    pending.manifest_digest()
                );
                found.weak(about, what, remedy);
            }
            _ => {}
        }
    }
}

/// Reports a plugin whose version in force exceeds a limit, because the limit was introduced after the version was
/// loaded. The server rejects a new version that exceeds the limit.
fn check_limits(found: &mut Findings, serving: &Plugin) {
    let exceeds: Vec<&str> = serving.exceeds().map(String::as_str).collect();
    if !exceeds.is_empty() {
        let version = &serving.manifest.version;
        let what = format!(
            "version {version} is in force, but a new version with these properties would be rejected: {}",
            exceeds.join("; ")
        );
        let remedy = "ask the author for a version within the limits that docs/authors-guide.md lists";
        found.weak(format!("plugin {}", serving.name), what, remedy);
    }
}

/// Reports rows that another program has written, changed, removed or restored.
async fn check_rows(found: &mut Findings, data: &Inspected) -> Result<(), StoreError> {
    let verified = data.store.verify_rows().await?;
    let anchors = Anchors::read(&data.store, &data.audit_keys).await?;
    for row in &verified.refused {
        let remedy = "find out which program wrote the row; then accept the row with `monstrum vault seal --scope`, \
                      or add --delete to delete it";
        found.broken(format!("row {row}"), row.refusal(), remedy);
    }
    for scope in &verified.unverified {
        let remedy = format!(
            "find the cause first; then seal the existing rows with `monstrum vault seal --scope {}`, or restore a \
             complete backup",
            scope.scope
        );
        let mut what = scope.to_string();
        let archived_until = anchors.archived_until();
        for difference in rows::differences(&data.store, scope.scope, archived_until).await? {
            what.push_str("; ");
            what.push_str(&difference);
        }
        found.broken(format!("scope {}", scope.scope), what, remedy);
    }
    Ok(())
}

fn check_resources(found: &mut Findings, rows: Vec<ResourceRow>, policy: &Policy, clock: &dyn Clock) {
    let snapshot = policy.load();
    for row in rows {
        let about = format!("resource {}", row.name);
        let Some(resource) = snapshot.resource(row.workspace_id, row.id) else {
            let what = match snapshot.resource_type(&row.resource_type) {
                None => {
                    format!(
                        "no loaded plugin provides its type `{}`, so the resource cannot be used",
                        row.resource_type
                    )
                }
                Some(_) => {
                    format!(
                        "its configuration is invalid for its type `{}`, so the resource cannot be used",
                        row.resource_type
                    )
                }
            };
            found.broken(about, what, format!("correct the plugin, or configure or delete the resource {}", row.id));
            continue;
        };
        check_credential(found, about, resource, clock);
    }
}

fn check_credential(found: &mut Findings, about: String, resource: &Resource, clock: &dyn Clock) {
    let Some(held) = &resource.credential else { return };
    let id = resource.row.id;
    if resource.credential_source().status() == CredentialState::NeedsAuthorization {
        let what = "its credential needs authorization: another plugin now provides the type, or the plugin or the \
                    configuration requests more than was confirmed";
        let remedy = format!("confirm the credential (POST /api/resources/{id}/credential/confirm), or save it again");
        found.broken(about, what, remedy);
    } else if held.row.expires_at.is_some_and(|end| end <= clock.now()) {
        found.broken(
            about,
            "its credential has expired",
            format!("save a new credential (PUT /api/resources/{id}/credential)"),
        );
    }
}
