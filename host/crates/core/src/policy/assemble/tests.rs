use monstrum_egress::{Egress, EgressOptions};
use monstrum_guardian::{Decision, Question, Subject, decide};
use monstrum_store::{KeyKind, StoreOptions, WorkspaceRow};
use monstrum_types::{Labels, SystemClock, UtcMillis, WorkspaceId};
use monstrum_vault::{MasterKeys, Vault};
use serde_json::json;

use super::*;
use crate::policy::row_seals;

mod equivalence;

const NOW: UtcMillis = UtcMillis(1_700_000_000_000);

/// The rows, the plugins and the refresher from which a snapshot is assembled.
struct World {
    rows: PolicyRows,
    serving: Vec<Arc<Plugin>>,
    refresher: Arc<Refresher>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let vault = Arc::new(Vault::new(MasterKeys::create(&folder.path().join("master.key")).unwrap()));
        let rows = store.snapshot().await.unwrap();
        let refresher = Refresher::new(store, vault, Egress::new(EgressOptions::default()), Arc::new(SystemClock));
        World { rows, serving: built_in::all(), refresher: Arc::new(refresher), _folder: folder }
    }

    fn snapshot(&self, before: &Snapshot) -> Snapshot {
        super::snapshot(self.rows.clone(), imbl::HashSet::new(), &self.serving, &self.refresher, before)
    }

    /// Adds a workspace that has a role with these patterns, and `bots` bots, each with a binding that has the role.
    fn tenant(&mut self, name: &str, patterns: &[String], bots: usize) -> (WorkspaceId, RoleId) {
        let (id, role) = (WorkspaceId::new(), RoleId::new());
        let (created_at, updated_at) = (NOW, NOW);
        self.rows.workspaces.push(WorkspaceRow { id, name: name.to_owned(), sandbox: None, created_at, updated_at });
        self.rows.roles.push(RoleRow {
            id: role,
            workspace_id: id,
            name: "role".to_owned(),
            allowed_operations: None,
            allowed_tools: Some(json!(["bot_*"])),
            scope_constraints: json!({"tools": patterns}),
            gates: None,
            created_at,
            updated_at,
        });
        for number in 0..bots {
            let bot = bot(id, number);
            let resource = ResourceRow {
                id: ResourceId::new(),
                workspace_id: id,
                resource_type: built_in::BOT.parse().unwrap(),
                name: format!("bot {number}"),
                config: json!({"bot": bot.id}),
                network: json!({}),
                labels: None,
                created_at,
                updated_at,
            };
            self.rows.bindings.push(binding_row(&bot, &resource, role));
            self.rows.resources.push(resource);
            self.rows.bots.push(bot);
        }
        (id, role)
    }
}

fn bot(workspace_id: WorkspaceId, number: usize) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id,
        name: format!("bot {number}"),
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
        created_at: NOW,
        updated_at: NOW,
    }
}

fn binding_row(bot: &BotRow, resource: &ResourceRow, role: RoleId) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        resource_id: resource.id,
        role_id: Some(role),
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

/// Returns all bindings of the workspace by id, including the bindings that switches grant.
fn bindings(snapshot: &Snapshot, workspace: WorkspaceId) -> HashMap<BindingId, Arc<Binding>> {
    let bots = snapshot.bots.values().filter(|bot| bot.row.workspace_id == workspace);
    bots.flat_map(|bot| &bot.bindings).map(|binding| (binding.row.id, Arc::clone(binding))).collect()
}

fn kept(before: &Snapshot, after: &Snapshot, workspace: WorkspaceId) -> usize {
    let before = bindings(before, workspace);
    let after = bindings(after, workspace);
    after.iter().filter(|(id, binding)| before.get(id).is_some_and(|known| Arc::ptr_eq(known, binding))).count()
}

fn ask(snapshot: &Snapshot, binding: &Binding, tool: &str) -> Decision {
    let (_, called) = snapshot.tool(&built_in::CALL_TOOL.parse().unwrap()).unwrap();
    let params = json!({"tool": tool});
    let bot_gates = &snapshot.bots[&binding.row.bot_id].gates;
    let subject =
        Subject { tool: &called.rules, binding: &binding.rules, delegation: &[], bot_gates, labels: &Labels::ALL };
    decide(&subject, Question::Call(params.as_object().unwrap()))
}

