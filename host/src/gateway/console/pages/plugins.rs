//! The plugins: what is loaded, what failed, and the versions that wait for approval.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

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
    next: Option<String>,
}

/// Shows the plugins.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/plugins", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) =
        tokio::join!(visit.frame("plugins", visit.words().text("nav.plugins")), visit.client.get::<Plugins>(&path));
    let Plugins { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("plugins"), &[("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, plugins: items, next }))
}

#[derive(Template)]
#[template(path = "console/plugin.html")]
struct ShowPage {
    frame: Frame,
    plugin: Plugin,
    base: String,
    may_approve: bool,
    may_reload: bool,
}

/// Shows a plugin and, if a version waits, what it requests in addition.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    let path = format!("/api/plugins/{}", segment(&name));
    let (frame, plugin) = tokio::join!(visit.frame("plugins", &name), visit.client.get::<Plugin>(&path));
    let base = visit.to(&format!("plugins/{}", segment(&name)));
    let (may_approve, may_reload) = (visit.may("plugins_approve"), visit.may("plugins_reload"));
    Ok(page::render(&ShowPage { frame, plugin: plugin?, base, may_approve, may_reload }))
}

/// Approves the version that the page showed, by both of its digests.
pub(in crate::gateway::console) async fn approve(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    let fields = visit.fields();
    let body = json!({"digest": fields.value("digest"), "manifest_digest": fields.value("manifest_digest")});
    acted(&visit, &name, "approve", &body, "plugins.approved_now").await
}

/// Reads the folder of a plugin again.
pub(in crate::gateway::console) async fn reload(visit: Visit, Path((_, name)): Path<(String, String)>) -> Page {
    acted(&visit, &name, "reload", &json!({}), "plugins.reloaded").await
}

async fn acted(visit: &Visit, name: &str, verb: &str, body: &serde_json::Value, key: &str) -> Page {
    let base = visit.to(&format!("plugins/{}", segment(name)));
    let path = format!("/api/plugins/{}/{verb}", segment(name));
    let body = (verb == "approve").then_some(body);
    match visit.client.act(Method::POST, &path, body, Conditions::default()).await {
        Ok(()) => Ok(visit.done(visit.words().text(key).to_owned(), &base).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            Ok(visit.refused(refusal.detail, &base).await)
        }
        Err(failure) => Err(failure),
    }
}
