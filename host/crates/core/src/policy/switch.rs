//! The binding to the sandbox that a bot's switch `use_agent_sandbox` grants. This binding has no row in the database.
//! Lists, checks, delegation, revocation and the audit treat it like any other binding.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use monstrum_egress::{Network, Scope};
use monstrum_guardian::{BindingRules, Delegation, DelegationRules, DimensionModes, Grant, GrantSource, PatternList};
use monstrum_store::{BindingRow, BotRow, ResourceRow};
use monstrum_types::{BindingId, ResourceId};
use serde_json::{Map, json};
use sha2::{Digest as _, Sha256};

use crate::plugins::{Plugin, built_in};
use crate::policy::{Binding, PackedBinding, Resource, ServedTools};

/// Returns the binding that the switch of a bot grants, or `None` if the switch is off. `plugin` is the built-in
/// plugin. Reuses an unchanged binding of `known`.
pub(super) fn binding(
    bot: &BotRow,
    plugin: &Arc<Plugin>,
    known: &HashMap<BindingId, &Arc<Binding>>,
) -> Option<Arc<Binding>> {
    if !bot.use_agent_sandbox {
        return None;
    }
    let row = row(bot);
    let is_same = |known: &&Arc<Binding>| known.row.is_of(&row) && Arc::ptr_eq(&known.resource.plugin, plugin);
    if let Some(known) = known.get(&row.id).copied().filter(is_same) {
        return Some(Arc::clone(known));
    }
    let everything = Grant { allowed_tools: Some(vec!["*".to_owned()]), ..Grant::default() };
    Some(Arc::new(Binding {
        rules: BindingRules::new(&[(GrantSource::Permissions, everything)], &[], &DimensionModes::default()),
        allow_calls: PatternList::new(Vec::<String>::new()),
        link: DelegationRules::shared(&Delegation::default()),
        // The compiled pattern `*` needs no memory.
        pattern_bytes: 0,
        resource: Arc::new(resource(bot, row.resource_id, plugin)),
        role: None,
        row: PackedBinding::of(&row),
    }))
}

fn row(bot: &BotRow) -> BindingRow {
    BindingRow {
        id: binding_id(bot),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        resource_id: derived(bot, "resource").parse::<ResourceId>().expect("a UUID is an id"),
        role_id: None,
        permissions: Some(json!({"allowed_tools": ["*"]})),
        scope_constraints: json!({}),
        delegate: None,
        gates: None,
        allow_calls: json!([]),
        allow_subscribe: false,
        limits: None,
        calls_per_minute: None,
        enabled: true,
        expires_at: None,
        created_at: bot.created_at,
        updated_at: bot.updated_at,
    }
}

fn resource(bot: &BotRow, id: ResourceId, plugin: &Arc<Plugin>) -> Resource {
    let row = ResourceRow {
        id,
        workspace_id: bot.workspace_id,
        resource_type: plugin.manifest.resource_type.id.clone(),
        name: built_in::SANDBOX.to_owned(),
        config: json!({}),
        network: json!({}),
        labels: None,
        created_at: bot.created_at,
        updated_at: bot.updated_at,
    };
    let scope = Scope {
        api_base: None,
        egress: Vec::new(),
        inject: Vec::new(),
        audience: Vec::new(),
        follow_redirects: 0,
        network: Network::default(),
    };
    Resource {
        row,
        plugin: Arc::clone(plugin),
        legacy_plugin: None,
        config: Map::new(),
        config_text: "{}".to_owned(),
        scope,
        own_dimensions: None,
        served_tools: ServedTools::default(),
        tools: OnceLock::from(Vec::new()),
        credential: None,
        is_stored: false,
        credential_source: OnceLock::new(),
    }
}

fn binding_id(bot: &BotRow) -> BindingId {
    derived(bot, "binding").parse().expect("a UUID is an id")
}

/// Derives an id that is the same in every snapshot and on every host. The derived id has UUID version 8. It cannot
/// equal the id of a row, because the ids of rows have UUID version 7.
fn derived(bot: &BotRow, what: &str) -> String {
    let hash = Sha256::digest(format!("{what} of the sandbox of bot {}", bot.id));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().hyphenated().to_string()
}

#[cfg(test)]
mod tests {
    use monstrum_types::{BotId, UtcMillis, WorkspaceId};

    use super::*;

    #[test]
    fn ids_are_stable_and_differ_by_bot_and_kind() {
        let bot = |id: &str| BotRow {
            id: id.parse::<BotId>().unwrap(),
            workspace_id: WorkspaceId::new(),
            name: "b".to_owned(),
            description: String::new(),
            system_prompt: String::new(),
            model: None,
            use_agent_sandbox: true,
            monthly_token_budget: None,
            gates: None,
            mcp_subjects: None,
            model_fallbacks: None,
            task_limits: None,
            session_idle_s: None,
            client_tools: None,
            created_at: UtcMillis(0),
            updated_at: UtcMillis(0),
        };
        let (a, b) = (bot("01939d2c-7f6a-7000-8000-000000000001"), bot("01939d2c-7f6a-7000-8000-000000000002"));
        assert_eq!(derived(&a, "binding"), derived(&a.clone(), "binding"));
        assert_ne!(derived(&a, "binding"), derived(&b, "binding"));
        assert_ne!(derived(&a, "binding"), derived(&a, "resource"));
        assert_eq!(derived(&a, "binding").as_bytes()[14], b'8', "UUID version 8, which no row has");
    }
}
