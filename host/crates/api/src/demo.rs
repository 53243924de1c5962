//! The demo: a plugin, an upstream of this server, and a bot that may use one notebook.

use monstrum_types::{BindingId, BotId, ResourceId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A step that sets up the demo. The steps are made in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DemoStep {
    /// Installs the plugin `notebook`, starts the upstream of the demo at a loopback address, and creates a resource for
    /// it. If the upstream does not run any more, starts it again.
    Plugin,
    /// Creates a bot.
    Bot,
    /// Seals the token of the upstream as the credential of the resource.
    Credential,
    /// Binds the resource to the bot, for one notebook only.
    Access,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DemoStepStatus {
    Done,
    Todo,
    /// The upstream does not run, because the server was restarted. Making the step again starts it.
    Stopped,
}

/// The reason why this server or this workspace cannot have the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DemoUnavailable {
    /// The program was built without the demo.
    NotBuilt,
    /// Other hosts may use the same database. They cannot reach the upstream.
    SharedDatabase,
    /// The demo is in another workspace.
    OtherWorkspace,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DemoStepInput {
    pub step: DemoStep,
}

/// A step with its state.
#[derive(Serialize, ToSchema)]
pub struct DemoStepState {
    pub step: DemoStep,
    pub status: DemoStepStatus,
}

/// The bot of the demo.
#[derive(Serialize, ToSchema)]
pub struct DemoBot {
    pub id: BotId,
    pub name: String,
}

/// The resource of the demo.
#[derive(Serialize, ToSchema)]
pub struct DemoResource {
    pub id: ResourceId,
    pub name: String,
}

/// A call that the bot of the demo can try.
#[derive(Serialize, ToSchema)]
pub struct DemoCall {
    pub tool: String,
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// The demo in the workspace.
#[derive(Serialize, ToSchema)]
pub struct Demo {
    /// The reason why the workspace cannot have the demo; null if it can.
    pub unavailable: Option<DemoUnavailable>,
    /// Whether the workspace has neither bots nor resources.
    pub is_empty: bool,
    /// Whether a part of the demo is in this workspace.
    pub is_installed: bool,
    pub steps: Vec<DemoStepState>,
    /// The URL of the upstream while it runs. Only this machine can reach it.
    pub upstream: Option<String>,
    pub resource: Option<DemoResource>,
    pub bot: Option<DemoBot>,
    pub binding_id: Option<BindingId>,
    /// A call within the bot's access.
    pub inside: DemoCall,
    /// A call outside of it.
    pub outside: DemoCall,
}
