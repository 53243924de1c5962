//! Workflows: documents with steps that a bot runs, their versions, and their triggers.

use monstrum_types::{BotId, DocumentError, UtcMillis, WorkflowId, WorkflowTriggerId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::not_null;
use crate::schedules::MadeBy;
use crate::tasks::Narrow;

/// A workflow.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Workflow {
    pub id: WorkflowId,
    #[schema(example = "release")]
    pub name: String,
    /// The bot as which the workflow runs.
    pub bot_id: BotId,
    /// The number of the newest version, from 1.
    pub version: i64,
    /// Whether new runs can start.
    pub enabled: bool,
    /// The newest definition as it was saved: a text, or an object.
    #[schema(value_type = Value)]
    pub definition: Value,
    /// What may fail when the workflow runs. Warnings do not prevent saving.
    pub warnings: Vec<DocumentError>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A workflow in a list, without its definition.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkflowSummary {
    pub id: WorkflowId,
    #[schema(example = "release")]
    pub name: String,
    /// The bot as which the workflow runs.
    pub bot_id: BotId,
    /// The number of the newest version, from 1.
    pub version: i64,
    /// Whether new runs can start.
    pub enabled: bool,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A workflow to create or to validate.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkflow {
    /// The definition: a text in YAML or JSON, or an object. At most 256 KiB.
    #[schema(value_type = Value)]
    pub definition: Value,
}

/// Changes to a workflow. The name and the bot cannot be changed.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowChange {
    /// The new definition, which becomes a new version. The same definition makes no version.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(value_type = Option<Value>)]
    pub definition: Option<Value>,
    /// Whether new runs can start. Runs that have started go on.
    #[serde(default, deserialize_with = "not_null")]
    pub enabled: Option<bool>,
}

/// A definition without errors.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ValidWorkflow {
    #[schema(example = "release")]
    pub name: String,
    /// The bot as which the workflow would run.
    pub bot_id: BotId,
    /// What may fail when the workflow runs.
    pub warnings: Vec<DocumentError>,
}

/// A version of a workflow. It never changes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkflowVersion {
    /// From 1.
    pub version: i64,
    /// The SHA-256 digest of the definition as it is stored.
    #[schema(example = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub digest: String,
    /// Who saved the version. The key may have been deleted.
    pub saved_by: MadeBy,
    pub created_at: UtcMillis,
    /// The definition as it was saved: a text, or an object.
    #[schema(value_type = Value)]
    pub definition: Value,
}

/// A version of a workflow in a list, without its definition.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkflowVersionSummary {
    /// From 1.
    pub version: i64,
    /// The SHA-256 digest of the definition as it is stored.
    #[schema(example = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub digest: String,
    /// Who saved the version. The key may have been deleted.
    pub saved_by: MadeBy,
    pub created_at: UtcMillis,
}

/// A trigger: events that start runs of a workflow.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkflowTrigger {
    pub id: WorkflowTriggerId,
    pub workflow_id: WorkflowId,
    /// A glob over the types of events.
    #[schema(example = "custom.deploy.*")]
    pub event_pattern: String,
    /// A text for the run, with placeholders for the event.
    pub instruction: String,
    /// Whose events match: `own` for the events of the workflow's bot, `platform` for events without a bot, `any`, or
    /// the ids of bots.
    #[schema(example = json!(["own", "platform"]))]
    pub from: Vec<String>,
    /// What the runs may do less than the bot; null for nothing.
    pub narrow: Option<Narrow>,
    pub enabled: bool,
    pub created_at: UtcMillis,
}

/// A trigger to create.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkflowTrigger {
    /// A glob over the types of events, at most 256 characters.
    pub event_pattern: String,
    /// A text for the run, at most 8 KiB. `{event_type}`, `{source_type}`, `{source_id}`, `{data}` and `{metadata}` are
    /// replaced, `{{` and `}}` are braces.
    #[serde(default)]
    pub instruction: String,
    /// Whose events match. The default is `own` and `platform`. `any` and the ids of other bots require an admin key.
    pub from: Option<Vec<String>>,
    /// What the runs may do less than the bot.
    pub narrow: Option<Narrow>,
    #[serde(default = "enabled")]
    pub enabled: bool,
}

fn enabled() -> bool {
    true
}

/// Changes to a trigger.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowTriggerChange {
    #[serde(default, deserialize_with = "not_null")]
    pub enabled: Option<bool>,
}

lists! {
    WorkflowSummary => WorkflowList "A page of workflows.",
    WorkflowVersionSummary => WorkflowVersionList "A page of the versions of a workflow.",
    WorkflowTrigger => WorkflowTriggerList "A page of the triggers of a workflow.",
}
