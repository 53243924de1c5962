//! Tests that a snapshot with applied changes equals a snapshot that is assembled from all rows.

use std::fmt::{Debug, Write as _};

use monstrum_types::CredentialId;
use proptest::prelude::*;

use super::*;

/// A change of the rows: the kind of change, and two numbers that select the rows.
type Step = (u8, usize, usize);

impl World {
    fn take(&mut self, step: Step, number: usize) {
        if step.0 % 16 < 9 {
            self.change_bots_and_resources(step, number);
        } else {
            self.change_rules_and_keys(step, number);
        }
    }

    fn change_bots_and_resources(&mut self, (what, first, second): Step, number: usize) {
        let workspaces: Vec<WorkspaceId> = self.rows.workspaces.iter().map(|row| row.id).collect();
        let workspace = workspaces[first % workspaces.len()];
        let rows = &mut self.rows;
        let (bot_at, resource) = (first % 5, second % 5);
        match what % 16 {
            0 => {
                let mut added = bot(workspace, number);
                added.use_agent_sandbox = second.is_multiple_of(2);
                rows.bots.push(added);
            }
            1 if bot_at < rows.bots.len() => {
                let gone = rows.bots.remove(bot_at).id;
                rows.bindings.retain(|binding| binding.bot_id != gone);
            }
            // Two bots swap their names.
            2 if rows.bots.len() > 1 => {
                let (one, other) = (first % rows.bots.len(), second % rows.bots.len());
                let names = (rows.bots[one].name.clone(), rows.bots[other].name.clone());
                (rows.bots[other].name, rows.bots[one].name) = names;
            }
            3 if bot_at < rows.bots.len() => {
                let bot = &mut rows.bots[bot_at];
                bot.use_agent_sandbox = !bot.use_agent_sandbox;
                bot.gates = gates(second);
            }
            // A third of the resources have a type that no plugin serves.
            4 => {
                let resource_type = if second.is_multiple_of(3) { "github" } else { built_in::BOT };
                rows.resources.push(ResourceRow {
                    id: ResourceId::new(),
                    workspace_id: workspace,
                    resource_type: resource_type.parse().unwrap(),
                    name: format!("resource {number}"),
                    config: json!({"bot": BotId::new()}),
                    network: json!({}),
                    labels: None,
                    created_at: NOW,
                    updated_at: NOW,
                });
            }
            5 if resource < rows.resources.len() => {
                let gone = rows.resources.remove(resource).id;
                rows.bindings.retain(|binding| binding.resource_id != gone);
                rows.credentials.retain(|credential| credential.resource_id != gone);
            }
            // The new configuration is valid or invalid.
            6 if resource < rows.resources.len() => {
                let config = if first.is_multiple_of(2) { json!({"bot": BotId::new()}) } else { json!({"bot": 5}) };
                rows.resources[resource].config = config;
            }
            7 if resource < rows.resources.len() => {
                let row = &rows.resources[resource];
                let credential = credential(row, second);
                let place = |row: &CredentialRow| (row.resource_id, row.subject_id.clone());
                rows.credentials.retain(|old| place(old) != place(&credential));
                rows.credentials.push(credential);
            }
            8 if !rows.credentials.is_empty() => {
                rows.credentials.remove(first % rows.credentials.len());
            }
            _ => {}
        }
    }

