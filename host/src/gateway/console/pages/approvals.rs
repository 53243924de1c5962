//! The approvals that wait for a person, and the page on which one is decided.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// An approval as an approver sees it.
#[derive(Deserialize)]
struct Approval {
    id: String,
    status: String,
    tool: Text,
    operation: Text,
    effect: Text,
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
    #[serde(default)]
    links: Vec<Value>,
    #[serde(default)]
    note: Option<Text>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    decided_at: Option<UtcMillis>,
}

#[derive(Deserialize)]
struct Gate {
    #[serde(default)]
    holder: Text,
    #[serde(default)]
    reason: Option<Text>,
}

impl Approval {
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
    status: String,
    next: Option<String>,
}

/// Shows the approvals, those that wait unless another status is chosen.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let status = if filter.status.is_empty() { "pending" } else { &filter.status };
    let path = with_query("/api/approvals", &[("status", status), ("limit", "50"), ("cursor", &filter.cursor)]);
    let (frame, list) = tokio::join!(
        visit.frame("approvals", visit.words().text("approvals.title")),
        visit.client.get::<Approvals>(&path),
    );
    let Approvals { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("approvals"), &[("status", status), ("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, approvals: items, status: status.to_owned(), next }))
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
    may_read_calls: bool,
}

/// Shows one approval.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    page_of(&visit, &id, Vec::new(), StatusCode::OK).await
}

async fn page_of(visit: &Visit, id: &str, errors: Vec<(Text, Text)>, status: StatusCode) -> Page {
    let approval = visit.client.get::<Approval>(&format!("/api/approvals/{}", segment(id))).await?;
    let bot_name = async {
        // An approver key reads no bots and sees the id.
        #[derive(Deserialize)]
        struct Named {
            name: Text,
        }
        if !visit.may("bots_show") {
            return None;
        }
        let path = format!("/api/bots/{}", segment(&approval.bot_id));
        visit.client.get::<Named>(&path).await.ok().map(|bot| bot.name)
    };
    let title = approval.tool.to_string();
    let (bot_name, frame) = tokio::join!(bot_name, visit.frame("approvals", &title));
    let bot_name = bot_name.unwrap_or_else(|| approval.bot_id.as_str().into());
    let action = visit.to(&format!("approvals/{}", segment(id)));
    let note = visit.fields().value("note").into();
    let may_read_calls = visit.may("audit_show");
    Ok(page::render_as(status, &ShowPage { frame, approval, bot_name, action, errors, note, may_read_calls }))
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
            let key = if decision == "approve" { "approvals.was_approved" } else { "approvals.was_denied" };
            Ok(visit.done(visit.words().text(key).to_owned(), &visit.to("approvals")).await)
        }
        // The approval was decided, has ended, or has changed since the page was shown. The page shows its current state.
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            page_of(&visit, &id, refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}
