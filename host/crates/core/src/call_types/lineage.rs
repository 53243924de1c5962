//! The position of a call in the tree of calls below one root call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use monstrum_guardian::PatternSet;
use monstrum_types::{BindingId, RequestId, canonical};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::call_types::call_secrets::SharedRedactors;
use crate::call_types::links::Link;

/// The ancestors of a child call, and the permissions that they pass to it.
#[derive(Clone, Debug)]
pub struct Lineage {
    pub parent: RequestId,
    /// The number of ancestors: 1 for a child call of a root call.
    pub depth: u8,
    /// The deadline of the parent call.
    pub until: Instant,
    /// The bindings under which an ancestor holds a place as a running call.
    pub held: Vec<BindingId>,
    /// The redactors of the root call and of all calls below it.
    pub secrets: SharedRedactors,
    /// The links under which the bot acts, in order from the root call.
    pub links: Vec<Link>,
    pub made_by: MadeBy,
    pub ancestors: Vec<CallDigest>,
    /// The flag that the call sets if it ends and its effect is unknown.
    pub unanswered: Arc<AtomicBool>,
    /// The number of calls that have been made below the root call.
    made: Arc<AtomicU32>,
    /// The number of events that the root call and all calls below it have emitted.
    emitted: Arc<AtomicU32>,
}

/// The permission under which a call makes a child call.
#[derive(Clone, Debug)]
pub enum MadeBy {
    /// A plugin makes the call. Its manifest (`calls`) and the binding through which it runs must both name the tool.
    Plugin { binding: BindingId, calls: PatternSet },
    /// A bot makes the call on behalf of another bot, through the delegation in the last link.
    Bot,
    /// A plugin makes the call through the import `sandbox`. The plugin's manifest has the capability `sandbox`, and
    /// the switch of the bot grants the tools.
    SandboxImport,
}

impl Lineage {
    /// Creates the lineage for the child calls of `parent`, which has the lineage `above` and acts under `links`.
    pub fn of_children(
        above: Option<&Lineage>,
        (parent, links): (RequestId, &[Link]),
        until: Instant,
        made_by: MadeBy,
    ) -> Lineage {
        let (depth, held, secrets, ancestors, made, emitted) = match above {
            Some(above) => (
                above.depth,
                above.held.clone(),
                above.secrets.clone(),
                above.ancestors.clone(),
                Arc::clone(&above.made),
                Arc::clone(&above.emitted),
            ),
            None => Default::default(),
        };
        let (links, unanswered) = (links.to_vec(), Arc::default());
        let depth = depth + 1;
        Lineage { parent, depth, until, held, secrets, links, made_by, ancestors, unanswered, made, emitted }
    }

    /// Returns the number of events that the root call and all calls below it have emitted, which they share.
    pub fn emitted(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.emitted)
    }

    /// Counts one more call below the root call, and returns the previous number.
    pub fn count(&self) -> u32 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether a plugin has made the call through the import `sandbox`.
    pub fn is_of_sandbox_import(&self) -> bool {
        matches!(self.made_by, MadeBy::SandboxImport)
    }
}

/// The digest of a call's tool and of its parameters in canonical form. It identifies the call among its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDigest([u8; 32]);

impl CallDigest {
    /// Returns the digest of a call of `tool`. `params` must contain the default values.
    pub fn of(tool: &str, params: &Map<String, Value>) -> CallDigest {
        let mut canonical = format!("{tool}\n");
        canonical::write_object(params, &mut canonical);
        CallDigest(Sha256::digest(canonical).into())
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_digest_does_not_depend_on_notation() {
        let digest = |tool: &str, params: &str| CallDigest::of(tool, &serde_json::from_str(params).unwrap());
        let one = digest("t", r#"{"a": 1, "b": {"x": [1, 2.5, "s"], "y": null}}"#);
        for same in [
            r#"{"b": {"y": null, "x": [1.0, 2.50, "\u0073"]}, "a": 1e0}"#,
            r#"{"a": 10e-1, "b": {"x": [1, 25e-1, "s"], "y": null}}"#,
        ] {
            assert_eq!(digest("t", same), one, "{same}");
        }
        for other in [
            r#"{"a": "1", "b": {"x": [1, 2.5, "s"], "y": null}}"#,
            r#"{"a": 1, "b": {"x": [2.5, 1, "s"], "y": null}}"#,
            r#"{"a": 1, "b": {"x": [1, 2.5, "s"]}}"#,
            r#"{"a": 9007199254740993, "b": {"x": [1, 2.5, "s"], "y": null}}"#,
        ] {
            assert_ne!(digest("t", other), one, "{other}");
        }
        assert_ne!(digest("u", r#"{"a": 1}"#), digest("t", r#"{"a": 1}"#));
        assert_ne!(digest("t", r#"{"a": 9007199254740993}"#), digest("t", r#"{"a": 9007199254740992}"#));
        assert_eq!(digest("t", r#"{"a": -0.0}"#), digest("t", r#"{"a": 0}"#));
        // Names and strings cannot imitate the surrounding JSON structure.
        assert_ne!(digest("t", r#"{"a":1,"b":2}"#), digest("t", r#"{"a\":1,\"b":2}"#));
        assert_ne!(digest("t", "{}"), CallDigest::of("t\n{}", &Map::new()));
    }
}
