//! The tools that the server of a resource declares: discovering, approving and rejecting them.

use axum::extract::Path;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment};
use crate::gateway::console::page::Page;
use crate::gateway::console::pages::resources::Discovery;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// A tool that a server has declared.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct Pin {
    pub name: Text,
    pub original_name: Text,
    pub digest: String,
    pub effect: String,
    pub status: String,
    #[serde(default)]
    pub reason: Option<Text>,
    pub definition: Value,
    #[serde(default)]
    pub approved: Option<Approved>,
}

#[derive(Deserialize)]
pub(in crate::gateway::console) struct Approved {
    pub definition: Value,
}

impl Pin {
    pub(in crate::gateway::console) fn class(&self) -> &'static str {
        match self.status.as_str() {
            "approved" => "success",
            "pending" | "changed" => "waiting",
            "invalid" => "error",
            "rejected" => "denied",
            _ => "stopped",
        }
    }

    pub(in crate::gateway::console) fn waits(&self) -> bool {
        matches!(self.status.as_str(), "pending" | "changed" | "rejected")
    }

    pub(in crate::gateway::console) fn definition_text(&self) -> Text {
        pretty(&self.definition)
    }

    pub(in crate::gateway::console) fn approved_text(&self) -> Text {
        self.approved.as_ref().map(|approved| pretty(&approved.definition)).unwrap_or_default()
    }
}

#[derive(Deserialize)]
pub(in crate::gateway::console) struct Pins {
    pub items: Vec<Pin>,
}

/// Asks the server of a resource for its tools.
pub(in crate::gateway::console) async fn discover(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Found {
        discovery: Discovery,
    }
    let base = visit.to(&format!("resources/{}", segment(&id)));
    let path = format!("/api/resources/{}/tools/discover", segment(&id));
    match visit.client.send::<Found>(Method::POST, &path, &json!({}), Conditions::default()).await {
        Ok(found) if found.discovery.status == "ok" => {
            Ok(visit.done(visit.words().text("resources.discovered").to_owned(), &base).await)
        }
        Ok(found) => Ok(visit.refused(found.discovery.error.unwrap_or_default().to_string(), &base).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 429) => {
            Ok(visit.refused(refusal.detail, &base).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Approves or rejects a tool that a server has declared, with the digest of the definition that the page showed.
pub(in crate::gateway::console) async fn decide(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let fields = visit.fields();
    let base = visit.to(&format!("resources/{}", segment(&id)));
    let verb = if fields.has("approve") { "approve" } else { "reject" };
    let mut decision = json!({"original_name": fields.value("original_name"), "digest": fields.value("digest")});
    if verb == "approve" && !fields.value("effect").is_empty() {
        decision["effect"] = fields.value("effect").into();
    }
    let path = format!("/api/resources/{}/tools/{verb}", segment(&id));
    match visit.client.act(Method::POST, &path, Some(&json!({"tools": [decision]})), Conditions::default()).await {
        Ok(()) => {
            let key = if verb == "approve" { "pins.approved_now" } else { "pins.rejected_now" };
            Ok(visit.done(visit.words().filled(key, &[&Text::from(fields.value("original_name"))]), &base).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let told = refusal.told().into_iter().map(|(_, message)| message.to_string());
            Ok(visit.refused(told.collect::<Vec<_>>().join("; "), &base).await)
        }
        Err(failure) => Err(failure),
    }
}
