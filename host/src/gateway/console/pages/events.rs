//! The events of the workspace: the list, and one event with its deliveries.

use askama::Template;
use axum::extract::{Path, Query};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::{segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::pages::deliveries::Delivery;
use crate::gateway::console::pages::tasks::{bots, name_of};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The kinds of sources among which the filter chooses.
const SOURCES: [&str; 8] = ["task", "workflow", "schedule", "session", "approval", "bot", "platform", "webhook"];
/// The maximum size of the data of an event on its page.
const DATA_MAX: usize = 128 << 10;
/// The maximum number of deliveries on the page of an event. The API tells up to 1000.
const DELIVERIES_MAX: usize = 100;

/// A tab above the lists of events.
pub(super) struct Tab {
    pub label: &'static str,
    pub href: String,
    pub current: bool,
}

/// Returns the tabs above the lists of events, for the lists that the key may read.
pub(super) fn tabs(visit: &Visit, current: &str) -> Vec<Tab> {
    let tabs = [
        ("events", "events_list", "events.title"),
        ("deliveries", "events_list_deliveries", "deliveries.title"),
        ("subscriptions", "subscriptions_list", "subscriptions.title"),
        ("webhooks", "webhooks_list", "webhooks.title"),
        ("wakes", "wakes_list", "wakes.title"),
    ];
    let allowed = tabs.into_iter().filter(|(_, operation, _)| visit.may(operation));
    let tab = |(name, _, label): (&'static str, &str, &'static str)| Tab {
        label: visit.words().text(label),
        href: visit.to(name),
        current: name == current,
    };
    allowed.map(tab).collect()
}

/// An event as the API tells it.
#[derive(Deserialize)]
struct Event {
    id: String,
    sequence: Option<i64>,
    event_type: Text,
    source_type: String,
    source_id: Text,
    #[serde(default)]
    bot_id: Option<String>,
    data: Value,
    metadata: Metadata,
    created_at: UtcMillis,
}

/// What the platform knows about an event.
#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    task_id: Option<Text>,
    #[serde(default)]
    run_id: Option<Text>,
    #[serde(default)]
    request_id: Option<Text>,
    #[serde(default)]
    delivery_id: Option<Text>,
    root_event_id: String,
    depth: u64,
}

impl Event {
    /// Returns the path of the page of the source, if the source has one.
    fn source_page(&self, frame: &Frame) -> Option<String> {
        let section = match self.source_type.as_str() {
            "task" => "tasks",
            "workflow" => "workflows",
            "schedule" => "schedules",
            "session" => "sessions",
            "bot" => "bots",
            "webhook" => "webhooks",
            _ => return None,
        };
        Some(frame.to(&format!("{section}/{}", segment(self.source_id.raw()))))
    }
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    event_type: String,
    #[serde(default)]
    source_type: String,
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    since: String,
    #[serde(default)]
    until: String,
    #[serde(default)]
    cursor: String,
}

impl Filter {
    fn parameters(&self) -> [(&'static str, &str); 5] {
        [
            ("event_type", self.event_type.trim()),
            ("source_type", &self.source_type),
            ("bot_id", &self.bot_id),
            ("since", self.since.trim()),
            ("until", self.until.trim()),
        ]
    }

    fn is_set(&self) -> bool {
        self.parameters().iter().any(|(_, value)| !value.is_empty())
    }
}

#[derive(Template)]
#[template(path = "console/events.html")]
struct ListPage {
    frame: Frame,
    tabs: Vec<Tab>,
    events: Vec<Event>,
    bots: Vec<Named>,
    sources: [&'static str; 8],
    filter: Filter,
    list: String,
    next: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }
}

/// Shows the events of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Event>,
        next_cursor: Option<String>,
    }
    let mut parameters = filter.parameters().to_vec();
    parameters.extend([("limit", "50"), ("cursor", filter.cursor.as_str())]);
    let path = with_query("/api/events", &parameters);
    let (frame, read, bots) = tokio::join!(
        visit.frame("events", visit.words().text("events.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = read?;
    let list = visit.to("events");
    let next = next_cursor.map(|cursor| {
        let mut parameters = filter.parameters().to_vec();
        parameters.push(("cursor", &cursor));
        with_query(&list, &parameters)
    });
    let tabs = tabs(&visit, "events");
    Ok(page::render(&ListPage { frame, tabs, events: items, bots, sources: SOURCES, filter, list, next }))
}

#[derive(Template)]
#[template(path = "console/event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    bot: Option<Named>,
    data: Text,
    /// Whether the page shows the data shortened.
    is_cut: bool,
    deliveries: Vec<Delivery>,
    /// The number of deliveries that the page does not show.
    more_deliveries: usize,
    /// The path of the forms that try a delivery again, for keys that may.
    retry: Option<String>,
}

/// Shows an event with its deliveries.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Shown {
        #[serde(flatten)]
        event: Event,
        deliveries: Vec<Delivery>,
    }
    let shown = visit.client.get::<Shown>(&format!("/api/events/{}", segment(&id))).await?;
    let Shown { event, mut deliveries } = shown;
    let title = event.event_type.to_string();
    let bot = async {
        let path = format!("/api/bots/{}", segment(event.bot_id.as_deref()?));
        visit.client.get::<Named>(&path).await.ok()
    };
    let (frame, bot) = tokio::join!(visit.frame("events", &title), bot);
    let (data, is_whole) = within(pretty(&event.data).raw(), &mut { DATA_MAX });
    let more_deliveries = deliveries.len().saturating_sub(DELIVERIES_MAX);
    deliveries.truncate(DELIVERIES_MAX);
    let retry = visit.may("events_retry").then(|| visit.to("deliveries"));
    let page = EventPage { frame, event, bot, data, is_cut: !is_whole, deliveries, more_deliveries, retry };
    Ok(page::render(&page))
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;

    use super::*;
    use crate::gateway::console::words::Words;

    #[test]
    fn each_kind_of_source_has_a_word() {
        for language in [UiLanguage::English, UiLanguage::Chinese] {
            for source in SOURCES {
                assert!(Words::of(language).known(&format!("event_source.{source}")).is_some(), "{source}");
            }
        }
    }
}
