//! The columns of each table. Every stored MAC depends on the order of the covered columns.

use super::Kind::{Flag, Int, Text};
use super::Spec;

const ID: &[&str] = &["id"];

/// Default values for a table with the key `id`, whose columns are all covered and whose rows are counted.
const COUNTED: Spec =
    Spec { name: "", key: ID, covered: &[], optional: &[], left_out: &[], content: &[], is_counted: true };

pub(super) const WORKSPACES: Spec = Spec {
    name: "workspaces",
    covered: &[("id", Text), ("name", Text), ("sandbox", Text), ("created_at", Int), ("updated_at", Int)],
    ..COUNTED
};

pub(super) const API_KEYS: Spec = Spec {
    name: "api_keys",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("kind", Text),
        ("bot_id", Text),
        ("prefix", Text),
        ("hash", Text),
        ("created_at", Int),
    ],
    // The host only displays this column.
    left_out: &["last_used_at"],
    ..COUNTED
};

pub(super) const ROLES: Spec = Spec {
    name: "roles",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("allowed_operations", Text),
        ("allowed_tools", Text),
        ("scope_constraints", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    optional: &[("gates", Text)],
    ..COUNTED
};

pub(super) const BOTS: Spec = Spec {
    name: "bots",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("description", Text),
        ("system_prompt", Text),
        ("model", Text),
        ("use_agent_sandbox", Flag),
        ("monthly_token_budget", Int),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    optional: &[("gates", Text)],
    ..COUNTED
};

pub(super) const RESOURCES: Spec = Spec {
    name: "resources",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_type", Text),
        ("name", Text),
        ("config", Text),
        ("network", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    optional: &[("labels", Text)],
    ..COUNTED
};

pub(super) const CREDENTIALS: Spec = Spec {
    name: "credentials",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_id", Text),
        ("subject_kind", Text),
        ("subject_id", Text),
        ("auth_method", Text),
        ("given_for", Text),
        ("created_at", Int),
    ],
    // The sealed record authenticates itself. A token refresh writes all of these columns, but the policy stays the
    // same.
    left_out: &["sealed", "key_version", "status", "expires_at", "refreshing_until", "updated_at"],
    ..COUNTED
};

pub(super) const BOT_RESOURCES: Spec = Spec {
    name: "bot_resources",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("bot_id", Text),
        ("resource_id", Text),
        ("role_id", Text),
        ("permissions", Text),
        ("scope_constraints", Text),
        ("delegate", Text),
        ("allow_calls", Text),
        ("allow_subscribe", Flag),
        ("limits", Text),
        ("calls_per_minute", Int),
        ("enabled", Flag),
        ("expires_at", Int),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    optional: &[("gates", Text)],
    ..COUNTED
};

pub(super) const OAUTH_PROVIDERS: Spec = Spec {
    name: "oauth_providers",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_type", Text),
        ("client_id", Text),
        ("authorization_url", Text),
        ("token_url", Text),
        ("device_authorization_url", Text),
        ("scopes", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    // The secret is sealed and bound to the client and its endpoints.
    left_out: &["client_secret"],
    ..COUNTED
};

pub(super) const PLUGINS: Spec = Spec {
    name: "plugins",
    key: &["name"],
    covered: &[
        ("name", Text),
        ("version", Text),
        ("manifest_digest", Text),
        ("component_digest", Text),
        ("updated_at", Int),
    ],
    ..COUNTED
};

pub(super) const PLUGIN_VERSIONS: Spec = Spec {
    name: "plugin_versions",
    key: &["plugin", "manifest_digest", "component_digest"],
    covered: &[
        ("plugin", Text),
        ("version", Text),
        ("manifest_digest", Text),
        ("component_digest", Text),
        ("locales_digest", Text),
        ("created_at", Int),
    ],
    // The host compares these columns with the digests when it reads the content.
    content: &["manifest", "component", "locales"],
    ..COUNTED
};

pub(super) const TRUST: Spec = Spec {
    name: "trust",
    covered: &[("id", Text), ("public_key", Text), ("name_glob", Text), ("type_glob", Text), ("created_at", Int)],
    ..COUNTED
};

pub(super) const OWNERS: Spec = Spec {
    name: "owners",
    key: &["kind", "name"],
    covered: &[("kind", Text), ("name", Text), ("plugin", Text), ("legacy_plugin", Text), ("created_at", Int)],
    ..COUNTED
};

pub(super) const OAUTH_FLOWS: Spec = Spec {
    name: "oauth_flows",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_id", Text),
        ("provider_id", Text),
        ("key_id", Text),
        ("auth_method", Text),
        ("given_for", Text),
        ("ticket_hash", Text),
        ("created_at", Int),
        ("expires_at", Int),
    ],
    // These columns record the progress of the authorization, which changes while the MAC stays the same.
    left_out: &["status", "state_hash", "browser_hash", "sealed", "message", "poll_interval_s", "next_poll_at"],
    is_counted: false,
    ..COUNTED
};

pub(super) const SANDBOX_INSTANCES: Spec = Spec {
    name: "sandbox_instances",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("bot_id", Text),
        ("provider", Text),
        ("sandbox_id", Text),
        ("app_id", Text),
        ("user_id", Text),
        ("chat_id", Text),
        ("node", Text),
    ],
    // These columns record the state of the sandbox, which changes while the MAC stays the same.
    left_out: &[
        "status",
        "operation",
        "operation_until",
        "last_active_at",
        "created_at",
        "limit",
        "network",
        "error",
        "attempts",
        "next_attempt_at",
        "lost",
    ],
    is_counted: false,
    ..COUNTED
};

pub(super) const APPROVALS: Spec = Spec {
    name: "approvals",
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("kind", Text),
        ("digest", Text),
        ("definition", Text),
        ("status", Text),
        ("bot_id", Text),
        ("app_id", Text),
        ("user_id", Text),
        ("tool", Text),
        ("resource_id", Text),
        ("operation", Text),
        ("effect", Text),
        ("links", Text),
        ("labels", Text),
        ("gates", Text),
        ("approvers", Text),
        ("allow_starter", Flag),
        ("asked_key", Text),
        ("asked_task", Text),
        ("request_id", Text),
        ("created_at", Int),
        ("expires_at", Int),
        ("decided_by", Text),
        ("decided_at", Int),
        ("note", Text),
        ("ended_at", Int),
        ("changed_at", Int),
    ],
    // The sealed record authenticates itself.
    content: &["sealed"],
    is_counted: false,
    ..COUNTED
};

pub(super) const APPROVAL_GRANTS: Spec = Spec {
    name: "approval_grants",
    covered: &[("id", Text), ("workspace_id", Text), ("digest", Text), ("expires_at", Int)],
    ..COUNTED
};
