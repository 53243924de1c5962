//! The approvals that wait for a person, and the page on which one is decided.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::tasks;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::{Me, Visit};
use crate::gateway::console::words::Words;

/// The number of characters that a list shows of the parameters of a call.
const PARAMS_CHARS_MAX: usize = 120;
/// The statuses among which the list chooses. `ALL` is none of the API.
const STATUSES: [&str; 6] = ["pending", "approved", "used", "denied", "expired", ALL];
const ALL: &str = "all";

/// An approval as an approver sees it.
#[derive(Deserialize)]
struct Approval {
    id: String,
    #[serde(default)]
    kind: String,
    status: String,
    /// What a call runs; empty for a step.
    #[serde(default)]
    tool: Text,
    #[serde(default)]
    operation: Text,
    #[serde(default)]
    effect: Text,
    /// The step of a workflow that asks, its item, its question, and the calls that are approved.
    #[serde(default)]
    step: Text,
    #[serde(default)]
    item: Option<Text>,
    #[serde(default)]
    text: Option<Text>,
    #[serde(default, rename = "for")]
    targets: Vec<Target>,
    #[serde(default)]
    run_id: Option<String>,
    bot_id: String,
    digest: String,
    created_at: UtcMillis,
    expires_at: UtcMillis,
    #[serde(default)]
    params: Option<Value>,
    #[serde(default)]
    labels: Vec<Text>,
    #[serde(default)]
    gates: Vec<Gate>,
    /// The kinds of keys that may decide, in addition to root keys.
    #[serde(default)]
    approvers: Vec<String>,
    /// Whether the key that made the call may decide.
    #[serde(default)]
    allow_starter: bool,
    #[serde(default)]
    asked_by: AskedBy,
    #[serde(default)]
    links: Vec<Value>,
    #[serde(default)]
    note: Option<Text>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    decided_at: Option<UtcMillis>,
}

/// A call of a later step that a decision approves.
#[derive(Deserialize)]
struct Target {
    step: Text,
    tool: Text,
    operation: Text,
    effect: Text,
    #[serde(default)]
    params: Option<Value>,
}

impl Target {
    fn params_text(&self) -> Text {
        self.params.as_ref().map(pretty).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Gate {
    #[serde(default)]
    holder: Text,
    #[serde(default)]
    reason: Option<Text>,
}

/// The key and the task that made the call.
#[derive(Default, Deserialize)]
struct AskedBy {
    #[serde(default)]
    key_id: Option<String>,
    /// The task of the call.
    #[serde(default)]
    task_id: Option<String>,
}

/// The kind of keys that may decide about every call.
const ROOT: &str = "root";
/// The kind of the approvals of steps.
const STEP: &str = "step";

impl Approval {
    fn is_step(&self) -> bool {
        self.kind == STEP
    }

    /// Returns the name of what is approved: the tool of a call, or the step with its item.
    fn name(&self) -> Text {
        match (&self.item, self.is_step()) {
            (_, false) => self.tool.clone(),
            (None, true) => self.step.clone(),
            (Some(item), true) => format!("{}[{}]", self.step.raw(), item.raw()).into(),
        }
    }

    fn waits(&self) -> bool {
        self.status == "pending"
    }

    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "pending" => "waiting",
            "approved" | "used" => "success",
            "denied" => "denied",
            _ => "stopped",
        }
    }

    fn params_text(&self) -> Text {
        self.params.as_ref().map(pretty).unwrap_or_default()
    }

    /// Returns the parameters or the question on one line, or nothing if the list leaves them out.
    fn params_line(&self) -> Option<Text> {
        if let Some(text) = &self.text {
            return Some(text.start(PARAMS_CHARS_MAX));
        }
        self.params.as_ref().map(|params| Text::from(params.to_string()).start(PARAMS_CHARS_MAX))
    }

    /// Returns the kinds of keys that may decide, in the language of the page.
    fn deciders(&self, words: &Words) -> String {
        let kinds = self.approvers.iter().map(String::as_str).filter(|kind| *kind != ROOT).chain([ROOT]);
        let named = kinds.map(|kind| words.known(&format!("kind.{kind}")).unwrap_or(kind).to_owned());
        named.collect::<Vec<_>>().join(", ")
    }

    /// Returns why the key may not decide and what to do, or `None` for a key that may. The API decides by the same
    /// rules when the form is sent.
    fn refusal(&self, me: &Me, words: &Words) -> Option<String> {
        let deciders = self.deciders(words);
        if me.kind != ROOT && !self.approvers.contains(&me.kind) {
            let kind = words.known(&format!("kind.{}", me.kind)).unwrap_or(&me.kind);
            let key = if self.is_step() { "approvals.other_kind_step" } else { "approvals.other_kind" };
            return Some(words.filled(key, &[&kind, &deciders]));
        }
        let is_starter = self.asked_by.key_id.as_ref() == Some(&me.key_id);
        (is_starter && !self.allow_starter).then(|| words.filled("approvals.own_key", &[&deciders]))
    }
}

