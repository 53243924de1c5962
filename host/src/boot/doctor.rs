//! `monstrum doctor`: finds weak settings and broken parts of an installation, each with its remedy. It changes nothing and
//! needs no lock, so a server may be running.

mod archive;
mod patterns;
mod rows;
#[cfg(target_os = "linux")]
mod sandboxes;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use monstrum_egress::{CredentialSource, CredentialState, Egress, EgressOptions};
use monstrum_runtime::{Runtime, RuntimeOptions};
use monstrum_store::{PAGE_ITEMS_MAX, Page, ResourceRow, StoreError, TrustRow};
use monstrum_types::{Clock, SystemClock, with_causes};
use serde::Serialize;

use crate::boot::{ADMIN_KEY_FILE, Data, DataError, Inspected, lost_key_versions};
use crate::config::{MASTER_KEY_FILE, MasterKeyPlace, Settings};
use monstrum_core::audit::{Anchors, find_rollback};
use monstrum_core::credentials::Refresher;
use monstrum_core::plugins::{Plugin, PluginStatus, Plugins};
use monstrum_core::policy::row_seals::RowKeyError;
use monstrum_core::policy::{Policy, Resource};

/// The least free space. With less, an hour of audit rows can fill the disk.
const FREE_BYTES_MIN: u64 = 1 << 30;

const FINISH_ROTATION: &str = "stop the server and finish the rotation: monstrum vault rotate --row-key";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The part works, but is less secure than it could be.
    Weak,
    /// The part does not work.
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
        let what = format!("there is no data folder {}", settings.data_dir.display());
        found.broken("data_dir", what, "start a server once with `monstrum serve`, or name its folder with --data-dir");
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
                    "is it whole? `monstrum audit verify` checks the audit in it",
                );
            }
            data.store.close().await;
        }
    }
    found.0
}

/// Reports a database that is older than its signed heads. A server does not start with it.
async fn check_heads(found: &mut Findings, data: &Inspected) {
    match find_rollback(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => found.broken("audit", with_causes(&error), "run it as the user who runs the server"),
        Ok(older) => {
            for way in older {
                let remedy = "put back the database that belongs to this folder; if an older one was restored on purpose, \
                              run `monstrum audit accept-loss --reason TEXT`";
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
        let what = format!("{} is reached from other machines, and API keys travel there unencrypted", settings.listen);
        let remedy =
            "put a proxy with TLS in front of it, listen on 127.0.0.1, and say its address with --public-url https://…";
        found.weak("listen", what, remedy);
    } else if is_local && public.is_some_and(|url| url.starts_with("http://") && !is_loopback(url)) {
        found.weak(
            "public_url",
            "others reach this server without encryption",
            "serve it by https://, through a proxy",
        );
    }
    if settings.public_docs && (!is_local || public.is_some()) {
        let what = "/metrics, /docs and the API description are open to whoever reaches the server";
        found.weak("public_docs", what, "leave public_docs out, and give Prometheus a key");
    }
    if settings.otlp_endpoint.as_deref().is_some_and(|url| url.starts_with("http://") && !is_loopback(url)) {
        let what = "spans, which name bots and tools, leave this machine unencrypted";
        found.weak("otlp_endpoint", what, "send them to a collector on this machine, or by https://");
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
            let what = format!("group or others may read it (mode {:03o})", metadata.mode() & 0o777);
            found.weak(path.display().to_string(), what, format!("chmod go= {}", path.display()));
        }
    }
    if let Ok(space) = rustix::fs::statvfs(folder) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < FREE_BYTES_MIN {
            let what = format!("only {} MiB are free on its disk; without room for the audit no call runs", free >> 20);
            found.broken(folder.display().to_string(), what, "make room, or move the data folder to a larger disk");
        }
    }
}

fn cannot_open(found: &mut Findings, error: &DataError) {
    let (about, remedy) = match error {
        DataError::MasterKeyMissing { .. } => {
            ("master key", "put master.key back from a backup; without it no credential can be opened")
        }
        DataError::MasterKeyText(_) => {
            ("master key", "give the lines of a key file, divided by commas: a version, a space and 64 hex digits each")
        }
        DataError::NoMasterKey { .. } => ("master key", "give the keys of this database's last rotation"),
        DataError::Vault(_) | DataError::WrongMasterKey { .. } => {
            ("master key", "put the master.key back with which this database was written")
        }
        DataError::Store(StoreError::Older { .. }) => {
            ("database", "start the server: it brings the database up to date. Make a backup before")
        }
        DataError::Store(StoreError::Newer { .. }) => ("database", "upgrade monstrum"),
        DataError::Rows(RowKeyError::Unsealed) => {
            ("database", "stop all servers of this database and run `monstrum vault seal` once")
        }
        DataError::Rows(_) => ("database", FINISH_ROTATION),
        DataError::Store(_) => {
            ("database", "does it run, and is it within reach? may its user log in? is its file there?")
        }
        _ => ("data_dir", "run this as the user who runs the server"),
    };
    found.broken(about, with_causes(error), remedy);
}

