//! The first page: what needs a person, and the newest calls.

use askama::Template;
use monstrum_types::UtcMillis;
use serde::Deserialize;

use crate::gateway::console::client::{Failure, segment};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::{Call, Calls};
use crate::gateway::console::pages::demo::Offer;
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
            _ => frame.to("overview"),
        }
    }

    /// Returns the class of the item in the style sheet.
    fn class(&self) -> &'static str {
        match self.kind.as_str() {
            "approval" => "waiting",
            "sandbox" => "error",
            _ => "denied",
        }
    }
}

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage {
    frame: Frame,
    items: Option<Vec<Item>>,
    calls: Option<Vec<Call>>,
    may_create: bool,
    offer: Option<Offer>,
}

/// Shows what needs a person. A part that does not answer says so.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    let calls = async {
        match visit.may("audit_list") {
            true => visit.client.get::<Calls>(CALLS).await.map(|calls| calls.items),
            false => Err(Failure::not_found()),
        }
    };
    let (frame, attention, calls, offer) = tokio::join!(
        visit.frame("overview", visit.words().text("nav.overview")),
        visit.client.get::<Attention>("/api/attention"),
        calls,
        Offer::read(&visit),
    );
    let items = attention.ok().map(|attention| attention.items);
    let may_create = visit.may("bots_create");
    Ok(page::render(&OverviewPage { frame, items, calls: calls.ok(), may_create, offer }))
}