#[derive(Deserialize)]
struct Approvals {
    items: Vec<Approval>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    status: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/approvals.html")]
struct ListPage {
    frame: Frame,
    approvals: Vec<Approval>,
    /// The names of the bots, if the key may read them.
    bots: Vec<Named>,
    statuses: [&'static str; 6],
    status: String,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: Text,
}

impl ListPage {
    /// Returns the name of a bot. A bot that is not among those read is shown by its id.
    fn bot_name(&self, id: &str) -> Text {
        self.bots.iter().find(|bot| bot.id == id).map_or_else(|| id.into(), |bot| bot.name.clone())
    }
}

/// Shows the approvals, those that wait unless another status is chosen.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let status = if filter.status.is_empty() { "pending" } else { &filter.status };
    let asked = if status == ALL { "" } else { status };
    let path = with_query("/api/approvals", &[("status", asked), ("limit", "50"), ("cursor", &filter.cursor)]);
    let (frame, list, bots) = tokio::join!(
        visit.frame("approvals", visit.words().text("approvals.title")),
        visit.client.get::<Approvals>(&path),
        bots(&visit),
    );
    let Approvals { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("approvals"), &[("status", status), ("cursor", &cursor)]));
    let status = status.to_owned();
    Ok(page::render(&ListPage { frame, approvals: items, bots, statuses: STATUSES, status, next }))
}

/// Returns the names of the bots. An approver key reads no bots and sees their ids.
async fn bots(visit: &Visit) -> Vec<Named> {
    #[derive(Deserialize)]
    struct Bots {
        items: Vec<Named>,
    }
    if !visit.may("bots_list") {
        return Vec::new();
    }
    visit.client.get::<Bots>("/api/bots?limit=200").await.map(|bots| bots.items).unwrap_or_default()
}

#[derive(Template)]
#[template(path = "console/approval.html")]
struct ShowPage {
    frame: Frame,
    approval: Approval,
    bot_name: Text,
    action: String,
    errors: Vec<(Text, Text)>,
    note: Text,
    /// The kinds of keys that may decide.
    deciders: String,
    /// Why the key may not decide, or `None` for a key that may.
    refusal: Option<String>,
    may_read_calls: bool,
    /// The page of the task that made the call, if it is a task that the key may see.
    task: Option<String>,
}

/// Shows one approval.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    page_of(&visit, &id, Vec::new(), StatusCode::OK).await
}

async fn page_of(visit: &Visit, id: &str, errors: Vec<(Text, Text)>, status: StatusCode) -> Page {
    let approval = visit.client.get::<Approval>(&format!("/api/approvals/{}", segment(id))).await?;
    let bot_name = async {
        // An approver key reads no bots and sees the id.
        if !visit.may("bots_show") {
            return None;
        }
        let path = format!("/api/bots/{}", segment(&approval.bot_id));
        visit.client.get::<Named>(&path).await.ok().map(|bot| bot.name)
    };
    let title = approval.name().to_string();
    let (bot_name, task, frame) = tokio::join!(
        bot_name,
        tasks::page_of(visit, approval.asked_by.task_id.as_deref()),
        visit.frame("approvals", &title),
    );
    let bot_name = bot_name.unwrap_or_else(|| approval.bot_id.as_str().into());
    let action = visit.to(&format!("approvals/{}", segment(id)));
    let note = visit.fields().value("note").into();
    let may_read_calls = visit.may("audit_show");
    let (deciders, refusal) = (approval.deciders(visit.words()), approval.refusal(&visit.me, visit.words()));
    let page = ShowPage { frame, approval, bot_name, action, errors, note, deciders, refusal, may_read_calls, task };
    Ok(page::render_as(status, &page))
}

/// Decides an approval, with the digest of what the page showed.
pub(in crate::gateway::console) async fn decide(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let fields = visit.fields();
    let decision = if fields.has("approve") { "approve" } else { "deny" };
    let note = Some(fields.value("note")).filter(|note| !note.is_empty());
    let body = json!({"decision": decision, "digest": fields.value("digest"), "note": note});
    let path = format!("/api/approvals/{}", segment(&id));
    match visit.client.act(Method::POST, &path, Some(&body), Conditions::default()).await {
        Ok(()) => {
            let key = match (decision, fields.value("kind") == STEP) {
                ("approve", false) => "approvals.was_approved",
                ("approve", true) => "approvals.step_was_approved",
                (_, false) => "approvals.was_denied",
                (_, true) => "approvals.step_was_denied",
            };
            Ok(visit.done(visit.words().text(key).to_owned(), &visit.to("approvals")).await)
        }
        // The key may not decide, or the approval was decided, has ended, or has changed since the page was shown. The
        // page shows its current state.
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 403 | 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            page_of(&visit, &id, refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}
