//! The forms of a new and of an existing workflow. *Check* tells what is wrong with a definition and saves nothing.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, Refusal, Versioned, segment};
use crate::gateway::console::flow::{DefinitionFault, FaultyLine, Graph, faulty_lines, text_of};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::tasks::bots;
use crate::gateway::console::pages::workflows::{self, Workflow};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// What a check of a definition found.
struct Found {
    /// What keeps the definition from being saved.
    faults: Vec<DefinitionFault>,
    /// What may fail when the workflow runs.
    warnings: Vec<DefinitionFault>,
    /// The lines with faults or warnings, and those around them.
    lines: Vec<FaultyLine>,
    /// The steps of a definition without faults.
    graph: Option<Graph>,
}

#[derive(Template)]
#[template(path = "console/workflow_form.html")]
struct FormPage {
    frame: Frame,
    definition: Text,
    /// What is wrong with something else than the definition.
    errors: Vec<(Text, Text)>,
    found: Option<Found>,
    action: String,
    version: String,
    is_new: bool,
    back: String,
}

impl FormPage {
    /// Shows the form with what a check found.
    fn checked(mut self, visit: &Visit, faults: Vec<DefinitionFault>, warnings: Vec<DefinitionFault>) -> Page {
        let all: Vec<DefinitionFault> = faults.iter().chain(&warnings).cloned().collect();
        let lines = faulty_lines(self.definition.raw(), &all);
        let graph = faults.is_empty().then(|| Graph::of(visit.words(), self.definition.raw()));
        let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        self.found = Some(Found { faults, warnings, lines, graph });
        Ok(page::render_as(status, &self))
    }

    /// Shows the form that the API has refused.
    fn refused(mut self, visit: &Visit, failure: Failure) -> Page {
        match failure {
            Failure::Refused(refusal) if refusal.status == 422 && has_lines(&refusal) => {
                let faults = refusal.errors.iter().map(DefinitionFault::of).collect();
                self.checked(visit, faults, Vec::new())
            }
            Failure::Refused(refusal) if matches!(refusal.status, 409 | 422) => {
                self.errors = refusal.told();
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
                Ok(page::render_as(status, &self))
            }
            failure => Err(failure),
        }
    }

    /// Asks the API what is wrong with the definition, and shows it.
    async fn check(self, visit: &Visit) -> Page {
        #[derive(Deserialize)]
        struct Valid {
            warnings: Vec<DefinitionFault>,
        }
        let body = json!({ "definition": self.definition.raw() });
        let path = "/api/workflows/validate";
        match visit.client.send::<Valid>(Method::POST, path, &body, Conditions::default()).await {
            Ok(Valid { warnings }) => self.checked(visit, Vec::new(), warnings),
            Err(failure) => self.refused(visit, failure),
        }
    }
}

/// Returns whether the errors of a refusal are those of a definition.
fn has_lines(refusal: &Refusal) -> bool {
    refusal.errors.iter().any(|error| error.line.is_some())
}

/// Returns the definition that was sent. Browsers end the lines of a form with two characters.
fn sent(visit: &Visit) -> Text {
    visit.fields().value("definition").replace("\r\n", "\n").into()
}

/// Returns the definition with which a new workflow begins.
fn example(bot: Option<&Named>) -> Text {
    let bot = bot.map_or_else(|| "my-bot".to_owned(), |bot| bot.name.raw().to_owned());
    // A name in JSON is also one in YAML, whatever characters it has.
    let bot = json!(bot);
    format!(
        "workflow: my-workflow\nbot: {bot}\nsteps:\n  - id: think\n    agent: {{ instruction: \"Say what is new.\" }}\n  \
         - id: tell\n    emit: told\n    data: {{ answer: \"${{{{ steps.think.data }}}}\" }}\n"
    )
    .into()
}

async fn blank(visit: &Visit, definition: Text) -> Result<FormPage, Failure> {
    if !visit.may("workflows_create") {
        return Err(Failure::forbidden());
    }
    let frame = visit.frame("workflows", visit.words().text("workflows.new")).await;
    let (action, version, back) = (visit.to("workflows/new"), String::new(), visit.to("workflows"));
    Ok(FormPage { frame, definition, errors: Vec::new(), found: None, action, version, is_new: true, back })
}

/// Reads a workflow, and returns it with its form.
async fn existing(visit: &Visit, id: &str) -> Result<(Workflow, FormPage), Failure> {
    if !visit.may("workflows_update") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: workflow, version } = workflows::read(visit, id).await?;
    let back = workflow.base(visit);
    let page = FormPage {
        frame: visit.frame("workflows", &workflow.name.to_string()).await,
        definition: text_of(&workflow.definition),
        errors: Vec::new(),
        found: None,
        action: format!("{back}/edit"),
        version,
        is_new: false,
        back,
    };
    Ok((workflow, page))
}

/// The bot of a new workflow.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Start {
    #[serde(default)]
    bot_id: String,
}

/// Shows the form of a new workflow.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(start): Query<Start>) -> Page {
    let bots = bots(&visit).await;
    let bot = bots.iter().find(|bot| bot.id == start.bot_id).or(bots.first());
    Ok(page::render(&blank(&visit, example(bot)).await?))
}

/// Shows the form of a workflow.
pub(in crate::gateway::console) async fn edit(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?.1))
}

/// Creates a workflow, or checks its definition.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Created {
        id: String,
    }
    let page = blank(&visit, sent(&visit)).await?;
    if visit.fields().has("check") {
        return page.check(&visit).await;
    }
    let body = json!({ "definition": page.definition.raw() });
    match visit.client.send::<Created>(Method::POST, "/api/workflows", &body, visit.conditions()).await {
        Ok(Created { id }) => {
            let created = visit.to(&format!("workflows/{}", segment(&id)));
            Ok(visit.done(visit.words().text("workflow.created").to_owned(), &created).await)
        }
        Err(failure) => page.refused(&visit, failure),
    }
}

/// Saves a definition as a new version, or checks it.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let (_, mut page) = existing(&visit, &id).await?;
    let definition = sent(&visit);
    // An unchanged object stays an object, and makes no version.
    let is_changed = definition.raw().trim_end() != page.definition.raw().trim_end();
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut page.version, visit.shown_version());
    page.definition = definition;
    if visit.fields().has("check") {
        return page.check(&visit).await;
    }
    let change = if is_changed { json!({ "definition": page.definition.raw() }) } else { json!({}) };
    let path = workflows::path_of(&id);
    match visit.client.send::<Workflow>(Method::PATCH, &path, &change, visit.conditions()).await {
        Ok(saved) => Ok(visit.done(visit.words().filled("workflow.saved", &[&saved.version]), &page.back).await),
        Err(Failure::Refused(refusal)) if refusal.status == 412 => {
            page.version = current;
            page.errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            Ok(page::render_as(StatusCode::PRECONDITION_FAILED, &page))
        }
        Err(failure) => page.refused(&visit, failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_workflow_begins_with_a_definition_without_faults() {
        for name in ["helper", "a: b # \"c\"", "- x"] {
            let bot: Named = serde_json::from_value(json!({ "id": "b", "name": name })).unwrap();
            let text = example(Some(&bot));
            let checked = monstrum_flow::check(text.raw(), None).unwrap_or_else(|faults| panic!("{faults:#?}"));
            assert_eq!((checked.definition.bot.as_str(), checked.warnings.len()), (name, 0), "{}", text.raw());
        }
        assert!(monstrum_flow::check(example(None).raw(), None).is_ok());
    }
}
