//! The triggers of a workflow: which events start its runs. The page of the workflow lists them.

use askama::Template;
use axum::extract::Path;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Failure, segment};
use crate::gateway::console::fields::of_one_field;
use crate::gateway::console::form::Fields;
use crate::gateway::console::narrow::{FromFields, Narrow, NarrowFields};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::pages::workflows;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// A trigger as the API tells it. A workflow has at most 50.
#[derive(Deserialize)]
pub(super) struct Trigger {
    pub id: String,
    pub event_pattern: Text,
    pub instruction: Text,
    pub from: Vec<Text>,
    pub narrow: Option<Narrow>,
    pub enabled: bool,
}

impl Trigger {
    /// Returns the class of the state in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        if self.enabled { "success" } else { "stopped" }
    }

    /// Returns the state, as a word of the group `workflow_state`.
    pub(super) fn state(&self) -> &'static str {
        if self.enabled { "on" } else { "off" }
    }
}

/// Reads the triggers of a workflow.
pub(super) async fn of_workflow(visit: &Visit, id: &str) -> Result<Vec<Trigger>, Failure> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Trigger>,
    }
    let path = format!("{}/triggers?limit=200", workflows::path_of(id));
    Ok(visit.client.get::<List>(&path).await?.items)
}

/// The fields of the form, as they were typed.
struct Typed {
    pattern: Text,
    instruction: Text,
    from: FromFields,
    narrow: NarrowFields,
}

impl Typed {
    fn of(fields: &Fields) -> Typed {
        Typed {
            pattern: fields.value("event_pattern").trim().into(),
            instruction: fields.value("instruction").replace("\r\n", "\n").into(),
            from: FromFields::of(fields),
            narrow: NarrowFields::of(fields),
        }
    }

    fn blank() -> Typed {
        Typed {
            pattern: Text::default(),
            instruction: Text::default(),
            from: FromFields::blank(),
            narrow: NarrowFields::default(),
        }
    }
}

#[derive(Template)]
#[template(path = "console/trigger_form.html")]
struct FormPage {
    frame: Frame,
    workflow: Text,
    typed: Typed,
    errors: Vec<(Text, Text)>,
    action: String,
    back: String,
    /// Whether the key may choose the events of other bots.
    may_widen: bool,
}

async fn blank(visit: &Visit, id: &str, typed: Typed) -> Result<FormPage, Failure> {
    if !visit.may("workflows_create_trigger") {
        return Err(Failure::forbidden());
    }
    let title = visit.words().text("triggers.new");
    let (workflow, frame) = tokio::join!(workflows::read(visit, id), visit.frame("workflows", title));
    let workflow = workflow?.value;
    let back = workflow.base(visit);
    let action = format!("{back}/triggers/new");
    // The operation that confirms subscriptions is one of admins, as wider sources are.
    let may_widen = visit.may("subscriptions_confirm");
    Ok(FormPage { frame, workflow: workflow.name, typed, errors: Vec::new(), action, back, may_widen })
}

/// Shows the form of a new trigger.
pub(in crate::gateway::console) async fn new(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&blank(&visit, &id, Typed::blank()).await?))
}

/// Creates a trigger.
pub(in crate::gateway::console) async fn create(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let mut page = blank(&visit, &id, Typed::of(visit.fields())).await?;
    let mut faults = Vec::new();
    let body: Value = json!({
        "event_pattern": page.typed.pattern.raw(), "instruction": page.typed.instruction.raw(),
        "from": page.typed.from.value(), "narrow": page.typed.narrow.value(&mut faults),
    });
    let words = visit.words();
    page.errors = faults.into_iter().map(|(place, key)| (place.into(), words.text(key).into())).collect();
    if !page.errors.is_empty() {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let path = format!("{}/triggers", workflows::path_of(&id));
    match visit.client.act(Method::POST, &path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(words.text("trigger.created").to_owned(), &page.back).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            page.errors = of_one_field(refusal.told(), "/narrow/scope_constraints");
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &page))
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the path of a trigger in the API.
fn path_of(workflow: &str, id: &str) -> String {
    format!("{}/triggers/{}", workflows::path_of(workflow), segment(id))
}

/// Enables or disables a trigger.
pub(in crate::gateway::console) async fn switch(
    visit: Visit,
    Path((_, workflow, id)): Path<(String, String, String)>,
) -> Page {
    let is_on = visit.fields().value("enabled") == "true";
    let change = json!({ "enabled": is_on });
    visit.client.act(Method::PATCH, &path_of(&workflow, &id), Some(&change), visit.conditions()).await?;
    let key = if is_on { "trigger.is_on" } else { "trigger.is_off" };
    Ok(visit.done(visit.words().text(key).to_owned(), &workflows::base_of(&visit, &workflow)).await)
}

/// Asks before a trigger is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(
    visit: Visit,
    Path((_, workflow, id)): Path<(String, String, String)>,
) -> Page {
    if !visit.may("workflows_delete_trigger") {
        return Err(Failure::forbidden());
    }
    let triggers = of_workflow(&visit, &workflow).await?;
    let trigger = triggers.into_iter().find(|trigger| trigger.id == id).ok_or_else(Failure::not_found)?;
    let (words, back) = (visit.words(), workflows::base_of(&visit, &workflow));
    let frame = visit.frame("workflows", words.text("trigger.delete")).await;
    let text = words.filled("trigger.delete_text", &[&trigger.event_pattern]);
    let action = format!("{back}/triggers/{}/delete", segment(&trigger.id));
    // Nothing depends on a trigger, so that its pattern need not be typed.
    let (name, version) = (Text::default(), String::new());
    Ok(page::render(&ConfirmPage { frame, name, text, action, version, back }))
}

/// Deletes a trigger.
pub(in crate::gateway::console) async fn delete(
    visit: Visit,
    Path((_, workflow, id)): Path<(String, String, String)>,
) -> Page {
    visit.client.act(Method::DELETE, &path_of(&workflow, &id), None, visit.conditions()).await?;
    let back = workflows::base_of(&visit, &workflow);
    Ok(visit.done(visit.words().text("trigger.deleted").to_owned(), &back).await)
}
