//! The API keys. A key is shown once, on the page that answers its form.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Key {
    id: String,
    name: Text,
    kind: String,
    prefix: Text,
    created_at: UtcMillis,
    #[serde(default)]
    last_used_at: Option<UtcMillis>,
}

#[derive(Deserialize)]
struct Keys {
    items: Vec<Key>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: Text,
}

#[derive(Deserialize)]
struct NamedList {
    items: Vec<Named>,
}

#[derive(Template)]
#[template(path = "console/keys.html")]
struct ListPage {
    frame: Frame,
    keys: Vec<Key>,
    next: Option<String>,
}

/// Shows the keys.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/keys", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) =
        tokio::join!(visit.frame("keys", visit.words().text("nav.keys")), visit.client.get::<Keys>(&path));
    let Keys { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("keys"), &[("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, keys: items, next }))
}

#[derive(Template)]
#[template(path = "console/key_new.html")]
struct NewPage {
    frame: Frame,
    name: Text,
    kind: String,
    kinds: Vec<&'static str>,
    bots: Vec<Named>,
    bot_id: String,
    resources: Vec<Named>,
    resource_id: String,
    errors: Vec<(Text, Text)>,
}

#[derive(Template)]
#[template(path = "console/key_shown.html")]
struct ShownPage {
    frame: Frame,
    name: Text,
    key: Text,
}

#[derive(Deserialize)]
struct Shown {
    name: Text,
    key: Text,
}

async fn form(visit: &Visit, errors: Vec<(Text, Text)>) -> Result<NewPage, Failure> {
    let fields = visit.fields();
    let (frame, bots, resources) = tokio::join!(
        visit.frame("keys", visit.words().text("keys.new")),
        visit.client.get::<NamedList>("/api/bots?limit=200"),
        visit.client.get::<NamedList>("/api/resources?limit=200"),
    );
    let mut kinds = vec!["operator", "approver", "bot", "agent", "admin"];
    if visit.me.kind == "root" {
        kinds.push("root");
    }
    let value = |name: &str| fields.value(name).to_owned();
    Ok(NewPage {
        frame,
        name: fields.value("name").into(),
        kind: value("kind"),
        kinds,
        bots: bots?.items,
        bot_id: value("bot_id"),
        resources: resources?.items,
        resource_id: value("resource_id"),
        errors,
    })
}

/// Shows the form of a new key.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    Ok(page::render(&form(&visit, Vec::new()).await?))
}

/// Creates a key and shows it. The page is the answer of the form, because a key is shown only once.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    let fields = visit.fields();
    let kind = fields.value("kind");
    let id = |name: &str, of: &str| Some(fields.value(name)).filter(|value| kind == of && !value.is_empty());
    let body = json!({
        "name": fields.value("name"), "kind": kind, "bot_id": id("bot_id", "bot"), "resource_id": id("resource_id", "agent"),
    });
    shown(&visit, "/api/keys", &body).await
}

/// Replaces a key and shows the new one.
pub(in crate::gateway::console) async fn rotate(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    shown(&visit, &format!("/api/keys/{}/rotate", segment(&id)), &json!({})).await
}

async fn shown(visit: &Visit, path: &str, body: &serde_json::Value) -> Page {
    match visit.client.send::<Shown>(Method::POST, path, body, Conditions::default()).await {
        Ok(Shown { name, key }) => {
            let frame = visit.frame("keys", visit.words().text("keys.shown")).await;
            Ok(page::render(&ShownPage { frame, name, key }))
        }
        // A form that is sent twice finds the key that the first one has made.
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &form(visit, refusal.told()).await?))
        }
        Err(failure) => Err(failure),
    }
}

#[derive(Template)]
#[template(path = "console/key.html")]
struct ShowPage {
    frame: Frame,
    key: Key,
    base: String,
}

async fn found(visit: &Visit, id: &str) -> Result<Key, Failure> {
    let mut cursor = String::new();
    // The API has no route for one key. A workspace has few keys, so few pages are read.
    loop {
        let path = with_query("/api/keys", &[("limit", "1000"), ("cursor", &cursor)]);
        let Keys { items, next_cursor } = visit.client.get::<Keys>(&path).await?;
        if let Some(key) = items.into_iter().find(|key| key.id == id) {
            return Ok(key);
        }
        cursor = next_cursor.ok_or_else(Failure::not_found)?;
    }
}

/// Shows a key, with the forms that replace and delete it.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let key = found(&visit, &id).await?;
    let frame = visit.frame("keys", &key.name.to_string()).await;
    let base = visit.to(&format!("keys/{}", segment(&key.id)));
    Ok(page::render(&ShowPage { frame, key, base }))
}

/// Deletes a key whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let key = found(&visit, &id).await?;
    if visit.fields().value("name") != key.name.raw() {
        let told = visit.words().filled("confirm.name_differs", &[&key.name]);
        return Ok(visit.refused(told, &visit.to(&format!("keys/{}", segment(&id)))).await);
    }
    let path = format!("/api/keys/{}", segment(&id));
    match visit.client.act(Method::DELETE, &path, None, Conditions::default()).await {
        Ok(()) => Ok(visit.done(visit.words().text("keys.deleted").to_owned(), &visit.to("keys")).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => {
            Ok(visit.refused(refusal.detail, &visit.to("keys")).await)
        }
        Err(failure) => Err(failure),
    }
}
