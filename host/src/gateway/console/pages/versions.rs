//! The versions of a workflow: one version, and how it differs from another one.

use askama::Template;
use axum::extract::{Path, Query};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::{Failure, with_query};
use crate::gateway::console::flow::{Graph, changed_lines, start_of, text_of};
use crate::gateway::console::lines::Line;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::subscriptions::MadeBy;
use crate::gateway::console::pages::workflows;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The number of versions that the page of a workflow shows.
const VERSIONS: &str = "50";

/// A version in a list, as the API tells it.
#[derive(Deserialize)]
pub(super) struct VersionSummary {
    pub version: i64,
    pub saved_by: MadeBy,
    pub created_at: UtcMillis,
}

/// A version as the API tells it.
#[derive(Deserialize)]
struct Version {
    version: i64,
    digest: Text,
    saved_by: MadeBy,
    created_at: UtcMillis,
    definition: Value,
}

/// Reads the newest versions of a workflow.
pub(super) async fn of_workflow(visit: &Visit, id: &str) -> Result<Vec<VersionSummary>, Failure> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<VersionSummary>,
    }
    let path = with_query(&format!("{}/versions", workflows::path_of(id)), &[("limit", VERSIONS)]);
    Ok(visit.client.get::<List>(&path).await?.items)
}

/// Reads a version.
async fn read(visit: &Visit, id: &str, version: i64) -> Result<Version, Failure> {
    visit.client.get::<Version>(&format!("{}/versions/{version}", workflows::path_of(id))).await
}

/// The version with which a page compares.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Against {
    /// By default, the version before.
    #[serde(default)]
    against: String,
}

#[derive(Template)]
#[template(path = "console/workflow_version.html")]
struct VersionPage {
    frame: Frame,
    workflow: Text,
    base: String,
    version: Version,
    graph: Graph,
    text: Text,
    /// Whether the page shows the definition or the lines that differ shortened.
    is_cut: bool,
    /// The number of the version with which this one is compared, and the lines that differ.
    against: Option<(i64, Vec<Line>)>,
    /// The versions with which this one can be compared.
    others: Vec<i64>,
    action: String,
}

impl VersionPage {
    fn is_against(&self, version: &i64) -> bool {
        self.against.as_ref().is_some_and(|(against, _)| against == version)
    }
}

/// Shows a version of a workflow, and how it differs from the one before or from a chosen one.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id, number)): Path<(String, String, String)>,
    Query(Against { against }): Query<Against>,
) -> Page {
    let number = number.parse::<i64>().map_err(|_| Failure::not_found())?;
    let against = match against.as_str() {
        "" => Some(number - 1).filter(|before| *before > 0),
        chosen => Some(chosen.parse::<i64>().map_err(|_| Failure::not_found())?).filter(|chosen| *chosen != number),
    };
    let before = async {
        match against {
            Some(against) => read(&visit, &id, against).await.map(Some),
            None => Ok(None),
        }
    };
    let title = visit.words().filled("version.title", &[&number]);
    let (workflow, version, before, versions, frame) = tokio::join!(
        workflows::read(&visit, &id),
        read(&visit, &id, number),
        before,
        of_workflow(&visit, &id),
        visit.frame("workflows", &title),
    );
    let (workflow, version, before) = (workflow?.value, version?, before?);
    let whole = text_of(&version.definition);
    let (text, mut is_cut) = start_of(&whole);
    let against = before.map(|before| {
        let (lines, is_left_out) = changed_lines(&text_of(&before.definition), &whole);
        is_cut |= is_left_out;
        (before.version, lines)
    });
    let base = workflow.base(&visit);
    let others = versions.unwrap_or_default().into_iter().map(|of| of.version).filter(|of| *of != number).collect();
    let page = VersionPage {
        action: format!("{base}/versions/{number}"),
        graph: Graph::of(visit.words(), whole.raw()),
        workflow: workflow.name,
        frame,
        base,
        version,
        text,
        is_cut,
        against,
        others,
    };
    Ok(page::render(&page))
}
