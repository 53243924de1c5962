//! The usage of a month by bot, user, task or model.

use std::collections::HashMap;

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::budgets::{User, percent};
use crate::gateway::console::pages::tasks::{bots, title};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The columns by which the usage is grouped.
const COLUMNS: [&str; 4] = ["bot", "user", "task", "model"];
/// The maximum number of groups on a page.
const GROUPS_MAX: usize = 100;
/// The number of characters of a name.
const NAME_CHARS_MAX: usize = 120;

#[derive(Deserialize)]
struct Report {
    month: Text,
    items: Vec<Item>,
    has_more: bool,
}

/// The usage of a group as the API tells it.
#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    bot_id: Option<String>,
    #[serde(default)]
    user: Option<User>,
    #[serde(default)]
    task_id: Option<Text>,
    #[serde(default)]
    model: Option<Text>,
    tokens: u64,
    tokens_input: u64,
    tokens_output: u64,
    credits: f64,
    rounds: u64,
    calls: u64,
}

/// A group of a page.
struct Group {
    /// The name, or `None` for the calls that have no user, task or model.
    name: Option<Text>,
    /// The page of the bot or the task, if it exists.
    page: Option<String>,
    told: Item,
    /// The tokens in percent of those of the largest group.
    percent: String,
}

/// Names of objects with their pages, by id.
type Known = HashMap<String, (Text, String)>;

/// Returns the groups of a page. Only objects that exist have a page.
fn groups(items: Vec<Item>, known: &Known) -> Vec<Group> {
    let most = items.iter().map(|item| item.tokens).max().unwrap_or_default().max(1);
    let group = |told: Item| {
        let id = told.bot_id.as_deref().or(told.task_id.as_ref().map(Text::raw));
        let found = id.and_then(|id| known.get(id)).cloned();
        let other =
            told.user.as_ref().map(|user| Text::from(format!("{} / {}", user.app_id.raw(), user.user_id.raw())));
        let (name, page) = match found {
            Some((name, page)) => (Some(name), Some(page)),
            None => (id.map(Text::from).or(other).or_else(|| told.model.clone()), None),
        };
        let percent = percent(told.tokens, most);
        Group { name: name.map(|name| name.start(NAME_CHARS_MAX)), page, told, percent }
    };
    items.into_iter().take(GROUPS_MAX).map(group).collect()
}

/// Returns the bots or the newest tasks, which the groups name.
async fn known(visit: &Visit, by: &str) -> Known {
    #[derive(Deserialize)]
    struct Tasks {
        items: Vec<Listed>,
    }
    #[derive(Deserialize)]
    struct Listed {
        id: String,
        instruction: String,
    }
    match by {
        "bot" => {
            let named = |Named { id, name }: Named| {
                let page = visit.to(&format!("bots/{}", segment(&id)));
                (id, (name, page))
            };
            bots(visit).await.into_iter().map(named).collect()
        }
        "task" => {
            let tasks = visit.client.get::<Tasks>("/api/tasks?limit=100").await.map(|tasks| tasks.items);
            let named = |Listed { id, instruction }: Listed| {
                let page = visit.to(&format!("tasks/{}", segment(&id)));
                let name = title(&instruction, &id);
                (id, (name, page))
            };
            tasks.unwrap_or_default().into_iter().map(named).collect()
        }
        _ => Known::new(),
    }
}

/// Returns the tokens of this month by the id of the bot.
pub(super) async fn by_bot(visit: &Visit) -> Result<HashMap<String, u64>, Failure> {
    let report = visit.client.get::<Report>("/api/usage?by=bot").await?;
    Ok(report.items.into_iter().filter_map(|item| Some((item.bot_id?, item.tokens))).collect())
}

#[derive(Template)]
#[template(path = "console/usage.html")]
struct UsagePage {
    frame: Frame,
    tab: &'static str,
    columns: [&'static str; 4],
    by: &'static str,
    month: Text,
    groups: Vec<Group>,
    has_more: bool,
}

/// What the page shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Asked {
    #[serde(default)]
    by: String,
    #[serde(default)]
    month: String,
}

/// Shows the usage of a month.
pub(in crate::gateway::console) async fn show(visit: Visit, Query(asked): Query<Asked>) -> Page {
    let by = COLUMNS.into_iter().find(|column| *column == asked.by).unwrap_or("bot");
    let path = with_query("/api/usage", &[("by", by), ("month", asked.month.trim())]);
    let (frame, report, known) = tokio::join!(
        visit.frame("budgets", visit.words().text("usage.title")),
        visit.client.get::<Report>(&path),
        known(&visit, by),
    );
    let Report { month, items, has_more } = report?;
    let has_more = has_more || items.len() > GROUPS_MAX;
    let groups = groups(items, &known);
    Ok(page::render(&UsagePage { frame, tab: "usage", columns: COLUMNS, by, month, groups, has_more }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(fields: &Value) -> Item {
        let mut item = json!({
            "tokens": 0, "tokens_input": 0, "tokens_output": 0, "credits": 0, "rounds": 0, "calls": 0,
        });
        for (name, value) in fields.as_object().unwrap() {
            item[name] = value.clone();
        }
        serde_json::from_value(item).unwrap()
    }

    #[test]
    fn groups_have_names_and_only_known_objects_have_pages() {
        let known = Known::from([("b".to_owned(), (Text::from("triage"), "/bots/b".to_owned()))]);
        let user = json!({ "user": { "app_id": "a", "user_id": "u" }, "tokens": 1 });
        let items = vec![
            item(&json!({ "bot_id": "b", "tokens": 4 })),
            item(&json!({ "bot_id": "gone", "tokens": 2 })),
            item(&user),
            item(&json!({ "model": "models/small" })),
            item(&json!({ "task_id": null })),
        ];
        let told: Vec<_> = groups(items, &known)
            .into_iter()
            .map(|group| (group.name.map(|name| name.to_string()), group.page, group.percent))
            .collect();
        let row = |name: Option<&str>, page: Option<&str>, percent: &str| {
            (name.map(str::to_owned), page.map(str::to_owned), percent.to_owned())
        };
        let expected = [
            row(Some("triage"), Some("/bots/b"), "100"),
            row(Some("gone"), None, "50"),
            row(Some("a / u"), None, "25"),
            row(Some("models/small"), None, "0"),
            row(None, None, "0"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_page_shows_a_bounded_number_of_groups() {
        let items = (0..150).map(|at| item(&json!({ "model": format!("m/{at}"), "tokens": at }))).collect();
        assert_eq!(groups(items, &Known::new()).len(), GROUPS_MAX);
    }
}
