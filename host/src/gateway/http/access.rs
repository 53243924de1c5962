//! The kinds of keys that may call each operation. The extractors of the handlers enforce this; the table here only says
//! it, to the API description and to `/api/me`. The tests compare it with the answers of every route.

use std::sync::OnceLock;

use monstrum_types::KeyKind::{self, Admin, Agent, Approver, Bot, Operator, Root};
use utoipa::openapi::OpenApi;

use crate::gateway::http::docs;

/// The operations that a setting opens to everybody. See [`crate::gateway::Options`].
const DOCUMENTS: [&str; 4] =
    ["description_manifest_schema", "description_openapi", "description_page", "health_metrics"];

/// The kinds of keys for each operation that needs a key, by the id of the operation.
const TABLE: [(&[KeyKind], &[&str]); 9] = [
    (&[Root, Admin, Operator, Approver, Bot, Agent], &["keys_me"]),
    (&[Root, Admin, Operator, Approver, Bot], &["approvals_list", "approvals_show"]),
    (&[Root, Admin, Operator, Approver], &["approvals_decide", "console_create_ticket", "overview_attention"]),
    (
        &[Root, Admin, Operator, Bot],
        &[
            "bots_prompt",
            "description_manifest_schema",
            "description_openapi",
            "description_page",
            "mcp_listen",
            "mcp_post",
            "openai_complete",
            "openai_list",
            "openai_respond",
            "openai_retrieve",
            "openai_show",
            "runs_cancel",
            "runs_events",
            "runs_list",
            "runs_of_workflow",
            "runs_show",
            "runs_start",
            "runs_steps",
            "sandboxes_delete",
            "sandboxes_delete_app",
            "sandboxes_delete_chat",
            "sandboxes_exec",
            "sandboxes_list",
            "sandboxes_show",
            "sessions_delete",
            "sessions_list",
            "sessions_messages",
            "sessions_send",
            "sessions_show",
            "tasks_cancel",
            "tasks_events",
            "tasks_list",
            "tasks_of_bot",
            "tasks_show",
            "tasks_start",
            "tasks_steps",
            "tools_call",
            "tools_check",
            "tools_list",
        ],
    ),
    // The key of a bot reaches the credentials of the users of its resources.
    (
        &[Root, Admin, Bot],
        &["credentials_credentials_of_users", "credentials_delete", "credentials_save", "oauth_start"],
    ),
    (
        &[Root, Admin, Operator],
        &[
            "audit_export",
            "audit_list",
            "audit_show",
            "audit_stats",
            "audit_follow",
            "bindings_list",
            "bindings_preview",
            "bindings_show",
            "bots_access",
            "bots_create",
            "bots_delete",
            "bots_list",
            "bots_show",
            "bots_update",
            "bots_usage",
            "budgets_list",
            "budgets_usage",
            "events_emit",
            "events_list",
            "events_list_deliveries",
            "events_retry",
            "events_show",
            "health_metrics",
            "oauth_list",
            "overview_search",
            "plugins_icon",
            "plugins_list",
            "plugins_show",
            "resource_types_list",
            "resource_types_show",
            "resources_create",
            // An operator deletes a resource without a credential.
            "resources_delete",
            "resources_discover",
            "resources_health",
            "resources_list",
            "resources_list_tools",
            "resources_show",
            "resources_update",
            "roles_list",
            "roles_show",
            "runs_pause",
            "runs_resolve",
            "runs_resume",
            "runs_retry",
            "sandboxes_commands",
            "sandboxes_download",
            "sandboxes_file",
            "schedules_create",
            "schedules_delete",
            "schedules_fire",
            "schedules_list",
            "schedules_preview",
            "schedules_show",
            "schedules_update",
            "subscriptions_create",
            "subscriptions_delete",
            "subscriptions_list",
            "subscriptions_show",
            "subscriptions_update",
            "wakes_list",
            "workflows_create",
            "workflows_create_trigger",
            "workflows_delete",
            "workflows_delete_trigger",
            "workflows_list",
            "workflows_show",
            "workflows_triggers",
            "workflows_update",
            "workflows_update_trigger",
            "workflows_validate",
            "workflows_version",
            "workflows_versions",
        ],
    ),
    (
        &[Root, Admin],
        &[
            "audit_changes",
            "bindings_create",
            "bindings_delete",
            "bindings_update",
            "budgets_set",
            "configuration_export",
            "configuration_import",
            "credentials_confirm",
            "credentials_test",
            "keys_create",
            "keys_delete",
            "keys_list",
            "keys_rotate",
            "oauth_confirm_oauth",
            "oauth_create",
            "oauth_delete",
            "oauth_device",
            "oauth_discover_oauth",
            "oauth_refresh",
            "oauth_show_device",
            "oauth_update",
            "resources_approve",
            "resources_reject",
            "roles_create",
            "roles_delete",
            "roles_update",
            "subscriptions_confirm",
            "webhooks_create",
            "webhooks_delete",
            "webhooks_list",
            "webhooks_rotate",
            "webhooks_show",
            "webhooks_update",
        ],
    ),
    (
        &[Root],
        &[
            "audit_verify",
            "demo_remove",
            "demo_show",
            "demo_step",
            "platform_call",
            "plugins_approve",
            "plugins_diff",
            "plugins_install",
            "plugins_reload",
            "plugins_uninstall",
            "registry_list",
            "trust_create",
            "trust_delete",
            "trust_list",
            "workspaces_create",
            "workspaces_delete",
            "workspaces_list",
            "workspaces_show",
            "workspaces_update",
        ],
    ),
    (&[Agent], &["agents_open"]),
];

