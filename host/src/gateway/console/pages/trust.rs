//! The trusted signing keys, which decide whose packages are installed.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct TrustedKey {
    id: String,
    public_key: Text,
    name_glob: Text,
    type_glob: Text,
    created_at: UtcMillis,
}

#[derive(Deserialize)]
struct TrustedKeys {
    items: Vec<TrustedKey>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "console/trust.html")]
struct ListPage {
    frame: Frame,
    keys: Vec<TrustedKey>,
    next: Option<String>,
}

/// Shows the trusted keys.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/trust", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) =
        tokio::join!(visit.frame("trust", visit.words().text("nav.trust")), visit.client.get::<TrustedKeys>(&path));
    let TrustedKeys { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("trust"), &[("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, keys: items, next }))
}

#[derive(Template)]
#[template(path = "console/trust_new.html")]
struct NewPage {
    frame: Frame,
    public_key: Text,
    name_glob: Text,
    type_glob: Text,
    errors: Vec<(Text, Text)>,
}

async fn form(visit: &Visit, errors: Vec<(Text, Text)>) -> Result<NewPage, Failure> {
    if !visit.may("trust_create") {
        return Err(Failure::forbidden());
    }
    let value = |name: &str| Text::from(visit.fields().value(name));
    Ok(NewPage {
        frame: visit.frame("trust", visit.words().text("trust.new")).await,
        public_key: value("public_key"),
        name_glob: value("name_glob"),
        type_glob: value("type_glob"),
        errors,
    })
}

/// Shows the form of a new trusted key.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    Ok(page::render(&form(&visit, Vec::new()).await?))
}

/// Adds a trusted key.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    let fields = visit.fields();
    let mut body = json!({"public_key": fields.value("public_key").trim(), "name_glob": fields.value("name_glob")});
    if !fields.value("type_glob").is_empty() {
        body["type_glob"] = fields.value("type_glob").into();
    }
    match visit.client.act(Method::POST, "/api/trust", Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("trust.added").to_owned(), &visit.to("trust")).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &form(&visit, refusal.told()).await?))
        }
        Err(failure) => Err(failure),
    }
}

async fn found(visit: &Visit, id: &str) -> Result<TrustedKey, Failure> {
    let mut cursor = String::new();
    // The API has no route for one trusted key. A server has few of them, so few pages are read.
    loop {
        let path = with_query("/api/trust", &[("limit", "1000"), ("cursor", &cursor)]);
        let TrustedKeys { items, next_cursor } = visit.client.get::<TrustedKeys>(&path).await?;
        if let Some(key) = items.into_iter().find(|key| key.id == id) {
            return Ok(key);
        }
        cursor = next_cursor.ok_or_else(Failure::not_found)?;
    }
}

/// Asks before a trusted key is removed.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let key = found(&visit, &id).await?;
    let frame = visit.frame("trust", visit.words().text("trust.remove")).await;
    let text = visit.words().filled("trust.remove_text", &[&key.public_key, &key.name_glob]);
    let action = visit.to(&format!("trust/{}/delete", segment(&key.id)));
    let (name, version, back) = (Text::default(), String::new(), visit.to("trust"));
    Ok(page::render(&ConfirmPage { frame, name, text, action, version, back }))
}

/// Removes a trusted key.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    visit.client.act(Method::DELETE, &format!("/api/trust/{}", segment(&id)), None, Conditions::default()).await?;
    Ok(visit.done(visit.words().text("trust.removed").to_owned(), &visit.to("trust")).await)
}
