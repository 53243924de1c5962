//! Pins: which tools of a resource come from outside, and who approved them.
//!
//! A server or an agent declares tools. Each definition has a digest, and an admin approves the digest. Only a tool that
//! is declared with its approved definition is listed and callable. Every change is recorded in the audit before it is
//! made.

mod decision;
mod declared;
mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use monstrum_manifest::{Effect, full_tool_name};
use monstrum_store::{DiscoveryRow, ResourceRow, ResourceToolRow, Store, StoreError, ToolWrites};
use monstrum_types::{Clock, Code, Digest, KeyId, ResourceToolId, UtcMillis};
use serde_json::{Map, Value, json};

pub use monstrum_types::{DiscoveryStatus, PinStatus};

pub use decision::{Choice, Refusal, Verdict};
pub use declared::TOOLS_MAX;

use crate::audit::{self, Auditor};
use crate::beside::Beside;
use crate::plugins::{built_in, remote};
use crate::policy::{Policy, Resource};
use declared::Declared;
use plan::{Discovery, Stored};

/// The time of a claim. A discovery takes at most 20 s.
const CLAIM_MS: i64 = 30_000;
/// The maximum number of attempts to store a discovery. An attempt fails only if the rows change at the same time.
const ATTEMPTS_MAX: usize = 4;
/// The maximum length of an error of a discovery, and of the reason why a definition is invalid, in characters.
const ERROR_CHARS_MAX: usize = 500;
/// The maximum number of changes in one record of the audit that concern no decision.
const OTHERS_RECORDED_MAX: usize = 64;
/// The maximum length of a revision of the protocol in characters. A revision is a date.
const PROTOCOL_CHARS_MAX: usize = 32;
/// The maximum size of what a server says about itself in bytes. More is not stored.
const SERVER_BYTES_MAX: usize = 8 << 10;

/// A tool as a server or an agent declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredTool {
    pub original_name: String,
    /// The members `name`, `title`, `description`, `inputSchema`, `outputSchema` and `annotations`, as in the Model
    /// Context Protocol. Other members are ignored.
    pub definition: Map<String, Value>,
    /// The effect that an agent declares. It is shown to admins.
    pub effect_hint: Option<Effect>,
}

/// Which declared definitions need no decision of an admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definitions {
    /// An admin approves every definition.
    Review,
    /// The definitions of the first successful discovery are approved.
    First,
    /// All definitions are approved.
    Trusted,
}

/// A tool of a resource, with the decision about it.
#[derive(Clone, Debug, PartialEq)]
pub struct PinnedTool {
    /// The name under which bots use the tool.
    pub name: String,
    pub original_name: String,
    pub status: PinStatus,
    /// The reason for the status `invalid`.
    pub reason: Option<String>,
    /// The digest of the declared definition.
    pub digest: Digest,
    /// The effect that an admin has set; `write` if no admin has set it.
    pub effect: Effect,
    /// The effect that the server or the agent declares.
    pub hint: Option<Effect>,
    /// The definition that was declared last.
    pub definition: Map<String, Value>,
    pub approved: Option<ApprovedDefinition>,
}

/// A definition that was approved.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovedDefinition {
    pub digest: Digest,
    pub definition: Map<String, Value>,
    /// The key that approved the definition; `None` if the configuration of the resource approved it.
    pub by: Option<KeyId>,
    pub at: Option<UtcMillis>,
}

/// What a server or an agent says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerInfo {
    /// The name, title and version, for display.
    pub server: Value,
    /// The revision of the protocol.
    pub protocol: String,
}

/// The reason why a recorded change was not made.
#[derive(Debug, thiserror::Error)]
enum Undone {
    #[error("the tools were changed at the same time")]
    RowsChanged,
    #[error("{0}")]
    Failed(StoreError),
}

/// The tools from outside of this host's resources.
pub struct Pins {
    store: Store,
    auditor: Auditor,
    policy: Arc<Policy>,
    clock: Arc<dyn Clock>,
    /// The name of this host in claims.
    host: String,
}

impl Pins {
    /// Creates the pins of a host. `host` distinguishes the hosts that share the database.
    pub fn new(store: Store, auditor: Auditor, policy: Arc<Policy>, clock: Arc<dyn Clock>, host: String) -> Pins {
        Pins { store, auditor, policy, clock, host }
    }