    fn change_rules_and_keys(&mut self, (what, first, second): Step, number: usize) {
        let workspaces: Vec<WorkspaceId> = self.rows.workspaces.iter().map(|row| row.id).collect();
        let workspace = workspaces[first % workspaces.len()];
        let rows = &mut self.rows;
        let (role, bot_at, resource) = (first % 7, first % 5, second % 5);
        match what % 16 {
            9 => rows.roles.push(RoleRow {
                id: RoleId::new(),
                workspace_id: workspace,
                name: format!("role {number}"),
                allowed_operations: None,
                allowed_tools: Some(json!(["bot_*"])),
                scope_constraints: json!({"tools": [format!("a{number}*")]}),
                gates: None,
                created_at: NOW,
                updated_at: NOW,
            }),
            10 if role < rows.roles.len() => {
                let lists = if second.is_multiple_of(2) { json!("*") } else { json!([format!("b{number}*")]) };
                rows.roles[role].allowed_tools = Some(lists);
                rows.roles[role].gates = gates(second / 2);
            }
            11 if role < rows.roles.len() => {
                let gone = rows.roles[role].id;
                if rows.bindings.iter().all(|binding| binding.role_id != Some(gone)) {
                    rows.roles.remove(role);
                }
            }
            12 if bot_at < rows.bots.len() && resource < rows.resources.len() => {
                let role = rows.roles.get(role).map(|role| role.id);
                let mut added = binding_row(&rows.bots[bot_at], &rows.resources[resource], RoleId::new());
                added.role_id = role;
                rows.bindings.push(added);
            }
            13 if !rows.bindings.is_empty() => {
                rows.bindings.remove(first % rows.bindings.len());
            }
            14 if !rows.bindings.is_empty() => {
                let at = first % rows.bindings.len();
                let scopes = if second.is_multiple_of(3) { json!(["no map"]) } else { json!({"tools": ["c*"]}) };
                rows.bindings[at].scope_constraints = scopes;
                rows.bindings[at].gates = gates(second / 3);
            }
            15 => match rows.keys.get_mut(first % 3) {
                Some(key) if second.is_multiple_of(2) => key.hash = hex::encode([number as u8; 32]),
                Some(_) => drop(rows.keys.remove(first % 3)),
                None => rows.keys.push(KeyRow {
                    id: KeyId::new(),
                    workspace_id: Some(workspace),
                    name: "key".to_owned(),
                    kind: KeyKind::Admin,
                    bot_id: None,
                    resource_id: None,
                    prefix: "mk_abcde".to_owned(),
                    hash: hex::encode([number as u8; 32]),
                    created_at: NOW,
                    last_used_at: None,
                }),
            },
            _ => {}
        }
    }
}

/// Returns no gates, gates, or gates that cannot be read.
fn gates(number: usize) -> Option<serde_json::Value> {
    match number % 4 {
        0 | 1 => None,
        2 => Some(json!([{"action": "ask", "when": {"tools": [format!("g{number}?")]}}])),
        _ => Some(json!([{"action": "later"}])),
    }
}

