//! The tools that the server of a resource declares: discovering, approving and rejecting them.

use axum::extract::Path;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment};
use crate::gateway::console::page::Page;
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::pages::resources::Discovery;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum size of all definitions on one page, and of one of them.
const DEFINITIONS_MAX: usize = 384 << 10;
const DEFINITION_MAX: usize = 64 << 10;

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
    /// What the page shows of the approved definition, and of the definition of the server.
    #[serde(skip)]
    pub approved_text: Text,
    #[serde(skip)]
    pub definition_text: Text,
    /// Whether the page shows only the start of a definition.
    #[serde(skip)]
    pub is_cut: bool,
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

    /// Sets what the page shows of the definitions, and takes their size from `left`.
    fn fit(&mut self, left: &mut usize) {
        let mut shown = |definition: &Value| {
            let max = DEFINITION_MAX.min(*left);
            let mut room = max;
            let shown = within(pretty(definition).raw(), &mut room);
            *left -= max - room;
            shown
        };
        let (definition, is_whole) = shown(&self.definition);
        let approved = self.approved.as_ref().map(|approved| shown(&approved.definition));
        let (approved, is_approved_whole) = approved.unwrap_or((Text::default(), true));
        (self.definition_text, self.approved_text) = (definition, approved);
        self.is_cut = !(is_whole && is_approved_whole);
    }
}

/// Sets what the page shows of the definitions, as far as the page has room. The tools that wait for a decision come
/// first, because a definition that is not shown whole cannot be approved on the page.
pub(in crate::gateway::console) fn fit(pins: &mut [Pin]) {
    let mut left = DEFINITIONS_MAX;
    let mut pins: Vec<&mut Pin> = pins.iter_mut().collect();
    pins.sort_by_key(|pin| !pin.waits());
    for pin in pins {
        pin.fit(&mut left);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_that_wait_are_shown_first() {
        let pin = |status: &str, description: &str| -> Pin {
            let definition = json!({"description": description});
            serde_json::from_value(json!({
                "name": "t", "original_name": "t", "digest": "d", "effect": "read", "status": status,
                "definition": definition, "approved": {"definition": definition},
            }))
            .unwrap()
        };
        let large = "x".repeat(50 << 10);
        let mut pins: Vec<Pin> = (0..8).map(|_| pin("approved", &large)).collect();
        pins.push(pin("pending", &large));
        pins.push(pin("changed", &"<".repeat(50 << 10)));
        fit(&mut pins);
        assert!(!pins[8].is_cut && pins[8].definition_text.raw().contains(&large));
        assert!(pins[9].is_cut, "its markup takes more room");
        assert!(!pins[0].is_cut && pins[7].is_cut);
    }
}
