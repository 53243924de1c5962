//! The changes of permissions, with the states before and after them.

use askama::Template;
use axum::extract::Query;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::with_query;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Tabs;
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Change {
    request_id: String,
    #[serde(default)]
    change: Option<Text>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    message: Option<Text>,
    #[serde(default)]
    key_kind: Option<Text>,
    #[serde(default)]
    object: Option<Text>,
    started_at: UtcMillis,
    #[serde(default)]
    before: Value,
    #[serde(default)]
    after: Value,
}

impl Change {
    fn class(&self) -> &'static str {
        page::class_of(self.status.as_deref().unwrap_or("running"))
    }

    fn what(&self) -> Text {
        self.change.clone().unwrap_or_default()
    }

    fn object(&self) -> Text {
        self.object.clone().unwrap_or_default()
    }

    fn key_kind(&self) -> Text {
        self.key_kind.clone().unwrap_or_default()
    }

    fn before_text(&self) -> Text {
        pretty(&self.before)
    }

    fn after_text(&self) -> Text {
        pretty(&self.after)
    }
}

#[derive(Deserialize)]
struct Changes {
    items: Vec<Change>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "console/changes.html")]
struct ChangesPage {
    frame: Frame,
    tabs: Tabs,
    changes: Vec<Change>,
    next: Option<String>,
}

/// Shows the changes.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/audit/changes", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) = tokio::join!(
        visit.frame("activity", visit.words().text("activity.title")),
        visit.client.get::<Changes>(&path),
    );
    let Changes { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("activity/changes"), &[("cursor", &cursor)]));
    Ok(page::render(&ChangesPage { frame, tabs: Tabs::of(&visit, "changes"), changes: items, next }))
}
