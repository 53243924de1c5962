//! The webhooks, by which systems outside make events: the list, one webhook, a new secret and deleting it.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, Versioned, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::deletion::{self, ConfirmPage};
use crate::gateway::console::pages::events::{Tab, tabs};
use crate::gateway::console::pages::tasks::{bots, name_of};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// A webhook as the API tells it.
#[derive(Deserialize)]
pub(super) struct Webhook {
    pub id: String,
    url: Text,
    pub name: Text,
    pub event: Text,
    #[serde(default)]
    pub bot_id: Option<String>,
    pub verify: Verify,
    pub headers: Vec<Text>,
    #[serde(default)]
    pub dedupe_header: Option<Text>,
    secret_created_at: UtcMillis,
    created_at: UtcMillis,
}

/// How the requests to a webhook are authenticated.
#[derive(Clone, Default, Deserialize)]
pub(super) struct Verify {
    pub kind: String,
    #[serde(default)]
    pub header: Option<Text>,
    #[serde(default)]
    pub prefix: Option<Text>,
}

impl Webhook {
    /// Returns the path of the page of the webhook.
    pub(super) fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("webhooks/{}", segment(&self.id)))
    }

    /// Returns the headers on one line.
    fn all_headers(&self) -> String {
        self.headers.iter().map(Text::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the path of a webhook in the API.
pub(super) fn path_of(id: &str) -> String {
    format!("/api/webhooks/{}", segment(id))
}

/// Reads a webhook with its version.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Versioned<Webhook>, Failure> {
    visit.client.get_versioned::<Webhook>(&path_of(id)).await
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Shown {
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/webhooks.html")]
struct ListPage {
    frame: Frame,
    tabs: Vec<Tab>,
    webhooks: Vec<Webhook>,
    bots: Vec<Named>,
    list: String,
    next: Option<String>,
    /// Whether systems outside can reach this server by its URL.
    is_public: bool,
    /// The path of the form of a new webhook, for keys that may create one.
    new: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }
}

/// Shows the webhooks of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(shown): Query<Shown>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Webhook>,
        next_cursor: Option<String>,
    }
    let path = with_query("/api/webhooks", &[("limit", "50"), ("cursor", &shown.cursor)]);
    let (frame, read, bots) = tokio::join!(
        visit.frame("events", visit.words().text("webhooks.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = read?;
    let list = visit.to("webhooks");
    let next = next_cursor.map(|cursor| with_query(&list, &[("cursor", &cursor)]));
    let new = visit.may("webhooks_create").then(|| visit.to("webhooks/new"));
    let (tabs, is_public) = (tabs(&visit, "webhooks"), visit.console.is_public);
    Ok(page::render(&ListPage { frame, tabs, webhooks: items, bots, list, next, is_public, new }))
}

#[derive(Template)]
#[template(path = "console/webhook.html")]
struct WebhookPage {
    frame: Frame,
    webhook: Webhook,
    base: String,
    bot: Option<Named>,
    is_public: bool,
    may_change: bool,
    may_rotate: bool,
    may_delete: bool,
    /// The path of the list of the events that the webhook has made.
    events: String,
}

/// Shows a webhook.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let webhook = read(&visit, &id).await?.value;
    let (base, title) = (webhook.base(&visit), webhook.name.to_string());
    let bot = async {
        let path = format!("/api/bots/{}", segment(webhook.bot_id.as_deref()?));
        visit.client.get::<Named>(&path).await.ok()
    };
    let (frame, bot) = tokio::join!(visit.frame("events", &title), bot);
    let event_type = format!("custom.{}", webhook.event.raw());
    let page = WebhookPage {
        events: with_query(&visit.to("events"), &[("event_type", &event_type)]),
        is_public: visit.console.is_public,
        may_change: visit.may("webhooks_update"),
        may_rotate: visit.may("webhooks_rotate"),
        may_delete: visit.may("webhooks_delete"),
        frame,
        webhook,
        base,
        bot,
    };
    Ok(page::render(&page))
}

/// A webhook with its secret, as the API tells it once.
#[derive(Deserialize)]
pub(super) struct Secret {
    id: String,
    name: Text,
    url: Text,
    secret: Text,
}

#[derive(Template)]
#[template(path = "console/webhook_shown.html")]
struct ShownPage {
    frame: Frame,
    made: Secret,
    is_public: bool,
}

/// Shows a secret. The page is the answer of the form, because a secret is shown only once.
pub(super) async fn shown(visit: &Visit, made: Secret) -> Page {
    let frame = visit.frame("events", visit.words().text("webhook.shown")).await;
    Ok(page::render(&ShownPage { frame, made, is_public: visit.console.is_public }))
}

/// Gives a webhook a new secret, and shows it.
pub(in crate::gateway::console) async fn rotate(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let path = format!("{}/rotate", path_of(&id));
    let made = visit.client.send::<Secret>(Method::POST, &path, &json!({}), Conditions::default()).await?;
    shown(&visit, made).await
}

/// Asks before a webhook is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    if !visit.may("webhooks_delete") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: webhook, version } = read(&visit, &id).await?;
    let (words, back) = (visit.words(), webhook.base(&visit));
    let frame = visit.frame("events", words.text("webhook.delete")).await;
    let text = words.filled("webhook.delete_text", &[&webhook.name]);
    let action = format!("{back}/delete");
    Ok(page::render(&ConfirmPage { frame, name: webhook.name, text, action, version, back }))
}

/// Deletes a webhook whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let webhook = read(&visit, &id).await?.value;
    let back = format!("{}/delete", webhook.base(&visit));
    deletion::delete_named(&visit, &path_of(&id), &webhook.name, &back, "webhooks").await
}
