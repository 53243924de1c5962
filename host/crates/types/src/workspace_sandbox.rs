//! The settings of a workspace's sandboxes, as an operator sets them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings of a workspace's sandboxes. The server's setting applies where a setting is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceSandbox {
    /// Network access: `none`, or `full` for public addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub network: Option<SandboxNetwork>,
    /// The limits of one sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<SandboxLimits>,
    /// Number of seconds after which an unused sandbox is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 5, maximum = 86400)]
    pub idle_s: Option<u32>,
}

/// The addresses that a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// Only the sandbox itself.
    #[default]
    None,
    /// The sandbox itself and public addresses, but never an address of the host or a special-purpose address.
    Full,
}

/// The limits of one sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxLimits {
    /// Processor limit in thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Memory limit of the sandbox in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Disk limit for /workspace and installed software, in MiB. A change applies to sandboxes that are created afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Size limit of /tmp in MiB. /tmp is kept in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp_mib: Option<u32>,
    /// Maximum number of processes in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Maximum number of processes of one command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_per_exec: Option<u32>,
}
