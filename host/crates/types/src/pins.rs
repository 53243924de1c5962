//! The states of tools that come from outside, and of their discovery.

use serde::{Deserialize, Serialize};

crate::words! {
    /// The status of a tool that the server or the agent behind a resource declares. Bots can only use tools with the
    /// status `approved`.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum PinStatus {
        /// The declared definition is approved.
        Approved = "approved",
        /// The tool is new, and no admin has decided about it.
        Pending = "pending",
        /// The tool was approved with another definition than the declared one.
        Changed = "changed",
        /// An admin has rejected this definition.
        Rejected = "rejected",
        /// The declared definition breaks a rule, so it cannot be approved.
        Invalid = "invalid",
        /// The tool is no longer declared.
        Gone = "gone",
    }
}

crate::words! {
    /// The result of the last discovery of the tools of a resource.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum DiscoveryStatus {
        /// No discovery has ended yet.
        Never = "never",
        /// The last discovery succeeded.
        Ok = "ok",
        /// The last discovery failed. It has changed no tool.
        Failed = "failed",
    }
}