    /// Compares the tools that a server or an agent declares with the stored tools, and stores the differences. If the
    /// served tools change, the new policy is in force when this function returns. Returns all tools of the resource.
    pub async fn record(
        &self,
        resource: &Resource,
        tools: Vec<DeclaredTool>,
        how: Definitions,
    ) -> Result<Vec<PinnedTool>, StoreError> {
        // These threads are separate from those of manifests, so that the tools of one server delay no plugin.
        static DECLARATIONS: Beside = Beside::new();
        let (workspace, id) = (resource.row.workspace_id, resource.row.id);
        let known = self.store.resource_tools(workspace, id).await?;
        let checked = DECLARATIONS.run(move || declared::check(tools, &known)).await;
        let checked: Vec<Declared> = checked.map_err(|error| unavailable("failed to check declared tools", error))?;
        for _ in 0..ATTEMPTS_MAX {
            let rows = self.store.resource_tools(workspace, id).await?;
            let stored = Stored { rows, first: self.store.first_discovery(workspace, id).await? };
            let url = resource.config.get(built_in::MCP_URL).and_then(Value::as_str).unwrap_or_default();
            let (name, now) = (resource.row.name.as_str(), self.clock.now());
            let discovery = Discovery { workspace, resource: id, name, url, declared: &checked, how, now };
            // A result that arrives after a change of the configuration says nothing about the new configuration.
            let writes = ToolWrites { config: Some(resource.row.config.clone()), ..discovery.plan(&stored) };
            if writes.written.is_empty() && writes.deleted.is_empty() && writes.first.is_none() {
                return Ok(shown(&resource.row, &stored.rows));
            }
            if self.write(&resource.row, &writes).await? {
                return self.of(&resource.row).await;
            }
        }
        Err(StoreError::ChangedMeanwhile)
    }

    /// Records these changes in the audit, makes them, and renews the policy. Returns false if the rows have changed
    /// since they were read.
    async fn write(&self, resource: &ResourceRow, writes: &ToolWrites) -> Result<bool, StoreError> {
        let (before, after) = recorded(&resource.name, writes);
        let change = audit::Change {
            resource: Some(resource.id),
            before,
            after,
            ..audit::Change::new(resource.workspace_id, "resource.discover", resource.id.to_string())
        };
        let write = async {
            let written = self.store.write_resource_tools(resource.workspace_id, resource.id, writes).await;
            if written.map_err(Undone::Failed)? { Ok(()) } else { Err(Undone::RowsChanged) }
        };
        let recorded = self.auditor.record(change, write, |_: &Undone| Code::Unavailable).await;
        let (done, closed) = recorded.map_err(|error| unavailable("the audit cannot be written", error))?;
        if closed.is_err() {
            tracing::error!(resource.id = %resource.id, "the outcome of a discovery has not been written to the audit yet");
        }
        match done {
            Ok(()) => {
                self.policy.renew().await?;
                Ok(true)
            }
            Err(Undone::RowsChanged) => Ok(false),
            Err(Undone::Failed(error)) => Err(error),
        }
    }

    /// Returns all tools of a resource, in the order in which they were first declared.
    pub async fn of(&self, resource: &ResourceRow) -> Result<Vec<PinnedTool>, StoreError> {
        let rows = self.store.resource_tools(resource.workspace_id, resource.id).await?;
        Ok(shown(resource, &rows))
    }

    /// Returns the result of the last discovery.
    pub async fn discovery(&self, resource: &ResourceRow) -> Result<Option<DiscoveryRow>, StoreError> {
        self.store.discovery(resource.workspace_id, resource.id).await
    }

    /// Stores the result of a discovery. An error is a text for operators.
    pub async fn discovered(
        &self,
        resource: &ResourceRow,
        result: Result<ServerInfo, String>,
    ) -> Result<(), StoreError> {
        let (status, error, server, protocol) = match result {
            Ok(ServerInfo { server, protocol }) => {
                let server = Some(server).filter(|server| server.to_string().len() <= SERVER_BYTES_MAX);
                (DiscoveryStatus::Ok, None, server, Some(shortened(&protocol, PROTOCOL_CHARS_MAX)))
            }
            Err(error) => (DiscoveryStatus::Failed, Some(shortened(&error, ERROR_CHARS_MAX)), None, None),
        };
        let row = DiscoveryRow {
            resource_id: resource.id,
            workspace_id: resource.workspace_id,
            status,
            last_discovery_at: Some(self.clock.now()),
            error,
            server,
            protocol,
            claimed_by: None,
            claimed_until: None,
        };
        self.store.put_discovery(&row).await
    }

