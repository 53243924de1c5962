//! The workflows: the list, one workflow with its steps, triggers and versions, switching it off and deleting it.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Failure, Versioned, segment, with_query};
use crate::gateway::console::flow::{DefinitionFault, Graph, start_of, text_of};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::deletion::{self, ConfirmPage};
use crate::gateway::console::pages::runs::{self, Run};
use crate::gateway::console::pages::subscriptions::sources;
use crate::gateway::console::pages::tasks::{bots, name_of};
use crate::gateway::console::pages::triggers::{self, Trigger};
use crate::gateway::console::pages::versions::{self, VersionSummary};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// A workflow as the API tells it.
#[derive(Deserialize)]
pub(super) struct Workflow {
    pub id: String,
    pub name: Text,
    pub bot_id: String,
    pub version: i64,
    pub enabled: bool,
    /// Absent in a list.
    #[serde(default)]
    pub definition: Value,
    #[serde(default)]
    pub warnings: Vec<DefinitionFault>,
    updated_at: UtcMillis,
}

impl Workflow {
    /// Returns the path of the page of the workflow.
    pub(super) fn base(&self, visit: &Visit) -> String {
        base_of(visit, &self.id)
    }

    /// Returns the state, as a word of the group `workflow_state`.
    fn state(&self) -> &'static str {
        if self.enabled { "on" } else { "off" }
    }

    /// Returns the class of the state in the style sheet.
    fn class(&self) -> &'static str {
        if self.enabled { "success" } else { "stopped" }
    }
}

/// Returns the path of the page of a workflow.
pub(super) fn base_of(visit: &Visit, id: &str) -> String {
    visit.to(&format!("workflows/{}", segment(id)))
}

/// Returns the path of a workflow in the API.
pub(super) fn path_of(id: &str) -> String {
    format!("/api/workflows/{}", segment(id))
}

/// Reads a workflow with its version.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Versioned<Workflow>, Failure> {
    visit.client.get_versioned::<Workflow>(&path_of(id)).await
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/workflows.html")]
struct ListPage {
    frame: Frame,
    workflows: Vec<Workflow>,
    bots: Vec<Named>,
    filter: Filter,
    list: String,
    next: Option<String>,
    /// The path of the form of a new workflow, for keys that may create one.
    new: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }
}

/// Shows the workflows of the workspace, or of a bot.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Workflow>,
        next_cursor: Option<String>,
    }
    let parameters = [("bot_id", filter.bot_id.as_str()), ("limit", "50"), ("cursor", &filter.cursor)];
    let path = with_query("/api/workflows", &parameters);
    let (frame, read, bots) = tokio::join!(
        visit.frame("workflows", visit.words().text("workflows.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = read?;
    let list = visit.to("workflows");
    let next = next_cursor.map(|cursor| with_query(&list, &[("bot_id", &filter.bot_id), ("cursor", &cursor)]));
    let new = with_query(&visit.to("workflows/new"), &[("bot_id", &filter.bot_id)]);
    let new = visit.may("workflows_create").then_some(new);
    Ok(page::render(&ListPage { frame, workflows: items, bots, filter, list, next, new }))
}

#[derive(Template)]
#[template(path = "console/workflow.html")]
struct WorkflowPage {
    frame: Frame,
    workflow: Workflow,
    version: String,
    base: String,
    bot: Option<Named>,
    graph: Graph,
    text: Text,
    /// Whether the page shows the definition shortened. The form has all of it.
    is_cut: bool,
    /// The path of the form that starts a run, for keys that may start one.
    run: Option<String>,
    may_schedule: bool,
    /// The newest runs. Absent if the API did not tell them.
    runs: Option<Vec<Run>>,
    /// The path of the list of all runs of the workflow.
    all_runs: String,
    /// Absent if the API did not tell them.
    triggers: Option<Vec<Trigger>>,
    /// The newest versions. Absent if the API did not tell them.
    versions: Option<Vec<VersionSummary>>,
    /// The path of the form of a new trigger, for keys that may create one.
    new_trigger: Option<String>,
    may_change: bool,
    may_change_triggers: bool,
    may_delete: bool,
    may_delete_triggers: bool,
}

impl WorkflowPage {
    fn sources(&self, trigger: &Trigger) -> String {
        sources(&self.frame, &trigger.from)
    }
}

/// Shows a workflow.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let Versioned { value: workflow, version } = read(&visit, &id).await?;
    let base = workflow.base(&visit);
    let (title, bot) = (workflow.name.to_string(), format!("/api/bots/{}", segment(&workflow.bot_id)));
    let newest = async {
        match visit.may("runs_list") {
            true => runs::newest(&visit, &workflow.id).await,
            false => Err(Failure::forbidden()),
        }
    };
    let (frame, bot, runs, triggers, versions) = tokio::join!(
        visit.frame("workflows", &title),
        visit.client.get::<Named>(&bot),
        newest,
        triggers::of_workflow(&visit, &workflow.id),
        versions::of_workflow(&visit, &workflow.id),
    );
    let whole = text_of(&workflow.definition);
    let (text, is_cut) = start_of(&whole);
    let page = WorkflowPage {
        graph: Graph::of(visit.words(), whole.raw()),
        new_trigger: visit.may("workflows_create_trigger").then(|| format!("{base}/triggers/new")),
        may_change: visit.may("workflows_update"),
        may_change_triggers: visit.may("workflows_update_trigger"),
        may_delete: visit.may("workflows_delete"),
        may_delete_triggers: visit.may("workflows_delete_trigger"),
        bot: bot.ok(),
        may_schedule: visit.may("schedules_create"),
        run: (workflow.enabled && visit.may("runs_start")).then(|| format!("{base}/run")),
        all_runs: with_query(&visit.to("runs"), &[("workflow_id", &workflow.id)]),
        runs: runs.ok(),
        triggers: triggers.ok(),
        versions: versions.ok(),
        frame,
        workflow,
        version,
        base,
        text,
        is_cut,
    };
    Ok(page::render(&page))
}

/// Enables or disables a workflow.
pub(in crate::gateway::console) async fn switch(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let is_on = visit.fields().value("enabled") == "true";
    let change = json!({ "enabled": is_on });
    visit.client.act(Method::PATCH, &path_of(&id), Some(&change), visit.conditions()).await?;
    let key = if is_on { "workflow.is_on" } else { "workflow.is_off" };
    Ok(visit.done(visit.words().text(key).to_owned(), &base_of(&visit, &id)).await)
}

/// Asks before a workflow is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    if !visit.may("workflows_delete") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: workflow, version } = read(&visit, &id).await?;
    let (words, back) = (visit.words(), workflow.base(&visit));
    let frame = visit.frame("workflows", words.text("workflow.delete")).await;
    let text = words.filled("workflow.delete_text", &[&workflow.name]);
    let action = format!("{back}/delete");
    Ok(page::render(&ConfirmPage { frame, name: workflow.name, text, action, version, back }))
}

/// Deletes a workflow whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let workflow = read(&visit, &id).await?.value;
    let back = format!("{}/delete", workflow.base(&visit));
    deletion::delete_named(&visit, &path_of(&id), &workflow.name, &back, "workflows").await
}
