//! The kinds of API keys.

use serde::{Deserialize, Serialize};

crate::words! {
    /// The kind of a key, which determines what the key can do.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    #[schema(as = Kind)]
    pub enum KeyKind {
        /// A root key may do everything, including managing workspaces and plugins and verifying the audit. A root key
        /// acts in the workspace `default`, or in the workspace that the header `Monstrum-Workspace` names.
        Root = "root",
        /// An admin key may do everything in its workspace.
        Admin = "admin",
        /// An operator key may do everything in its workspace except manage keys, credentials, permissions, and the
        /// configuration and network of resources.
        Operator = "operator",
        /// An approver key may read and decide the approvals of its workspace, and nothing else.
        Approver = "approver",
        /// A bot key may use the tools and sandboxes of one bot.
        Bot = "bot",
        /// An agent key may connect agents to one resource, and nothing else.
        Agent = "agent",
    }
}