fn of_role(snapshot: &Snapshot, workspace: WorkspaceId, role: RoleId) -> Vec<Arc<Binding>> {
    bindings(snapshot, workspace).into_values().filter(|binding| binding.row.role_id == Some(role)).collect()
}

/// Returns patterns whose compiled size is close to the maximum.
fn costly() -> Vec<String> {
    (0..200).map(|number| format!("*{}{number}*", "[xy]".repeat(680))).collect()
}

#[tokio::test]
async fn a_role_is_compiled_once_for_all_its_bindings_when_it_is_first_used() {
    let mut world = World::new().await;
    let mut patterns = costly();
    patterns.push("allowed".to_owned());
    let (workspace, role) = world.tenant("a", &patterns, 11);
    let snapshot = world.snapshot(&Snapshot::default());
    let shared = Arc::clone(&snapshot.roles[&role]);
    assert!(!shared.rules.as_ref().unwrap().is_compiled(), "a change compiles nothing");
    let bound = of_role(&snapshot, workspace, role);
    assert_eq!(bound.len(), 11);
    for binding in &bound {
        assert!(Arc::ptr_eq(binding.role.as_ref().unwrap(), &shared));
        // The bindings share the lists of the role. The role and each binding hold one reference.
        assert_eq!(shared.rules.as_ref().unwrap().references(), 12);
    }
    assert_eq!(ask(&snapshot, &bound[0], "allowed"), Decision::Allow);
    assert!(matches!(ask(&snapshot, &bound[1], "other"), Decision::Deny(_)));
    assert!(shared.rules.as_ref().unwrap().is_compiled());
}

#[tokio::test]
async fn a_change_keeps_unchanged_objects() {
    let mut world = World::new().await;
    let (a, role_a) = world.tenant("a", &["one".to_owned()], 3);
    let (b, _) = world.tenant("b", &["two".to_owned()], 2);
    let first = world.snapshot(&Snapshot::default());
    // Each bot also has the binding that its switch grants.
    assert_eq!((bindings(&first, a).len(), bindings(&first, b).len()), (6, 4));

    let other = bot(b, 7);
    world.rows.bots.push(other);
    let second = world.snapshot(&first);
    assert_eq!((kept(&first, &second, a), kept(&first, &second, b), bindings(&second, b).len()), (6, 4, 5));

    let role = world.rows.roles.iter_mut().find(|row| row.id == role_a).unwrap();
    role.scope_constraints = json!({"tools": ["three"]});
    let third = world.snapshot(&second);
    assert_eq!(
        (kept(&second, &third, a), kept(&second, &third, b)),
        (3, 5),
        "only the bindings of the switches are unchanged"
    );
    let changed = &of_role(&third, a, role_a)[0];
    assert_eq!(ask(&third, changed, "three"), Decision::Allow);
    assert!(matches!(ask(&third, changed, "one"), Decision::Deny(_)));

    let resource = world.rows.resources.iter_mut().find(|row| row.workspace_id == a).unwrap();
    resource.name = "renamed".to_owned();
    let fourth = world.snapshot(&third);
    assert_eq!((kept(&third, &fourth, a), kept(&third, &fourth, b)), (5, 5));
    assert!(Arc::ptr_eq(&third.roles[&role_a], &fourth.roles[&role_a]), "the role is unchanged");
}

/// Checks that a revocation takes effect with the next snapshot, and that its assembly compiles no patterns.
#[tokio::test]
async fn a_revocation_does_not_wait_for_the_patterns_of_others() {
    let mut world = World::new().await;
    let (a, role_a) = world.tenant("a", &["one".to_owned()], 1);
    let key = KeyRow {
        id: KeyId::new(),
        workspace_id: Some(a),
        name: "key".to_owned(),
        kind: KeyKind::Admin,
        bot_id: None,
        resource_id: None,
        prefix: "mk_abcde".to_owned(),
        hash: hex::encode([7; 32]),
        created_at: NOW,
        last_used_at: None,
    };
    world.rows.keys.push(key);
    let first = world.snapshot(&Snapshot::default());
    assert!(first.key(&[7; 32]).is_some() && of_role(&first, a, role_a)[0].is_active(NOW));

    let (_, heavy) = world.tenant("b", &costly(), 11);
    world.rows.keys.clear();
    world.rows.bindings[0].enabled = false;
    let second = world.snapshot(&first);
    assert!(second.key(&[7; 32]).is_none() && !of_role(&second, a, role_a)[0].is_active(NOW));
    assert!(!second.roles[&heavy].rules.as_ref().unwrap().is_compiled());

    world.rows.bindings.remove(0);
    assert!(of_role(&world.snapshot(&second), a, role_a).is_empty());
}

