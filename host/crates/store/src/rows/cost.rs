//! A test that the cost of a change does not depend on the number of rows in its workspace.

use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use monstrum_types::{BindingId, BotId, ResourceId, RoleId, UtcMillis, WorkspaceId};
use serde_json::json;
use sha2::Sha256;

use super::SealsRows;
use crate::db::statement_counts;
use crate::{BindingRow, BotRow, InstanceKeyRow, ResourceRow, RoleRow, Store, StoreOptions};

const NOW: UtcMillis = UtcMillis(1_795_000_000_000);

/// A row key that stores seals unencrypted.
pub(super) struct PlainKey;

impl SealsRows for PlainKey {
    fn version(&self) -> u32 {
        1
    }

    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(label.as_bytes()).unwrap();
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    fn seal(&self, plaintext: &[u8], _: &str, _: i64) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(hex::encode(plaintext))
    }

    fn unseal(&self, sealed: &str, _: &str, _: i64) -> Option<Vec<u8>> {
        hex::decode(sealed).ok()
    }
}

fn binding(workspace: WorkspaceId, bot: BotId, resource: ResourceId) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: workspace,
        bot_id: bot,
        resource_id: resource,
        role_id: None,
        permissions: None,
        scope_constraints: json!({}),
        delegate: None,
        gates: None,
        allow_calls: json!([]),
        allow_subscribe: false,
        limits: None,
        calls_per_minute: None,
        enabled: true,
        expires_at: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

/// Returns a bot with the defaults of all settings.
pub(super) fn bot(workspace_id: WorkspaceId, name: String) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id,
        name,
        description: String::new(),
        system_prompt: String::new(),
        model: None,
        use_agent_sandbox: false,
        monthly_token_budget: None,
        gates: None,
        mcp_subjects: None,
        model_fallbacks: None,
        task_limits: None,
        session_idle_s: None,
        client_tools: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

/// Inserts a bot that is bound to `count` resources.
async fn bound(store: &Store, workspace: WorkspaceId, count: usize) -> Vec<BindingRow> {
    let bot = bot(workspace, format!("bot {count}"));
    store.insert_bot(&bot).await.unwrap();
    let mut bindings = Vec::new();
    for number in 0..count {
        let resource = ResourceRow {
            id: ResourceId::new(),
            workspace_id: workspace,
            resource_type: "github".parse().unwrap(),
            name: format!("{count} {number}"),
            config: json!({}),
            network: json!({}),
            labels: None,
            created_at: NOW,
            updated_at: NOW,
        };
        store.insert_resource(&resource).await.unwrap();
        bindings.push(binding(workspace, bot.id, resource.id));
    }
    store.insert_bindings(workspace, &bindings).await.unwrap();
    bindings
}

/// Returns the cost of an update, a deletion and two inserts, each as the number of statements and of rows read.
async fn costs(store: &Store, workspace: WorkspaceId, bindings: &[BindingRow]) -> Vec<(usize, usize)> {
    let mut costs = Vec::new();
    let mut note = || costs.push(statement_counts::take());
    let [first, second, ..] = bindings else { panic!("there are at least two bindings") };
    statement_counts::take();
    let changed = BindingRow { enabled: false, updated_at: NOW.plus_ms(1), ..first.clone() };
    assert!(store.update_binding(&changed, NOW).await.unwrap());
    note();
    assert!(store.delete_binding(workspace, second.bot_id, second.id).await.unwrap());
    note();
    store.insert_binding(second).await.unwrap();
    note();
    let role = RoleRow {
        id: RoleId::new(),
        workspace_id: workspace,
        name: format!("role {}", bindings.len()),
        allowed_operations: None,
        allowed_tools: None,
        scope_constraints: json!({}),
        gates: None,
        created_at: NOW,
        updated_at: NOW,
    };
    store.insert_role(&role).await.unwrap();
    note();
    costs
}

#[tokio::test]
async fn the_cost_of_a_change_does_not_depend_on_the_rows_of_its_workspace() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
    let store = store.with_row_key(Arc::new(PlainKey));
    let key = InstanceKeyRow { name: "rows".to_owned(), version: 1, sealed: "sealed".to_owned(), created_at: NOW };
    assert!(store.initialize(&key, NOW).await.unwrap());
    let workspace = store.workspace_named(crate::DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
    let few = bound(&store, workspace, 2).await;
    let with_few = costs(&store, workspace, &few).await;
    let many = bound(&store, workspace, 300).await;
    let with_many = costs(&store, workspace, &many).await;
    assert_eq!(with_few, with_many);
    // An update reads the seal and the old row. It writes the row, the seal and the name of the changed row, and raises
    // the generation with a statement that also returns the new value.
    assert_eq!(with_few[0], (6, 3), "statements and rows of an update");
    assert!(store.verify_rows().await.unwrap().problems().is_empty());
}
