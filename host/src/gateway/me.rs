//! `/api/me`: the key of the request; `/api/console/tickets`: links that log a browser in to the console.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::me::{Me, NewTicket, Ticket};
use monstrum_core::operations::me as operations;
use monstrum_types::KeyKind;
use serde_json::Value;

use crate::gateway::http::answer::{Answer, Created};
use crate::gateway::http::extract::{AnyKey, OptionalInput};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{ConsoleUrl, Host};

/// The operations of root keys.
const ROOT: &[&str] = &[
    "audit_verify",
    "platform_call",
    "plugins_approve",
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
];

/// The operations of root and admin keys.
const ADMIN: &[&str] = &[
    "audit_changes",
    "bindings_create",
    "bindings_delete",
    "bindings_update",
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
    "resources_delete",
    "resources_reject",
    "roles_create",
    "roles_delete",
    "roles_update",
];

/// The operations of root and admin keys, and of bot keys for the users of their bots.
const FOR_USERS: &[&str] =
    &["credentials_credentials_of_users", "credentials_delete", "credentials_save", "oauth_start"];

/// The operations of all keys except approver and agent keys.
const GENERAL: &[&str] = &[
    "bots_prompt",
    "description_manifest_schema",
    "description_openapi",
    "description_page",
    "mcp_listen",
    "mcp_post",
    "sandboxes_delete",
    "sandboxes_delete_app",
    "sandboxes_delete_chat",
    "sandboxes_exec",
    "sandboxes_list",
    "sandboxes_show",
    "tools_call",
    "tools_check",
    "tools_list",
];

/// The operations without a key, and the one that tells of the key.
const ALL: &[&str] = &[
    "description_welcome",
    "health_live",
    "health_ready",
    "mcp_metadata",
    "keys_me",
    "oauth_begin",
    "oauth_callback",
    "oauth_oauth_client",
    "oauth_oauth_connect",
    "oauth_oauth_press",
    "oauth_oauth_signed_in",
];

/// Returns whether keys of a kind may call an operation. An operation that is in no list is for root, admin and operator
/// keys.
fn may(kind: KeyKind, operation: &str) -> bool {
    use KeyKind::{Admin, Agent, Approver, Bot, Operator, Root};
    let is_in = |list: &[&str]| list.contains(&operation);
    match kind {
        _ if is_in(ALL) => true,
        Agent => operation == "agents_open",
        _ if operation == "agents_open" => false,
        _ if matches!(operation, "approvals_list" | "approvals_show") => true,
        _ if matches!(operation, "approvals_decide" | "keys_ticket") => kind != Bot,
        Root => true,
        Admin => !is_in(ROOT),
        Operator => !is_in(ROOT) && !is_in(ADMIN) && !is_in(FOR_USERS),
        Bot => is_in(GENERAL) || is_in(FOR_USERS),
        Approver => false,
    }
}

/// The ids of all operations.
static OPERATIONS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(&super::description()).unwrap_or_default();
    let items = document["paths"].as_object().into_iter().flatten().filter_map(|(_, item)| item.as_object());
    let operations = items.flat_map(|item| item.values());
    operations.filter_map(|operation| operation["operationId"].as_str()).map(str::to_owned).collect()
});

/// Shows the API key of the request, and the operations that keys of its kind may call
#[utoipa::path(get, path = "/api/me", tag = "keys", responses((status = 200, body = Me)))]
pub(super) async fn me(app: Host, AnyKey(caller): AnyKey) -> Answer<Me> {
    let operations = OPERATIONS.iter().filter(|operation| may(caller.kind, operation)).cloned().collect();
    Ok(Json(operations::show(&app, &caller, operations).await?))
}

/// Makes a link that logs a browser in to the console, once, with the key of the request
#[utoipa::path(post, path = "/api/console/tickets", tag = "keys",
    request_body = NewTicket, responses((status = 201, body = Ticket)))]
pub(super) async fn ticket(
    app: Host,
    AnyKey(caller): AnyKey,
    State(ConsoleUrl(url)): State<ConsoleUrl>,
    OptionalInput(input): OptionalInput<NewTicket>,
) -> Created<Ticket> {
    let url = url.ok_or_else(|| Problem::not_found("console, because the server runs with --console off"))?;
    Ok((StatusCode::CREATED, Json(operations::ticket(&app, &caller, &input, &url).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_name_operations_that_exist() {
        for operation in [ROOT, ADMIN, FOR_USERS, GENERAL, ALL].concat() {
            assert!(OPERATIONS.contains(operation), "{operation}");
        }
    }
}
