//! The plugins of the registry, and installing one of them. A version that asks for more than the one before it waits for
//! approval, and its page follows.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::{ListQuery, Plugin, Plugins, show_list};
use crate::gateway::console::client::{Conditions, Failure, Refusal, segment, with_query};
use crate::gateway::console::page::Page;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;
use crate::gateway::console::words::Words;

/// A plugin of the registry as the API tells it.
#[derive(Deserialize)]
struct Listed {
    name: Text,
    #[serde(default)]
    description: Text,
    #[serde(default)]
    author: Text,
    version: Option<Text>,
}

/// A plugin of the registry.
pub(super) struct Available {
    pub name: Text,
    pub description: Text,
    pub author: Text,
    /// The newest release. Absent if all versions are pre-releases.
    pub version: Option<Text>,
    /// The version on the server.
    pub installed: Option<Text>,
}

impl Available {
    /// Returns whether the newest release is on the server.
    pub(super) fn is_newest(&self) -> bool {
        self.installed.is_some() && self.installed == self.version
    }
}

/// A page of the registry.
pub(super) struct Registry {
    /// Absent if the registry did not answer.
    pub items: Option<Vec<Available>>,
    pub search: Text,
    pub next: Option<String>,
    /// The paths of the list and of the form that installs a plugin.
    pub list: String,
    pub install: String,
}

/// Reads a page of the registry. Returns `None` without a registry, and for keys that install no plugins.
pub(super) async fn read(visit: &Visit, query: &ListQuery) -> Option<Registry> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Listed>,
        next_cursor: Option<String>,
    }
    if !visit.may("registry_list") || !visit.may("plugins_install") {
        return None;
    }
    let path = with_query("/api/registry", &[("limit", "50"), ("q", &query.q), ("cursor", &query.from)]);
    let (answer, installed) = tokio::join!(visit.client.get::<List>(&path), installed(visit));
    let (list, install, search) = (visit.to("plugins"), visit.to("registry/install"), query.q.as_str().into());
    match answer {
        Ok(List { items, next_cursor }) => {
            let next = next_cursor.map(|cursor| with_query(&list, &[("q", &query.q), ("from", &cursor)]));
            let available = |listed: Listed| {
                let installed = installed.get(listed.name.raw()).cloned();
                let Listed { name, description, author, version } = listed;
                Available { name, description, author, version, installed }
            };
            let items = Some(items.into_iter().map(available).collect());
            Some(Registry { items, search, next, list, install })
        }
        // No registry is configured.
        Err(Failure::Refused(refusal)) if refusal.status == 404 => None,
        Err(_) => Some(Registry { items: None, search, next: None, list, install }),
    }
}

/// Returns the versions of the plugins on the server: of each, the one that waits, or the one in force.
async fn installed(visit: &Visit) -> BTreeMap<String, Text> {
    let list = visit.client.get::<Plugins>("/api/plugins?limit=1000").await;
    let version = |plugin: Plugin| {
        let version = plugin.pending.map(|pending| pending.version).or(plugin.version)?;
        Some((plugin.name.raw().to_owned(), version))
    };
    list.map(|list| list.items.into_iter().filter_map(version).collect()).unwrap_or_default()
}

/// Installs a plugin of the registry, in the version that the page showed, and shows its page.
pub(in crate::gateway::console) async fn install(visit: Visit) -> Page {
    let (name, version) = (visit.fields().value("name"), visit.fields().value("version"));
    let body = json!({ "name": name, "version": version });
    match visit.client.send::<Plugin>(Method::POST, "/api/plugins", &body, Conditions::default()).await {
        Ok(plugin) => {
            let key = if plugin.pending.is_some() { "plugins.installed_waits" } else { "plugins.installed" };
            let page = visit.to(&format!("plugins/{}", segment(plugin.name.raw())));
            Ok(visit.done(visit.words().filled(key, &[&plugin.name]), &page).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 502) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            show_list(&visit, ListQuery::default(), told(visit.words(), &refusal), status).await
        }
        Err(failure) => Err(failure),
    }
}

/// Returns why a plugin was not installed: in the language of the page, and as the API says it.
fn told(words: &Words, refusal: &Refusal) -> Vec<(Text, Text)> {
    let named = |place: &str| refusal.errors.iter().any(|error| error.path == place);
    let key = match refusal.status {
        502 => Some("plugins.registry_failed"),
        _ if named("/signature") => Some("plugins.bad_signature"),
        _ if named("/name") => Some("plugins.unknown_name"),
        _ => None,
    };
    let first = key.map(|key| (Text::default(), Text::from(words.text(key))));
    let told = refusal.told().into_iter().map(|(_, message)| (Text::default(), message));
    first.into_iter().chain(told).collect()
}