/// Checks plugins, resources and credentials with the functions that a server uses.
async fn check_policy(found: &mut Findings, settings: &Settings, data: &Inspected) -> Result<(), StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let about = settings.plugins_dir.display().to_string();
    // Doctor must not write to the server's cache and does not have the key that authenticates it.
    let cache = match tempfile::tempdir() {
        Ok(cache) => cache,
        Err(error) => {
            found.broken("plugins", format!("they cannot be tried out: {error}"), "make room in the temporary folder");
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
            found.broken(about, with_causes(&error), "no plugin is loaded until this is mended");
            return Ok(());
        }
    };
    if let Err(error) = plugins.examine().await {
        found.broken(about, with_causes(&error), "no plugin is loaded until this is mended");
    }
    check_plugins(found, &plugins, &settings.plugins_dir);
    check_keys(found, settings, data).await?;
    #[cfg(target_os = "linux")]
    sandboxes::check(found, settings, data).await?;
    check_trust(found, data).await?;
    // Credentials are opened but never sent.
    let egress = Egress::new(EgressOptions::default());
    let refresher = Refresher::new(data.store.clone(), Arc::clone(&data.vault), egress, Arc::new(SystemClock));
    let policy = Policy::open(data.store.clone(), Arc::new(refresher), plugins).await?;
    check_rows(found, data).await?;
    let rows = data.store.snapshot().await?;
    patterns::check(found, settings, &rows, &policy);
    check_resources(found, rows.resources, &policy, clock.as_ref());
    Ok(())
}

/// Reports credentials that need a missing or an older master key. A server checks only the newest key when it starts.
async fn check_keys(found: &mut Findings, settings: &Settings, data: &Inspected) -> Result<(), StoreError> {
    for version in lost_key_versions(&data.store, &data.vault).await? {
        let what =
            format!("{}: there is no key of version {version}, which has sealed credentials", settings.master_key);
        found.broken("master key", what, "put it back from a backup, or save those credentials anew");
    }
    let newest = i64::from(data.vault.key_version());
    let held: Vec<i64> = data.vault.keys().versions().map(i64::from).filter(|version| *version < newest).collect();
    if data.store.credential_key_versions().await?.iter().any(|version| held.contains(version)) {
        let what = format!("{}: credentials are still sealed with a key before version {newest}", settings.master_key);
        found.weak("master key", what, "stop the server and finish the rotation: monstrum vault rotate");
    }
    Ok(())
}

/// Reports keys that are trusted for every resource type: their plugins may use any type without an owner.
async fn check_trust(found: &mut Findings, data: &Inspected) -> Result<(), StoreError> {
    let mut page = Page::first(PAGE_ITEMS_MAX);
    loop {
        let listed = data.store.trust(&page).await?;
        for row in listed.items.iter().filter(|row| row.type_glob == "*") {
            let TrustRow { id, public_key, name_glob, .. } = row;
            let what = format!("the key {public_key} may sign plugins `{name_glob}` of every resource type");
            let remedy = format!(
                "name the types that it is for: monstrum trust remove {id}, then \
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
        let serves_on = entry.serving.map(|plugin| format!(" (version {} serves on)", plugin.manifest.version));
        match (entry.status, entry.error, entry.pending) {
            (PluginStatus::Failed, error, _) => {
                let error = error.unwrap_or_default();
                let what = format!("it does not load{}: {error}", serves_on.unwrap_or_default());
                found.broken(
                    about,
                    what,
                    format!("`monstrum plugin validate {}` shows each fault in its place", folder.display()),
                );
            }
            (PluginStatus::NeedsApproval, _, Some(pending)) => {
                let version = &pending.plugin.manifest.version;
                let what = format!("version {version} asks for more and waits: {}", pending.added.join("; "));
                let remedy = format!(
                    "if that is meant: monstrum plugin approve {} --digest {} --manifest-digest {}",
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

/// Reports serving versions that exceed a limit introduced after they were loaded. The next version must not exceed it.
fn check_limits(found: &mut Findings, serving: &Plugin) {
    let exceeds: Vec<&str> = serving.exceeds().map(String::as_str).collect();
    if !exceeds.is_empty() {
        let version = &serving.manifest.version;
        let what =
            format!("version {version} serves on, but a next version like it is refused: {}", exceeds.join("; "));
        let remedy = "its author makes a version that keeps the limits: docs/authors-guide.md has them";
        found.weak(format!("plugin {}", serving.name), what, remedy);
    }
}

/// Reports rows that another program has written, changed, removed or restored.
async fn check_rows(found: &mut Findings, data: &Inspected) -> Result<(), StoreError> {
    let verified = data.store.verify_rows().await?;
    let anchors = Anchors::read(&data.store, &data.audit_keys).await?;
    for row in &verified.refused {
        let remedy = "find out who wrote it; `monstrum vault seal --scope` deletes it with --delete, or accepts it";
        found.broken(format!("row {row}"), row.refusal(), remedy);
    }
    for scope in &verified.unverified {
        let remedy = format!(
            "find the cause first; `monstrum vault seal --scope {}` then seals what is there, or put back a whole backup",
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
                    format!("no plugin that is loaded serves its type `{}`, so nothing can use it", row.resource_type)
                }
                Some(_) => {
                    format!("its configuration does not fit its type `{}`, so nothing can use it", row.resource_type)
                }
            };
            found.broken(about, what, format!("mend the plugin, or configure or delete resource {}", row.id));
            continue;
        };
        check_credential(found, about, resource, clock);
    }
}

fn check_credential(found: &mut Findings, about: String, resource: &Resource, clock: &dyn Clock) {
    let Some(held) = &resource.credential else { return };
    let id = resource.row.id;
    if resource.credential_source().status() == CredentialState::NeedsAuthorization {
        let what = "its credential needs authorization: another plugin serves the type by now, or plugin or configuration ask \
                    for more than it was given for";
        let remedy = format!("confirm it (POST /api/resources/{id}/credential/confirm), or save it anew");
        found.broken(about, what, remedy);
    } else if held.row.expires_at.is_some_and(|end| end <= clock.now()) {
        found.broken(
            about,
            "its credential has expired",
            format!("save a new one (PUT /api/resources/{id}/credential)"),
        );
    }
}