    /// Claims the discovery of a resource for this host for 30 s. Returns false if another host holds the claim.
    pub async fn claim(&self, resource: &ResourceRow) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let place = (resource.workspace_id, resource.id);
        self.store.claim_discovery(place, &self.host, now, now.plus_ms(CLAIM_MS)).await
    }

    /// Releases the claim of this host.
    pub async fn release(&self, resource: &ResourceRow) -> Result<(), StoreError> {
        self.store.release_discovery(resource.id, &self.host).await
    }
}

/// Returns the tools of these rows.
pub fn shown(resource: &ResourceRow, rows: &[ResourceToolRow]) -> Vec<PinnedTool> {
    rows.iter().map(|row| PinnedTool::of(&resource.name, row)).collect()
}

impl PinnedTool {
    fn of(resource: &str, row: &ResourceToolRow) -> PinnedTool {
        let parsed = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
        let definition = parsed(&row.definition);
        let approved = row.approved_digest.clone().map(|digest| ApprovedDefinition {
            digest,
            definition: row.approved_definition.as_deref().map_or_else(|| definition.clone(), parsed),
            by: row.approved_by,
            at: row.approved_at,
        });
        PinnedTool {
            name: full_tool_name(resource, &row.slug),
            original_name: row.original_name.clone(),
            status: row.status,
            reason: row.reason.clone(),
            digest: row.digest.clone(),
            effect: Effect::from_word(&row.effect).unwrap_or_default(),
            hint: row.hint.as_deref().and_then(Effect::from_word),
            definition,
            approved,
        }
    }
}

/// Returns the tools that a change concerns as the audit records them, before and after the change. The digests stand
/// for the definitions. A server can declare other tools again and again, so of the changes that concern no decision,
/// only the first ones are listed.
pub fn recorded(resource: &str, writes: &ToolWrites) -> (Value, Value) {
    let written: HashMap<ResourceToolId, &ResourceToolRow> = writes.written.iter().map(|row| (row.id, row)).collect();
    let deleted: HashSet<ResourceToolId> = writes.deleted.iter().copied().collect();
    let known: HashSet<ResourceToolId> = writes.before.iter().map(|row| row.id).collect();
    let is_changed = |row: &&ResourceToolRow| deleted.contains(&row.id) || written.contains_key(&row.id);
    let changed = writes.before.iter().filter(is_changed).map(|row| (Some(row), written.get(&row.id).copied()));
    let new = writes.written.iter().filter(|row| !known.contains(&row.id)).map(|row| (None, Some(row)));
    let (mut before, mut after, mut others) = (Vec::new(), Vec::new(), 0_usize);
    for (old, new) in changed.chain(new) {
        if decided(old) == decided(new) {
            others += 1;
            if others > OTHERS_RECORDED_MAX {
                continue;
            }
        }
        before.extend(old.map(|row| recorded_tool(resource, row)));
        after.extend(new.map(|row| recorded_tool(resource, row)));
    }
    let omitted = others.saturating_sub(OTHERS_RECORDED_MAX);
    let first = writes.first.as_ref().map(|first| &first.url);
    (json!({ "tools": before }), json!({ "tools": after, "omitted": omitted, "first_discovery_of": first }))
}

/// Returns what bots may use of a tool, and what an admin has decided about it.
fn decided(row: Option<&ResourceToolRow>) -> Option<(bool, Option<&Digest>, Option<&Digest>, &str)> {
    let row = row.filter(|row| row.approved_digest.is_some() || row.rejected_digest.is_some())?;
    Some((row.is_served(), row.approved_digest.as_ref(), row.rejected_digest.as_ref(), &row.effect))
}

fn recorded_tool(resource: &str, row: &ResourceToolRow) -> Value {
    json!({
        "name": full_tool_name(resource, &row.slug),
        "original_name": row.original_name,
        "status": row.status.as_str(),
        "reason": row.reason,
        "digest": row.digest,
        "effect": row.effect,
        "approved_digest": row.approved_digest,
        "rejected_digest": row.rejected_digest,
        "approved_by": row.approved_by,
    })
}

/// Cuts a text that comes from outside, and writes hidden characters as escapes.
fn shortened(text: &str, chars_max: usize) -> String {
    remote::written_out(&text.chars().take(chars_max).collect::<String>())
}

fn unavailable(what: &str, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unavailable { what: what.to_owned(), source: Box::new(source) }
}
