//! The database layer of Monstrum, with all its SQL statements, mostly one file per table. Each statement is written
//! once for both SQLite and PostgreSQL.
//!
//! Statements on rows of a workspace require the workspace id, so they never find rows of other workspaces. A change of
//! a row that is part of the policy raises the generation of the policy in the same transaction. This crate handles
//! neither key material nor the content of sealed records. No other crate uses sqlx.

#![forbid(unsafe_code)]

mod address;
mod agent_hosts;
mod approvals;
mod audit;
mod batch;
mod bindings;
mod bots;
mod budgets;
mod chores;
mod console;
mod credentials;
mod db;
mod deliveries;
mod discoveries;
mod error;
mod events;
mod idempotency;
mod instance;
mod keys;
mod missing_scopes;
mod oauth_flows;
mod oauth_proposals;
mod oauth_providers;
mod open;
mod owners;
mod page;
mod plugin_records;
mod plugins;
mod policy;
mod resource_tools;
mod resources;
mod roles;
mod rows;
mod runs;
mod sandboxes;
mod schedules;
mod sealed;
mod subscriptions;
mod tasks;
mod trust;
mod usage;
mod wakes;
mod webhooks;
mod workflows;
mod workspaces;

pub use agent_hosts::{AgentHost, AgentHostRow, AgentPresenceRow};
pub use approvals::{
    ApprovalDecision, ApprovalFilter, ApprovalKind, ApprovalRow, ApprovalStatus, AskedApproval, GrantRow, NewApproval,
    PendingMax, UsedApproval,
};
pub use audit::{
    AnchorRow, AuditKind, AuditRow, CHANGE_FLAG, CallCount, CallCounts, CallFilter, CallProperty, CallTree, ChainEnd,
    ChainedRow, FollowedRow, STATS_GROUPS_MAX, STATS_ROWS_MAX, ScanFrom, ScanPage, ScannedRow, SpanRow, SpanScanner,
    StatsQuery, TREE_COUNTED_MAX, UnreadableRow,
};
pub use batch::{ConfigurationRow, RowWrite};
pub use bindings::{BindingRow, BoundRow};
pub use bots::BotRow;
pub use budgets::{BudgetLimits, BudgetRow, BudgetSubject, BudgetWrite, PayerLimits};
pub use console::{ConsoleSessionRow, ConsoleTicketRow};
pub use credentials::CredentialRow;
pub use deliveries::{
    DeliveredTask, DeliveriesMax, DeliveryEnd, DeliveryFilter, DeliveryReason, DeliveryRow, DeliveryStatus, Dispatch,
    Dispatched, EndedDelivery, RetriedDelivery, StartedDelivery, TargetKind,
};
pub use discoveries::{DiscoveryRow, FirstDiscoveryRow};
pub use error::StoreError;
pub use events::{EventFilter, EventRow, SequencedEvent, wake_of};
pub use idempotency::{Claim, IdempotencyKey, StoredAnswer};
pub use instance::InstanceKeyRow;
pub use keys::{KeyKind, KeyRow, KeyUse};
pub use missing_scopes::MissingScopesRow;
pub use oauth_flows::{FlowStatus, OauthFlowRow};
pub use oauth_proposals::OauthProposalRow;
pub use oauth_providers::OauthProviderRow;
pub use open::{Store, StoreOptions};
pub use owners::{OwnedKind, OwnedName, OwnerRow};
pub use page::{Listed, PAGE_ITEMS_MAX, Page};
pub use plugin_records::PluginRecords;
pub use plugins::{PluginRow, PluginVersionRow, PluginVersionSummary, StoredManifest};
pub use policy::PolicyRows;
pub use resource_tools::{ResourceToolRow, ToolWrites};
pub use resources::ResourceRow;
pub use roles::RoleRow;
pub use rows::{
    Changed, PolicyChanges, RowName, RowsDone, Scope, ScopeRow, SealsRows, Table, Unsealed, UnverifiedScope,
    VerifiedPolicy, VerifiedRows,
};
pub use runs::{
    AdvancedRun, ChildOfStep, ChildRefusal, EndedRunStep, InsertedRun, InvalidStepCursor, NewChild, NewRun,
    ParkedRunStep, ResolvedRunStep, RetriedRun, RunFilter, RunProgress, RunRequest, RunRoom, RunRow, RunStarter,
    RunStatus, RunStepCursor, RunStepHead, RunStepKey, RunStepPhase, RunStepRow, RunStepStatus, RunStepStop, RunsMax,
};
pub use sandboxes::{
    RunningSandboxes, SandboxFilter, SandboxOutputRow, SandboxOutputsMax, SandboxRow, SandboxSettled, SandboxStatus,
};
pub use schedules::{
    FiredSchedule, InsertedSchedule, RunningSchedule, ScheduleFiring, ScheduleRow, ScheduleRun, ScheduleRunStatus,
    ScheduleUpdate, ScheduledTask, SchedulesMax,
};
pub use sealed::{SealedColumn, SealedPage, SealedRow};
pub use subscriptions::{SubscriptionMaker, SubscriptionRow};
pub use tasks::{
    ConversationFilter, DeletedSessions, EndedStep, EndedTask, InsertedTask, NewSession, SessionFilter, SessionRow,
    TaskEnd, TaskFilter, TaskProgress, TaskRow, TaskState, TaskStatus, TaskStepKind, TaskStepRow, TasksMax,
};
pub use trust::TrustRow;
pub use usage::{
    BotSpent, Charge, Payer, ReservationFilter, ReservationPage, ReservationRow, Spent, StoreRow, UsageBy, UsageGroup,
    UsageGroups, UsageRow, Used,
};
pub use wakes::{AfterTurn, CLAIM_MS, DueCount, DueWake, NewClaim, NewWake, WakeClaim, WakeRow};
pub use webhooks::{InsertedWebhook, Receipt, ReceivedEvent, WebhookKind, WebhookRow};
pub use workflows::{
    DocumentFormat, InsertedTrigger, InsertedWorkflow, NewWorkflowVersion, WorkflowRow, WorkflowTriggerRow,
    WorkflowVersionRow,
};
pub use workspaces::{DEFAULT_WORKSPACE, WorkspaceRow};
