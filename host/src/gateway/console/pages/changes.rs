//! The changes of permissions, with the states before and after them.

use askama::Template;
use axum::extract::Query;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::with_query;
use crate::gateway::console::lines::{Line, difference};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Tabs;
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum size of all differences on one page, and of one of them.
const DIFFERENCES_MAX: usize = 384 << 10;
const DIFFERENCE_MAX: usize = 64 << 10;
/// The size of a line without its text: its element, its class and its sign.
const LINE_BYTES: usize = 40;

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

/// What the page shows of the difference between the states before and after a change.
#[derive(Default)]
struct Shown {
    lines: Vec<Line>,
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

/// Sets what the page shows of each change, as far as the page has room.
fn show_states(changes: &mut [Change]) {
    let mut left = DIFFERENCES_MAX;
    for change in changes {
        // An object that a change creates has no state before it.
        let state = |state: &Value| if state.is_null() { Text::default() } else { pretty(state) };
        let (before, after) = (state(&change.before), state(&change.after));
        let max = DIFFERENCE_MAX.min(left);
        let mut room = max;
        change.shown = cut(difference(before.raw(), after.raw()), &mut room);
        left -= max - room;
    }
}

/// Returns the lines for which there is room.
fn cut(lines: Vec<Line>, room: &mut usize) -> Shown {
    let mut shown = Shown::default();
    for line in lines {
        let Some(rest) = room.checked_sub(LINE_BYTES) else {
            shown.is_cut = true;
            break;
        };
        *room = rest;
        let (text, is_whole) = within(line.text.raw(), room);
        shown.lines.push(Line { kind: line.kind, text });
        if !is_whole {
            shown.is_cut = true;
            break;
        }
    }
    shown
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

    fn change(before: &Value, after: &Value) -> Change {
        serde_json::from_value(json!({
            "request_id": "r", "started_at": UtcMillis(0).to_string(), "before": before, "after": after,
        }))
        .unwrap()
    }

    fn lines(change: &Change) -> Vec<String> {
        change.shown.lines.iter().map(|line| format!("{}{}", line.sign(), line.text)).collect()
    }

    #[test]
    fn a_change_is_shown_line_by_line() {
        let mut changes = [
            change(&json!({"name": "a", "on": false}), &json!({"name": "a", "on": true})),
            change(&Value::Null, &json!({"name": "b"})),
            change(&json!({"name": "c"}), &Value::Null),
        ];
        show_states(&mut changes);
        assert_eq!(
            changes.each_ref().map(lines),
            [
                vec!["  {", "    \"name\": \"a\",", "−   \"on\": false", "+   \"on\": true", "  }"],
                vec!["+ {", "+   \"name\": \"b\"", "+ }"],
                vec!["− {", "−   \"name\": \"c\"", "− }"],
            ]
        );
    }

    #[test]
    fn differences_are_cut_so_that_the_page_stays_small() {
        let short: Vec<u8> = vec![1; 30_000];
        let mut changes = vec![change(&Value::Null, &json!({"name": "small"}))];
        for state in [json!("<".repeat(100_000)), json!(short), json!("\u{202e}".repeat(20_000))] {
            changes.push(change(&Value::Null, &state));
        }
        changes.extend((0..46).map(|_| change(&json!("x".repeat(100_000)), &json!("y".repeat(100_000)))));
        show_states(&mut changes);
        assert!(!changes[0].shown.is_cut && lines(&changes[0])[1].contains("small"));
        assert!(changes[1..].iter().all(|change| change.shown.is_cut));
        let line = |line: &Line| {
            let shown = line.text.to_string().replace('<', "&#60;");
            format!("<span class=\"{}\">{}{shown}</span>", line.class(), line.sign()).len()
        };
        let all: usize = changes.iter().flat_map(|change| &change.shown.lines).map(line).sum();
        assert!(all <= DIFFERENCES_MAX, "{all}");
    }
}
