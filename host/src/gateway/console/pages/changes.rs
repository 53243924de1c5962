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
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum size of all states on one page, and of one of them.
const STATES_MAX: usize = 384 << 10;
const STATE_MAX: usize = 32 << 10;

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
    #[serde(skip)]
    shown: Shown,
}

/// What the page shows of the states before and after a change.
#[derive(Default)]
struct Shown {
    before: Text,
    after: Text,
    is_cut: bool,
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
}

/// Sets what the page shows of each state, as far as the page has room.
fn show_states(changes: &mut [Change]) {
    let mut left = STATES_MAX;
    for change in changes {
        let mut shown = |state: &Value| {
            let max = STATE_MAX.min(left);
            let mut room = max;
            let (text, is_whole) = within(pretty(state).raw(), &mut room);
            left -= max - room;
            (text, is_whole)
        };
        let ((before, is_before_whole), (after, is_after_whole)) = (shown(&change.before), shown(&change.after));
        change.shown = Shown { before, after, is_cut: !(is_before_whole && is_after_whole) };
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
    let Changes { mut items, next_cursor } = list?;
    show_states(&mut items);
    let next = next_cursor.map(|cursor| with_query(&visit.to("activity/changes"), &[("cursor", &cursor)]));
    Ok(page::render(&ChangesPage { frame, tabs: Tabs::of(&visit, "changes"), changes: items, next }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_are_cut_so_that_the_page_stays_small() {
        let change = |state: Value| -> Change {
            serde_json::from_value(json!({
                "request_id": "r", "started_at": UtcMillis(0).to_string(), "before": state, "after": state,
            }))
            .unwrap()
        };
        let mut changes = vec![change(json!({"name": "small"})), change(json!("<".repeat(100_000)))];
        changes.extend((0..48).map(|_| change(json!("x".repeat(100_000)))));
        show_states(&mut changes);
        assert!(!changes[0].shown.is_cut && changes[0].shown.after.raw().contains("small"));
        assert!(changes[1..].iter().all(|change| change.shown.is_cut));
        let bytes = |text: &Text| text.raw().replace('<', "&#60;").len();
        let all: usize = changes.iter().map(|change| bytes(&change.shown.before) + bytes(&change.shown.after)).sum();
        assert!(all <= STATES_MAX, "{all}");
    }
}