/// Returns the kinds of keys that may use an operation that needs a key.
fn kinds(operation: &str) -> Option<&'static [KeyKind]> {
    TABLE.iter().find(|(_, operations)| operations.contains(&operation)).map(|(kinds, _)| *kinds)
}

/// Adds to the description of each operation which keys may use it. The ids of the operations must be final.
pub(crate) fn describe(openapi: &mut OpenApi) {
    for item in openapi.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let Some(kinds) = operation.operation_id.as_deref().and_then(kinds) else { continue };
            let statement = statement(kinds);
            operation.description = Some(match operation.description.take().filter(|text| !text.is_empty()) {
                Some(text) => format!("{text}\n\n{statement}"),
                None => statement,
            });
        }
    }
}

fn statement(kinds: &[KeyKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    match names.as_slice() {
        names if names.len() == KeyKind::ALL.len() => "Every key can use this operation.".to_owned(),
        [.., last] if names.len() > 1 => {
            format!("Keys: {} and {last}.", names[..names.len() - 1].join(", "))
        }
        names => format!("Keys: {}.", names.concat()),
    }
}

/// Returns the ids of the operations that keys of this kind may use, in alphabetical order. They include the operations
/// that need no key; `public_docs` is the setting that adds [`DOCUMENTS`] to them.
pub(crate) fn may(kind: KeyKind, public_docs: bool) -> Vec<String> {
    static OPERATIONS: OnceLock<Vec<(String, bool)>> = OnceLock::new();
    let operations = OPERATIONS.get_or_init(|| operations(&docs::document()));
    let is_open = |id: &str, needs_key: bool| !needs_key || public_docs && DOCUMENTS.contains(&id);
    let may = |id: &str, needs_key: bool| is_open(id, needs_key) || kinds(id).is_some_and(|it| it.contains(&kind));
    let ids = operations.iter().filter(|(id, needs_key)| may(id, *needs_key));
    ids.map(|(id, _)| id.clone()).collect()
}

/// Returns the id of each operation of the description, and whether it needs a key. The ids are sorted.
fn operations(openapi: &OpenApi) -> Vec<(String, bool)> {
    let mut operations = Vec::new();
    for item in openapi.paths.paths.values() {
        for operation in [&item.get, &item.post, &item.put, &item.patch, &item.delete].into_iter().flatten() {
            let needs_key = operation.security.as_ref().is_none_or(|open| !open.is_empty());
            operations.extend(operation.operation_id.clone().map(|id| (id, needs_key)));
        }
    }
    operations.sort();
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_operation_that_needs_a_key_once() {
        let operations = operations(&docs::document());
        let mut described: Vec<&str> =
            operations.iter().filter(|(_, needs_key)| *needs_key).map(|(id, _)| id.as_str()).collect();
        described.sort_unstable();
        let mut listed: Vec<&str> = TABLE.iter().flat_map(|(_, operations)| *operations).copied().collect();
        listed.sort_unstable();
        assert_eq!(described, listed);
    }

    #[test]
    fn the_statement_names_the_kinds() {
        assert_eq!(statement(&[Root]), "Keys: root.");
        assert_eq!(statement(&[Root, Admin, Operator]), "Keys: root, admin and operator.");
        assert_eq!(statement(KeyKind::ALL), "Every key can use this operation.");
    }

    #[test]
    fn public_documents_are_open_to_every_key() {
        for document in DOCUMENTS {
            assert!(!may(Agent, false).iter().any(|id| id == document), "{document}");
            assert!(may(Agent, true).iter().any(|id| id == document), "{document}");
        }
        assert!(may(Agent, false).iter().any(|id| id == "health_live"), "a route without a key");
    }
}
