//! The consent of a person to one call, and the digest that identifies this call.

use monstrum_types::{ApprovalId, BindingId, BotId, Digest, canonical};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::permit::CallFacts;

/// The properties of a call that a person approves, in addition to its facts. Another value of any of them makes it
/// another call, which needs another approval.
#[derive(Clone, Debug)]
pub struct CallContext<'a> {
    /// The user on whose behalf the call is made: the id of an app, and the id of the user within that app.
    pub user: Option<(&'a str, &'a str)>,
    /// The delegations that led to the call, outermost first: the binding, the calling bot and the called bot.
    pub links: Vec<(BindingId, BotId, BotId)>,
    /// The digest of the data that the call has beside its parameters.
    pub attached: Option<Digest>,
    /// The digest of what the call runs: the tool, the component, and the configuration of the resource.
    pub definition: Digest,
}

/// The consent of a person. It permits the call with this digest only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    /// The approval that the person has given.
    pub approval: ApprovalId,
    /// The digest of the call that was approved.
    pub digest: Digest,
}

/// Returns the digest that identifies a call for its approval.
pub(crate) fn digest(tool: &str, operation: &str, call: &CallFacts, context: &CallContext<'_>) -> Digest {
    let CallContext { user, links, attached, definition } = context;
    let links: Vec<Value> = links.iter().map(|(binding, from, to)| json!([binding, from, to])).collect();
    let properties = json!({
        "v": 1,
        "workspace": call.workspace,
        "bot": call.bot,
        "user": user.map(|(app, user)| [app, user]),
        "links": links,
        "tool": tool,
        "resource": call.resource,
        "operation": operation,
        "attached": attached,
        "definition": definition,
    });
    let mut text = String::new();
    canonical::write(&properties, &mut text);
    canonical::write_object(call.params.members(), &mut text);
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(text)));
    digest.parse().expect("a SHA-256 has the form of a digest")
}
