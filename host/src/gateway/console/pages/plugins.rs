//! The plugins: what is loaded, what failed, and the versions that wait for approval.

mod diff;
mod registry;

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;
use diff::Diff;
use registry::Registry;
pub(in crate::gateway::console) use registry::install;

/// The manual about the installation of plugins.
const GUIDE: &str = "https://github.com/MonstrumAI/monstrum/blob/main/docs/packages.md";

#[derive(Deserialize)]
struct Plugin {
    name: Text,
    status: String,
    #[serde(default)]
    version: Option<Text>,
    #[serde(default)]
    description: Option<Text>,
    #[serde(default)]
    author: Option<Text>,
    #[serde(default)]
    license: Option<Text>,
    #[serde(default)]
    digest: Option<Text>,
    #[serde(default)]
    error: Option<Text>,
    #[serde(default)]
    capabilities: Vec<Text>,
    #[serde(default)]
    tools: Vec<Text>,
    #[serde(default)]
    warnings: Vec<Text>,
    #[serde(default)]
    pending: Option<Pending>,
}

#[derive(Deserialize)]
struct Pending {
    version: Text,
    digest: Text,
    manifest_digest: Text,
    grows: Vec<Text>,
}

impl Plugin {
    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "loaded" => "success",
            "needs_approval" => "waiting",
            _ => "error",
        }
    }
}

#[derive(Deserialize)]
struct Plugins {
    items: Vec<Plugin>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "console/plugins.html")]
struct ListPage {
    frame: Frame,
    plugins: Vec<Plugin>,
    /// The plugins folder of the server, for keys that install plugins.
    folder: Option<Text>,
    guide: &'static str,
    next: Option<String>,
    /// What the registry has, for keys that install plugins from it. Absent if no registry is configured.
    registry: Option<Registry>,
    /// What went wrong with an installation.
    errors: Vec<(Text, Text)>,
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct ListQuery {
    #[serde(default)]
    cursor: String,
    /// What is searched in the registry.
    #[serde(default)]
    q: String,
    /// The position in the list of the registry.
    #[serde(default)]
    from: String,
}

/// Shows the plugins.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    show_list(&visit, query, Vec::new(), StatusCode::OK).await
}

async fn show_list(visit: &Visit, query: ListQuery, errors: Vec<(Text, Text)>, status: StatusCode) -> Page {
    let path = with_query("/api/plugins", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list, registry) = tokio::join!(
        visit.frame("plugins", visit.words().text("nav.plugins")),
        visit.client.get::<Plugins>(&path),
        registry::read(visit, &query),
    );
    let Plugins { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("plugins"), &[("cursor", &cursor)]));
    // A path of the server is for those who run it.
    let dir = visit.console.app.plugins.dir();
    let folder = visit.may("plugins_install").then(|| Text::from(dir.display().to_string()));
    let page = ListPage { frame, plugins: items, folder, guide: GUIDE, next, registry, errors };
    Ok(page::render_as(status, &page))
}

#[derive(Template)]
#[template(path = "console/plugin.html")]
struct ShowPage {
    frame: Frame,
    plugin: Plugin,
    /// The comparison of the version that waits with the version before it, if the key may read it.
    diff: Option<Diff>,
    errors: Vec<(Text, Text)>,
    base: String,
    may_approve: bool,
    may_reload: bool,
}

/// Shows a plugin and, if a version waits, what it requests in addition.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    shown(&visit, &name, Vec::new(), StatusCode::OK).await
}

async fn shown(visit: &Visit, name: &str, errors: Vec<(Text, Text)>, status: StatusCode) -> Page {
    let path = format!("/api/plugins/{}", segment(name));
    let title = Text::from(name).to_string();
    let (frame, plugin) = tokio::join!(visit.frame("plugins", &title), visit.client.get::<Plugin>(&path));
    let plugin = plugin?;
    let may_approve = visit.may("plugins_approve");
    // Without the comparison, the page offers no approval.
    let diff = match may_approve && plugin.pending.is_some() {
        true => diff::read(visit, name).await.ok(),
        false => None,
    };
    let base = visit.to(&format!("plugins/{}", segment(name)));
    let may_reload = visit.may("plugins_reload");
    Ok(page::render_as(status, &ShowPage { frame, plugin, diff, errors, base, may_approve, may_reload }))
}

/// Approves the version that the page showed, by both of its digests. If another version waits, the page shows it.
pub(in crate::gateway::console) async fn approve(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    let fields = visit.fields();
    let body = json!({"digest": fields.value("digest"), "manifest_digest": fields.value("manifest_digest")});
    match acted(&visit, &name, "approve", Some(&body)).await {
        Ok(()) => done(&visit, &name, "plugins.approved_now").await,
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            shown(&visit, &name, refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}

/// Reads the folder of a plugin again.
pub(in crate::gateway::console) async fn reload(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    match acted(&visit, &name, "reload", None).await {
        Ok(()) => done(&visit, &name, "plugins.reloaded").await,
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            Ok(visit.refused(refusal.detail, &visit.to(&format!("plugins/{}", segment(&name)))).await)
        }
        Err(failure) => Err(failure),
    }
}

async fn acted(visit: &Visit, name: &str, verb: &str, body: Option<&Value>) -> Result<(), Failure> {
    let path = format!("/api/plugins/{}/{verb}", segment(name));
    visit.client.act(Method::POST, &path, body, Conditions::default()).await
}

async fn done(visit: &Visit, name: &str, key: &str) -> Page {
    let base = visit.to(&format!("plugins/{}", segment(name)));
    Ok(visit.done(visit.words().text(key).to_owned(), &base).await)
}
