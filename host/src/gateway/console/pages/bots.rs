//! The list of bots, and creating one.

use std::collections::HashMap;

use askama::Template;
use axum::extract::Query;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Failure, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::budgets::percent;
use crate::gateway::console::pages::stats::{self, Counts};
use crate::gateway::console::pages::usage;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// A page of a list.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct ListQuery {
    #[serde(default)]
    pub cursor: String,
}

#[derive(Deserialize)]
struct Bots {
    items: Vec<Bot>,
    next_cursor: Option<String>,
}

/// A bot of the list.
#[derive(Deserialize)]
struct Bot {
    id: String,
    name: Text,
    description: Text,
    #[serde(default)]
    monthly_token_budget: Option<u64>,
}

#[derive(Template)]
#[template(path = "console/bots.html")]
struct ListPage {
    frame: Frame,
    bots: Vec<Bot>,
    /// The calls of 24 hours, by the id of the bot. Absent if they could not be counted.
    counts: Option<HashMap<String, Counts>>,
    /// The tokens of this month, by the id of the bot. Absent if they could not be read.
    tokens: Option<HashMap<String, u64>>,
    next: Option<String>,
    may_create: bool,
}

#[derive(Template)]
#[template(path = "console/bot_new.html")]
struct NewPage {
    frame: Frame,
    name: Text,
    description: Text,
    errors: Vec<(Text, Text)>,
}

impl ListPage {
    /// Returns the calls of a bot in 24 hours.
    fn count(&self, id: &str) -> Counts {
        self.counts.as_ref().and_then(|counts| counts.get(id)).copied().unwrap_or_default()
    }

    /// Returns the tokens of a bot in this month.
    fn used(&self, id: &str) -> Option<u64> {
        Some(self.tokens.as_ref()?.get(id).copied().unwrap_or_default())
    }

    /// Returns the used part of a budget in percent.
    fn percent(&self, id: &str, budget: &u64) -> String {
        percent(self.used(id).unwrap_or_default(), *budget)
    }
}

/// Shows the bots.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/bots", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, bots, counts, tokens) = tokio::join!(
        visit.frame("bots", visit.words().text("bots.title")),
        visit.client.get::<Bots>(&path),
        stats::by_bot(&visit),
        usage::by_bot(&visit),
    );
    let Bots { items, next_cursor } = bots?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("bots"), &[("cursor", &cursor)]));
    let may_create = visit.may("bots_create");
    Ok(page::render(&ListPage { frame, bots: items, counts: counts.ok(), tokens: tokens.ok(), next, may_create }))
}

/// Shows the form of a new bot.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    let frame = visit.frame("bots", visit.words().text("bots.new")).await;
    Ok(page::render(&NewPage { frame, name: Text::default(), description: Text::default(), errors: Vec::new() }))
}

/// Creates a bot.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Created {
        id: String,
    }
    let (name, description) = (visit.fields().value("name"), visit.fields().value("description"));
    let body = json!({"name": name, "description": description});
    match visit.client.send::<Created>(Method::POST, "/api/bots", &body, visit.conditions()).await {
        Ok(created) => Ok(visit
            .done(visit.words().filled("bots.created", &[&name]), &visit.to(&format!("bots/{}", created.id)))
            .await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let frame = visit.frame("bots", visit.words().text("bots.new")).await;
            let errors = refusal.told();
            let page = NewPage { frame, name: name.into(), description: description.into(), errors };
            Ok(page::render_as(http::StatusCode::UNPROCESSABLE_ENTITY, &page))
        }
        Err(failure) => Err(failure),
    }
}
