//! The first page: what needs a person, and the newest calls.

use askama::Template;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::chart::Chart;
use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::{Call, Calls};
use crate::gateway::console::pages::demo::Offer;
use crate::gateway::console::pages::stats;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The number of calls that the page shows.
const CALLS: &str = "/api/audit?limit=10";

#[derive(Deserialize)]
struct Attention {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    kind: String,
    id: String,
    name: Text,
    text: Text,
    #[serde(default)]
    since: Option<UtcMillis>,
}

impl Item {
    /// Returns the page on which a person acts.
    fn page(&self, frame: &Frame) -> String {
        let id = segment(&self.id);
        match self.kind.as_str() {
            "approval" => frame.to(&format!("approvals/{id}")),
            "plugin" => frame.to(&format!("plugins/{id}")),
            "credential" => frame.to(&format!("resources/{id}")),
            "budget" => frame.to(&format!("bots/{id}/budget")),
            "schedule" => frame.to(&format!("schedules/{id}")),
            _ => frame.to("overview"),
        }
    }

    /// Returns the class of the item in the style sheet.
    fn class(&self) -> &'static str {
        match self.kind.as_str() {
            "approval" => "waiting",
            "sandbox" | "schedule" => "error",
            _ => "denied",
        }
    }
}

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage {
    frame: Frame,
    items: Option<Vec<Item>>,
    /// The calls of a day, if they could be counted.
    chart: Option<Chart>,
    /// The newest denied calls.
    denials: Vec<Call>,
    calls: Option<Vec<Call>>,
    may_create: bool,
    /// The steps to a first call, while there is none.
    steps: Vec<Step>,
    offer: Option<Offer>,
}

/// A step to a first call.
struct Step {
    label: &'static str,
    href: String,
    /// Whether it is the first step that is not done.
    is_next: bool,
}

/// Returns the steps to a first call.
async fn steps(visit: &Visit) -> Vec<Step> {
    let (has_plugin, has_resource) =
        tokio::join!(has_items(visit, "/api/plugins?limit=1"), has_items(visit, "/api/resources?limit=1"));
    let next = match (has_plugin, has_resource) {
        (_, true) => "bots/new",
        (true, false) => "resources/new",
        (false, false) => "plugins",
    };
    let step = |(label, path)| Step { label: visit.words().text(label), href: visit.to(path), is_next: path == next };
    [("nav.plugins", "plugins"), ("resources.new", "resources/new"), ("bots.new", "bots/new")].map(step).into()
}

/// Returns whether a list of the API has an item.
async fn has_items(visit: &Visit, path: &str) -> bool {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Value>,
    }
    visit.client.get::<List>(path).await.is_ok_and(|list| !list.items.is_empty())
}

/// Shows what needs a person. A part that does not answer says so.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    let calls = async {
        match visit.may("audit_list") {
            true => visit.client.get::<Calls>(CALLS).await.map(|calls| calls.items),
            false => Err(Failure::not_found()),
        }
    };
    let (frame, attention, chart, denials, calls, offer) = tokio::join!(
        visit.frame("overview", visit.words().text("nav.overview")),
        visit.client.get::<Attention>("/api/attention"),
        stats::by_hour(&visit),
        denials(&visit),
        calls,
        Offer::read(&visit),
    );
    let items = attention.ok().map(|attention| attention.items);
    let (may_create, calls, chart) = (visit.may("bots_create"), calls.ok(), chart.ok());
    let is_unused = calls.as_ref().is_some_and(Vec::is_empty);
    let steps = if may_create && is_unused { steps(&visit).await } else { Vec::new() };
    Ok(page::render(&OverviewPage { frame, items, chart, denials, calls, may_create, steps, offer }))
}

/// The number of denied calls that the page shows.
const DENIALS: usize = 5;

/// Returns the newest denied calls. A part that does not answer is left out, because the list of calls says so.
async fn denials(visit: &Visit) -> Vec<Call> {
    let latest = |status: &'static str| {
        let path = with_query("/api/audit", &[("status", status), ("limit", &DENIALS.to_string())]);
        let client = visit.client.clone();
        async move { client.get::<Calls>(&path).await.map(|calls| calls.items).unwrap_or_default() }
    };
    let (mut calls, by_permission) = tokio::join!(latest("scope_violation"), latest("permission_denied"));
    calls.extend(by_permission);
    calls.sort_by_key(|call| std::cmp::Reverse(call.started_at));
    calls.truncate(DENIALS);
    calls
}
