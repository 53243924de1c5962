//! The deliveries of events: what events have started, and trying a dead delivery again.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::events::{Tab, tabs};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The statuses among which the filter chooses.
const STATUSES: [&str; 3] = ["pending", "done", "dead"];

/// A delivery as the API tells it.
#[derive(Deserialize)]
pub(super) struct Delivery {
    pub id: String,
    pub event_id: String,
    pub target: Target,
    pub status: String,
    pub attempts: i64,
    #[serde(default)]
    pub next_at: Option<UtcMillis>,
    #[serde(default)]
    pub reason: Option<String>,
    /// The parts of the data of the event that do not fit the input of a workflow.
    #[serde(default)]
    pub invalid_paths: Vec<Text>,
    #[serde(default)]
    pub task_id: Option<String>,
    #[serde(default)]
    pub run_id: Option<String>,
    pub created_at: UtcMillis,
}

/// What a delivery is for.
#[derive(Deserialize)]
pub(super) struct Target {
    pub kind: String,
    pub id: Text,
}

impl Delivery {
    /// Returns the class of the status in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        match self.status.as_str() {
            "done" => "success",
            "dead" => "error",
            _ => "waiting",
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.status == "dead"
    }

    /// Returns the path of the page of the target, if the target has one.
    pub(super) fn target_page(&self, frame: &Frame) -> Option<String> {
        let is_subscription = self.target.kind == "subscription";
        is_subscription.then(|| frame.to(&format!("subscriptions/{}", segment(self.target.id.raw()))))
    }
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    status: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/deliveries.html")]
struct ListPage {
    frame: Frame,
    tabs: Vec<Tab>,
    deliveries: Vec<Delivery>,
    statuses: [&'static str; 3],
    filter: Filter,
    list: String,
    /// The path of the forms that try a delivery again, for keys that may.
    retry: Option<String>,
    next: Option<String>,
}

/// Shows the deliveries of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Delivery>,
        next_cursor: Option<String>,
    }
    let parameters = [("status", filter.status.as_str()), ("limit", "50"), ("cursor", &filter.cursor)];
    let path = with_query("/api/deliveries", &parameters);
    let (frame, read) =
        tokio::join!(visit.frame("events", visit.words().text("deliveries.title")), visit.client.get::<List>(&path),);
    let List { items, next_cursor } = read?;
    let list = visit.to("deliveries");
    let next = next_cursor.map(|cursor| with_query(&list, &[("status", &filter.status), ("cursor", &cursor)]));
    let retry = visit.may("events_retry").then(|| list.clone());
    let tabs = tabs(&visit, "deliveries");
    Ok(page::render(&ListPage { frame, tabs, deliveries: items, statuses: STATUSES, filter, list, retry, next }))
}

/// Tries a dead delivery again, and shows its event.
pub(in crate::gateway::console) async fn retry(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    // The form names the event, whose page then tells what became of the delivery.
    let back = visit.to(&format!("events/{}", segment(visit.fields().value("event"))));
    let path = format!("/api/deliveries/{}/retry", segment(&id));
    match visit.client.act(Method::POST, &path, Some(&json!({})), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("deliveries.retried").to_owned(), &back).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(visit.refused(refusal.detail, &back).await),
        Err(failure) => Err(failure),
    }
}
