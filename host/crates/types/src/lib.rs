//! The types that all parts of Monstrum share: ids, the outcome of a call, HTTP requests of plugins, secrets and the
//! clock.
//!
//! This crate performs no I/O and does not depend on a database, web framework or WebAssembly engine.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod call;
pub mod canonical;
mod causes;
mod clock;
mod effort;
mod events;
mod http;
mod ids;
mod invisible;
mod json_text;
mod json_values;
mod keys;
mod labels;
mod oauth;
mod params;
mod pins;
mod sandbox;
mod secret;
pub mod special_purpose;
mod wakes;
mod words;
mod workspace_sandbox;

pub use call::{
    AppUser, AwaitedApproval, AwaitedAuthorization, CallOutcome, Code, DocumentError, InputError, Status, ToolFailure,
};
pub use causes::with_causes;
pub use clock::{Clock, FixedClock, SystemClock, UtcMillis};
pub use effort::{Effort, Halt, Overrun};
pub use events::PluginSubscription;
pub use http::{
    Failure, FailureCode, HttpRequest, HttpResponse, REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADERS_MAX, URL_BYTES_MAX,
};
pub use ids::{
    ApprovalId, BindingId, BotId, BudgetId, CredentialId, DeliveryId, Digest, EventId, InvalidId, KeyId, OauthFlowId,
    OauthProviderId, PluginName, RequestId, ReservationId, ResourceId, ResourceToolId, ResourceTypeId, RoleId, RunId,
    SandboxInstanceId, ScheduleId, SessionId, SubscriptionId, TaskId, ToolName, TrustId, WakeClaimId, WebhookId,
    WorkflowId, WorkflowTriggerId, WorkflowVersionId, WorkspaceId,
};
pub use invisible::is_invisible;
pub use json_text::JsonText;
pub use json_values::json_values;
pub use keys::KeyKind;
pub use labels::Labels;
pub use oauth::{ClientRegistration, TokenAuth};
pub use params::{ObjectParams, Params};
pub use pins::{DiscoveryStatus, PinStatus};
pub use sandbox::{SandboxEntry, SandboxEntryKind, SandboxOutput};
pub use secret::Secret;
pub use wakes::{WakeKey, WakeKind};
pub use workspace_sandbox::{SandboxLimits, SandboxNetwork, WorkspaceSandbox};
