//! The links under which a bot acts: delegations from other bots, and what the starter of its task has narrowed.
//!
//! A link only restricts. A call must satisfy every link, and each call asks the policy whether the links are in force.

use std::sync::Arc;

use monstrum_api::tasks::Narrow;
use monstrum_guardian::{Delegation, DelegationRules};
use monstrum_runtime::DelegateConstraints;
use monstrum_types::{BindingId, BotId};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The maximum size of constraints in the audit, in bytes. The audit contains only the digest of larger constraints.
const CONSTRAINTS_BYTES_MAX: usize = 4 << 10;

/// A restriction under which a bot acts.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Link {
    Delegation(DelegationLink),
    Narrow(NarrowLink),
}

/// A delegation from one bot to another bot, which acts on behalf of the first bot.
#[derive(Clone, Debug, Serialize)]
pub struct DelegationLink {
    #[serde(rename = "binding_id")]
    pub binding: BindingId,
    pub from: BotId,
    pub to: BotId,
    /// The constraints at the start of the call, for the audit. The decision uses the current constraints.
    pub delegate: Option<Value>,
}

/// What the starter of a task has narrowed. It does not change while the task runs.
#[derive(Clone, Debug, Serialize)]
pub struct NarrowLink {
    narrow: Narrow,
    #[serde(skip)]
    rules: Arc<DelegationRules>,
}

impl NarrowLink {
    /// Creates the link of these constraints.
    #[must_use]
    pub fn new(narrow: &Narrow) -> NarrowLink {
        let Narrow { allowed_tools, scope_constraints } = narrow.clone();
        let link = Delegation { allowed_tools, scope_constraints, gates: Vec::new() };
        NarrowLink { narrow: narrow.clone(), rules: DelegationRules::shared(&link) }
    }

    /// Returns the constraints.
    #[must_use]
    pub fn narrow(&self) -> &Narrow {
        &self.narrow
    }

    /// Returns the rules in the form that decisions use.
    #[must_use]
    pub fn rules(&self) -> &Arc<DelegationRules> {
        &self.rules
    }
}

impl Link {
    /// Returns the delegation, unless the link is another restriction.
    #[must_use]
    pub fn delegation(&self) -> Option<&DelegationLink> {
        match self {
            Link::Delegation(link) => Some(link),
            Link::Narrow(_) => None,
        }
    }

    fn constraints(&self) -> Option<Value> {
        match self {
            Link::Delegation(link) => link.delegate.clone(),
            Link::Narrow(link) => Some(json!(link.narrow)),
        }
    }

    fn recorded(&self) -> Value {
        let text = self.constraints().as_ref().map(Value::to_string).unwrap_or_default();
        if text.len() <= CONSTRAINTS_BYTES_MAX {
            return json!(self);
        }
        let digest = json!({"digest": format!("sha256:{}", hex::encode(Sha256::digest(text)))});
        match self {
            Link::Delegation(link) => json!(DelegationLink { delegate: Some(digest), ..link.clone() }),
            Link::Narrow(_) => json!({ "narrow": digest }),
        }
    }
}

/// Returns the links as JSON for the audit, or `None` if the bot acts for itself.
#[must_use]
pub fn recorded(links: &[Link]) -> Option<String> {
    let recorded: Vec<Value> = links.iter().map(Link::recorded).collect();
    (!recorded.is_empty()).then(|| Value::from(recorded).to_string())
}

/// Returns the constraints of the last link in the form that the plugin receives.
#[must_use]
pub fn delegate(links: &[Link]) -> Option<DelegateConstraints> {
    let last = links.last()?.constraints().unwrap_or_default();
    let list = last.get("allowed_tools").cloned().and_then(|list| serde_json::from_value(list).ok());
    let scopes = last.get("scope_constraints").filter(|scopes| scopes.as_object().is_some_and(|map| !map.is_empty()));
    Some(DelegateConstraints { allowed_tools: list, scope_constraints: scopes.map(Value::to_string) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delegation(delegate: Option<Value>) -> Link {
        Link::Delegation(DelegationLink { binding: BindingId::new(), from: BotId::new(), to: BotId::new(), delegate })
    }

    fn narrow(tool: &str) -> Link {
        let allowed_tools = Some(vec![tool.to_owned()]);
        Link::Narrow(NarrowLink::new(&Narrow { allowed_tools, ..Narrow::default() }))
    }

    #[test]
    fn large_constraints_are_recorded_by_their_digest() {
        let tool = "x".repeat(CONSTRAINTS_BYTES_MAX);
        for (link, field) in
            [(delegation(Some(json!({"allowed_tools": [tool]}))), "delegate"), (narrow(&tool), "narrow")]
        {
            let recorded: Value = serde_json::from_str(&recorded(&[link]).unwrap()).unwrap();
            assert!(recorded[0][field]["digest"].as_str().unwrap().starts_with("sha256:"), "{recorded}");
        }
        let small: Value = serde_json::from_str(&recorded(&[narrow("a_*")]).unwrap()).unwrap();
        assert_eq!(small[0]["narrow"]["allowed_tools"], json!(["a_*"]));
        assert_eq!(recorded(&[]), None);
    }

    #[test]
    fn a_plugin_receives_the_constraints_of_the_last_link() {
        assert!(delegate(&[]).is_none());
        let last = delegate(&[delegation(Some(json!({"allowed_tools": ["b_*"]}))), narrow("a_*")]).unwrap();
        assert_eq!((last.allowed_tools, last.scope_constraints), (Some(vec!["a_*".to_owned()]), None));
        let last = delegate(&[narrow("a_*"), delegation(None)]).unwrap();
        assert_eq!((last.allowed_tools, last.scope_constraints), (None, None));
    }
}
