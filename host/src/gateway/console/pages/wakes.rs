//! The turns that objects wait for, and those that have failed.

use askama::Template;
use axum::extract::Query;
use monstrum_types::UtcMillis;
use serde::Deserialize;

use crate::gateway::console::client::{segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::events::{Tab, tabs};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The value of the filter that shows all turns.
const ALL: &str = "all";

/// A wake as the API tells it.
#[derive(Deserialize)]
struct Wake {
    key: Text,
    due_at: UtcMillis,
    claimed_by: Option<Text>,
    failures: i64,
    last_error: Option<Text>,
}

impl Wake {
    /// Returns the path of the page of the object that has the turn, if the object has one.
    fn page(&self, frame: &Frame) -> Option<String> {
        let mut parts = self.key.raw().split('/');
        let (kind, id) = (parts.next()?, parts.next()?);
        let section = match kind {
            "task" => "tasks",
            "schedule" => "schedules",
            "event" => "events",
            // The turn of a step has the run and the step in its key.
            "run" | "step" => "runs",
            _ => return None,
        };
        Some(frame.to(&format!("{section}/{}", segment(id))))
    }

    /// Returns what the turn does now, as a word of the group `wake_state`.
    fn state(&self) -> &'static str {
        match (&self.claimed_by, self.failures) {
            (Some(_), _) => "running",
            (None, 0) => "due",
            (None, _) => "failing",
        }
    }

    /// Returns the class of the state in the style sheet.
    fn class(&self) -> &'static str {
        match self.state() {
            "running" => "running",
            "failing" => "error",
            _ => "waiting",
        }
    }
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    /// `all` for the turns that have not failed too.
    #[serde(default)]
    show: String,
    #[serde(default)]
    cursor: String,
}

impl Filter {
    fn is_all(&self) -> bool {
        self.show == ALL
    }
}

#[derive(Template)]
#[template(path = "console/wakes.html")]
struct ListPage {
    frame: Frame,
    tabs: Vec<Tab>,
    wakes: Vec<Wake>,
    filter: Filter,
    list: String,
    next: Option<String>,
}

/// Shows the turns that have failed, or all turns.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Wake>,
        next_cursor: Option<String>,
    }
    let failing = if filter.is_all() { "" } else { "true" };
    let parameters = [("failing", failing), ("limit", "50"), ("cursor", filter.cursor.as_str())];
    let path = with_query("/api/wakes", &parameters);
    let (frame, read) =
        tokio::join!(visit.frame("events", visit.words().text("wakes.title")), visit.client.get::<List>(&path));
    let List { items, next_cursor } = read?;
    let list = visit.to("wakes");
    let next = next_cursor.map(|cursor| with_query(&list, &[("show", &filter.show), ("cursor", &cursor)]));
    let tabs = tabs(&visit, "wakes");
    Ok(page::render(&ListPage { frame, tabs, wakes: items, filter, list, next }))
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;
    use serde_json::json;

    use super::*;
    use crate::gateway::console::words::Words;

    fn wake(claimed_by: Option<&str>, failures: i64) -> Wake {
        serde_json::from_value(json!({
            "key": "task/a", "due_at": "2026-01-02T03:04:05.000Z", "claimed_by": claimed_by, "claimed_until": null,
            "failures": failures, "last_error": null,
        }))
        .unwrap()
    }

    #[test]
    fn the_state_of_a_turn_has_a_word() {
        for (wake, state) in [(wake(Some("h"), 3), "running"), (wake(None, 0), "due"), (wake(None, 1), "failing")] {
            assert_eq!(wake.state(), state);
            for language in [UiLanguage::English, UiLanguage::Chinese] {
                assert!(Words::of(language).known(&format!("wake_state.{state}")).is_some(), "{state}");
            }
        }
    }
}
