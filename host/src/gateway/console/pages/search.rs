//! The search for objects by name.

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;

use crate::gateway::console::client::{segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Found {
    kind: String,
    id: String,
    name: Text,
    #[serde(default)]
    parent: Option<Parent>,
}

#[derive(Deserialize)]
struct Parent {
    kind: String,
    id: String,
    name: Text,
}

/// Returns the page of an object, if it has one.
fn page_of(frame: &Frame, kind: &str, id: &str) -> Option<String> {
    let section = match kind {
        "bot" => "bots",
        "resource" => "resources",
        "role" => "roles",
        "plugin" => "plugins",
        "call" => "activity",
        _ => return None,
    };
    Some(frame.to(&format!("{section}/{}", segment(id))))
}

impl Found {
    /// Returns the page of the object, or of the object that it belongs to.
    fn page(&self, frame: &Frame) -> Option<String> {
        let parent = || self.parent.as_ref().and_then(|parent| page_of(frame, &parent.kind, &parent.id));
        page_of(frame, &self.kind, &self.id).or_else(parent)
    }
}

#[derive(Deserialize)]
struct Result {
    items: Vec<Found>,
}

/// What a person searches for.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Asked {
    #[serde(default)]
    q: String,
}

#[derive(Template)]
#[template(path = "console/search.html")]
struct SearchPage {
    frame: Frame,
    asked: Text,
    found: Vec<Found>,
}

/// Shows the objects that a search finds.
pub(in crate::gateway::console) async fn show(visit: Visit, Query(asked): Query<Asked>) -> Page {
    let asked = asked.q.trim();
    let found = async {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        visit.client.get::<Result>(&with_query("/api/search", &[("q", asked)])).await.map(|result| result.items)
    };
    let (frame, found) = tokio::join!(visit.frame("", visit.words().text("frame.find")), found);
    Ok(page::render(&SearchPage { frame, asked: asked.into(), found: found? }))
}
