//! The sandboxes of conversations, and commands in them.

use monstrum_types::{BotId, RequestId, SandboxInstanceId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;

/// The sandbox of a conversation.
#[derive(Serialize, ToSchema)]
pub struct Sandbox {
    pub id: SandboxInstanceId,
    /// The first 16 hex digits of the SHA-256 of `{app_id}-{user_id}-{chat_id}`.
    pub sandbox_id: String,
    pub provider: String,
    /// The bot to which the sandbox belongs.
    pub bot_id: BotId,
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    pub chat_id: Option<String>,
    /// The status: `creating`, `running`, `stopping`, `stopped`, `deleting`, `error` or `lost`. The files of a lost
    /// sandbox are missing on the server. The server creates a new sandbox for the conversation only after the lost
    /// sandbox is deleted.
    pub status: String,
    pub last_active_at: UtcMillis,
    pub created_at: UtcMillis,
    /// The limits of the last start: `cpuCount`, `memoryMiB`, `diskGiB`, `tmpMiB`, `processes` and `processesPerExec`.
    #[schema(value_type = Option<Object>)]
    pub limit: Option<Value>,
    /// The reason for the status `error` or `lost`, or for a failure to stop or delete the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A command for a sandbox.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecInput {
    /// The command line for bash, 1 to 32 768 bytes.
    pub command: String,
    /// The time limit of the command in seconds, 1 to 300.
    #[schema(default = 60, minimum = 1, maximum = 300)]
    pub timeout: Option<u32>,
}

/// A command in a sandbox, with its outputs.
#[derive(Serialize, ToSchema)]
pub struct SandboxCommand {
    /// The call of the command.
    pub request_id: RequestId,
    pub command: String,
    /// The state: `running`, `success`, `failed` (another exit code than 0, or a signal), `timed_out`, `out_of_memory`,
    /// `lost` (the end is not known) or `refused` (the command did not start; `stderr` has the reason).
    pub state: String,
    /// The exit code; null while the command runs, and if it has none.
    pub exit_code: Option<i32>,
    /// The output. If it is long, a line in its middle states how many bytes are missing.
    pub stdout: String,
    pub stderr: String,
    /// Whether parts of the outputs are missing.
    pub truncated: bool,
    pub started_at: UtcMillis,
    pub duration_ms: Option<u64>,
}

lists! {
    Sandbox => SandboxList "A page of sandboxes.",
    SandboxCommand => SandboxCommandList "A page of the commands of a sandbox, newest first.",
}