#[tokio::test]
async fn an_unreadable_role_grants_nothing() {
    let mut world = World::new().await;
    let (workspace, role) = world.tenant("a", &["one".to_owned()], 1);
    world.rows.roles[0].allowed_tools = Some(json!("*"));
    let snapshot = world.snapshot(&Snapshot::default());
    assert!(of_role(&snapshot, workspace, role).is_empty());
    let dormant: usize = snapshot.bots.values().map(|bot| bot.dormant.len()).sum();
    assert_eq!(dormant, 1);
}

#[tokio::test]
async fn unreadable_gates_grant_nothing() {
    let mut world = World::new().await;
    let (workspace, role) = world.tenant("a", &["*".to_owned()], 2);
    let first = world.snapshot(&Snapshot::default());
    assert_eq!(bindings(&first, workspace).len(), 4, "each bot has a binding, and one of its switch");
    // A later release may have gates with other fields.
    let unreadable = [json!([{"action": "ask", "later": 1}]), json!({}), json!(null), json!([{"action": "other"}])];
    for gates in unreadable.map(Some) {
        world.rows.roles[0].gates = gates.clone();
        let of_role_gone = world.snapshot(&first);
        assert!(of_role(&of_role_gone, workspace, role).is_empty(), "{gates:?}");
        world.rows.roles[0].gates = None;

        world.rows.bindings[0].gates = gates.clone();
        assert_eq!(of_role(&world.snapshot(&first), workspace, role).len(), 1, "{gates:?}");
        world.rows.bindings[0].gates = None;

        let id = world.rows.bots[0].id;
        world.rows.bots[0].gates = gates.clone();
        let closed = world.snapshot(&first);
        assert!(closed.bots[&id].bindings.is_empty(), "the switch grants nothing either: {gates:?}");
        assert_eq!((closed.bots[&id].dormant.len(), bindings(&closed, workspace).len()), (1, 2));
        let of_before = first.bots[&id].bindings.iter().find(|binding| binding.role.is_some()).unwrap();
        assert!(matches!(ask(&closed, of_before, "x"), Decision::Deny(_)), "{gates:?}");
        world.rows.bots[0].gates = None;
        assert_eq!(bindings(&world.snapshot(&closed), workspace).len(), 4, "readable again");
    }
}

#[tokio::test]
async fn changed_gates_are_in_force_and_unchanged_gates_are_kept() {
    let mut world = World::new().await;
    let (workspace, role) = world.tenant("a", &["*".to_owned()], 1);
    let ask_gate = Some(json!([{"action": "ask", "operations": ["bot.call"]}]));
    let mut before = world.snapshot(&Snapshot::default());
    let mut asks = |world: &World| {
        let next = world.snapshot(&before);
        let asks = matches!(ask(&next, &of_role(&next, workspace, role)[0], "x"), Decision::Ask(_));
        before = next;
        asks
    };
    assert!(!asks(&world));
    world.rows.bots[0].gates = ask_gate.clone();
    assert!(asks(&world));
    world.rows.bots[0].gates = None;
    assert!(!asks(&world));
    world.rows.roles[0].gates = ask_gate.clone();
    assert!(asks(&world));
    world.rows.roles[0].gates = None;
    assert!(!asks(&world));
    world.rows.bindings[0].gates = ask_gate.clone();
    assert!(asks(&world));
    world.rows.bindings[0].gates = None;
    assert!(!asks(&world));

    world.rows.bots[0].gates = ask_gate;
    let first = world.snapshot(&before);
    world.rows.bots[0].description = "changed".to_owned();
    let second = world.snapshot(&first);
    let id = world.rows.bots[0].id;
    assert!(first.bots[&id].gates.is_same(&second.bots[&id].gates), "a running call need not be judged again");
    assert_eq!(kept(&first, &second, workspace), 2);
}