/// Returns the shared credential, or the credential of one of two users.
fn credential(resource: &ResourceRow, number: usize) -> CredentialRow {
    let (kind, subject) = [("shared", ""), ("user", "1:a1:7"), ("user", "1:b1:7")][number % 3];
    CredentialRow {
        id: CredentialId::new(),
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        subject_kind: kind.to_owned(),
        subject_id: subject.to_owned(),
        auth_method: "token".to_owned(),
        sealed: "sealed".to_owned(),
        key_version: 1,
        given_for: json!({}),
        status: "ready".to_owned(),
        expires_at: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn diff<Id: Ord + Copy, R: PartialEq + Clone>(before: &[R], after: &[R], id: impl Fn(&R) -> Id) -> Changed<Id, R> {
    let gone = before.iter().filter(|old| after.iter().all(|new| id(new) != id(old)));
    let new = after.iter().filter(|new| !before.contains(new));
    gone.map(|row| (id(row), None)).chain(new.map(|row| (id(row), Some(row.clone())))).collect()
}

/// Returns the differences between two sets of rows as the changes that the store would read.
fn changes(before: &PolicyRows, after: &PolicyRows) -> PolicyChanges {
    let resources = diff(&before.resources, &after.resources, |row| row.id);
    let mut credentials = diff(&before.credentials, &after.credentials, |row| row.id);
    let of_changed = after.credentials.iter().filter(|row| resources.contains_key(&row.resource_id));
    credentials.extend(of_changed.map(|row| (row.id, Some(row.clone()))));
    PolicyChanges {
        keys: diff(&before.keys, &after.keys, |row| row.id),
        roles: diff(&before.roles, &after.roles, |row| row.id),
        bots: diff(&before.bots, &after.bots, |row| row.id),
        bindings: diff(&before.bindings, &after.bindings, |row| row.id),
        resources,
        credentials,
        ..PolicyChanges::default()
    }
}

/// Returns the whole content of a snapshot as sorted text.
fn described(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut list = |name: &str, items: Vec<String>| {
        let mut items = items;
        items.sort();
        writeln!(text, "{name}:\n  {}", items.join("\n  ")).unwrap();
    };
    let debug = |value: &dyn Debug| format!("{value:?}");
    list(
        "keys",
        snapshot.keys.iter().map(|(hash, key)| format!("{hash:?} {:?} {:?}", key.id, key.workspace)).collect(),
    );
    list("hashes", snapshot.key_hashes.iter().map(|pair| debug(&pair)).collect());
    list("names", snapshot.bots_by_name.iter().map(|pair| debug(&pair)).collect());
    list("roles", snapshot.roles.values().map(|role| format!("{:?} {}", role.row, role.rules.is_some())).collect());
    let resource = |resource: &Arc<Resource>| {
        format!("{:?} {:?}", resource.row, resource.credential.as_ref().map(|held| &held.row))
    };
    list("resources", snapshot.resources.values().map(resource).collect());
    list("credentials", snapshot.credential_owners.iter().map(|pair| debug(&pair)).collect());
    list("user credentials", snapshot.user_credentials.rows().map(|row| debug(row)).collect());
    let bot = |bot: &Arc<Bot>| {
        let bound = bot.bindings.iter().map(|binding| {
            let role = binding.role.as_ref().map(|role| &role.row);
            format!("\n    {:?} {role:?} {}", binding.row.unpacked(), resource(&binding.resource))
        });
        format!("{:?} {:?}{}\n    dormant {:?}", bot.row, bot.gates, bound.collect::<String>(), bot.dormant)
    };
    list("bots", snapshot.bots.values().map(bot).collect());
    let bots = |snapshot: &Snapshot| {
        let mut found = Vec::new();
        for bot in snapshot.bots.values() {
            for row in bot.rows() {
                found.push(format!("{:?} {:?}", row.id, snapshot.bound.bot_of(row.id)));
                let mut of_resource: Vec<&BotId> = snapshot.bound.of_resource(row.resource_id).collect();
                of_resource.sort();
                found.push(format!("{:?} {of_resource:?}", row.resource_id));
                let mut of_role: Vec<&BotId> =
                    row.role_id.iter().flat_map(|role| snapshot.bound.of_role(*role)).collect();
                of_role.sort();
                found.push(format!("{:?} {of_role:?}", row.role_id));
            }
        }
        found
    };
    list("bound", bots(snapshot));
    list("counts", vec![snapshot.bound.counts(), snapshot.sharing.counts()]);
    let workspaces = snapshot.workspaces.values();
    list("patterns", workspaces.map(|id| format!("{id} {}", snapshot.pattern_bytes(*id))).collect());
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changes_give_the_snapshot_of_all_rows(
        steps in proptest::collection::vec(proptest::collection::vec((any::<u8>(), 0_usize..60, 0_usize..60), 1..4), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut world = runtime.block_on(World::new());
        world.tenant("a", &["one".to_owned()], 2);
        let mut current = world.snapshot(&Snapshot::default());
        for (number, taken) in steps.into_iter().enumerate() {
            let before = world.rows.clone();
            for (place, step) in taken.into_iter().enumerate() {
                // The first bots use the numbers below 10.
                world.take(step, 10 + number * 4 + place);
            }
            current = changed(changes(&before, &world.rows), imbl::HashSet::new(), &world.refresher, &current);
            prop_assert_eq!(described(&current), described(&world.snapshot(&Snapshot::default())));
        }
    }
}
