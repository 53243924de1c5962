//! Sample rows for tests.

use monstrum_store::{
    AnchorRow, AuditKind, AuditRow, BindingRow, BotRow, ChainedRow, CredentialRow, DEFAULT_WORKSPACE, KeyKind, KeyRow,
    ResourceRow, RoleRow, ScanFrom, ScannedRow, Store, StoreError, UnreadableRow, WorkspaceRow,
};
use monstrum_types::{BindingId, BotId, CredentialId, KeyId, RequestId, ResourceId, RoleId, UtcMillis, WorkspaceId};
use serde_json::json;

pub(crate) const NOW: UtcMillis = UtcMillis(1_795_000_000_000);

pub(crate) async fn default_workspace(store: &Store) -> WorkspaceId {
    store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id
}

pub(crate) async fn other_workspace(store: &Store) -> WorkspaceId {
    let row = WorkspaceRow {
        id: WorkspaceId::new(),
        name: "other".to_owned(),
        sandbox: None,
        created_at: NOW,
        updated_at: NOW,
    };
    store.insert_workspace(&row).await.unwrap();
    row.id
}

pub(crate) fn role(workspace: WorkspaceId, name: &str) -> RoleRow {
    RoleRow {
        id: RoleId::new(),
        workspace_id: workspace,
        name: name.to_owned(),
        allowed_operations: Some(json!(["issue.*"])),
        allowed_tools: None,
        scope_constraints: json!({"repo": ["acme/*"]}),
        gates: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn bot(workspace: WorkspaceId, name: &str) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id: workspace,
        name: name.to_owned(),
        description: "does things".to_owned(),
        system_prompt: String::new(),
        model: Some("model".to_owned()),
        use_agent_sandbox: true,
        monthly_token_budget: Some(1_000_000),
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

pub(crate) fn resource(workspace: WorkspaceId, name: &str) -> ResourceRow {
    ResourceRow {
        id: ResourceId::new(),
        workspace_id: workspace,
        resource_type: "github".parse().unwrap(),
        name: name.to_owned(),
        config: json!({"api_base": "https://api.github.com"}),
        network: json!({"allow_addresses": [], "allow_http": false}),
        labels: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn credential(resource: &ResourceRow) -> CredentialRow {
    CredentialRow {
        id: CredentialId::new(),
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        subject_kind: "shared".to_owned(),
        subject_id: String::new(),
        auth_method: "token".to_owned(),
        sealed: "AQAAAAE".to_owned(),
        key_version: 1,
        given_for: json!({"audience": ["https://api.github.com"]}),
        status: "active".to_owned(),
        expires_at: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn binding(bot: &BotRow, resource: &ResourceRow, role: Option<RoleId>) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        resource_id: resource.id,
        role_id: role,
        permissions: Some(json!({"allowed_tools": ["github_list_issues"]})),
        scope_constraints: json!({"repo": ["acme/*"]}),
        delegate: None,
        gates: None,
        allow_calls: json!([]),
        allow_subscribe: false,
        limits: Some(json!({"timeout_s": 5})),
        calls_per_minute: Some(60),
        enabled: true,
        expires_at: Some(NOW.plus_ms(1000)),
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn key(workspace: Option<WorkspaceId>, kind: KeyKind, bot: Option<BotId>, name: &str) -> KeyRow {
    let id = KeyId::new();
    KeyRow {
        id,
        workspace_id: workspace,
        name: name.to_owned(),
        kind,
        bot_id: bot,
        resource_id: None,
        prefix: "mk_abcdef".to_owned(),
        hash: format!("hash of {id}"),
        created_at: NOW,
        last_used_at: None,
    }
}

/// A role, bot, resource, credential and binding in the same workspace.
pub(crate) struct Bound {
    pub(crate) role: RoleRow,
    pub(crate) bot: BotRow,
    pub(crate) resource: ResourceRow,
    pub(crate) credential: CredentialRow,
    pub(crate) binding: BindingRow,
}

pub(crate) async fn bound(store: &Store, workspace: WorkspaceId) -> Bound {
    let (role, bot, resource) = (role(workspace, "r"), bot(workspace, "b"), resource(workspace, "g"));
    let credential = credential(&resource);
    let binding = binding(&bot, &resource, Some(role.id));
    store.insert_role(&role).await.unwrap();
    store.insert_bot(&bot).await.unwrap();
    store.insert_resource(&resource).await.unwrap();
    store.put_credential(&credential).await.unwrap();
    store.insert_binding(&binding).await.unwrap();
    Bound { role, bot, resource, credential, binding }
}

/// Creates an audit event with a different value in every column.
pub(crate) fn event(workspace: WorkspaceId, sequence: i64, kind: AuditKind, request_id: RequestId) -> AuditRow {
    AuditRow {
        writer: "node-1".to_owned(),
        sequence,
        kind,
        request_id,
        workspace_id: Some(workspace),
        bot_id: Some(BotId::new()),
        app_id: Some("app".to_owned()),
        user_id: Some("7".to_owned()),
        task_id: Some("task".to_owned()),
        resource_id: Some(ResourceId::new()),
        tool: Some("github_list_issues".to_owned()),
        operation: Some("issue.read".to_owned()),
        plugin: Some("github".to_owned()),
        plugin_digest: Some(format!("sha256:{}", "0".repeat(64))),
        status: Some("success".to_owned()),
        code: Some("plugin".to_owned()),
        message: Some("a \"message\"\n".to_owned()),
        rule: Some("role".to_owned()),
        params: Some(r#"{"repo":"acme/web"}"#.to_owned()),
        duration_ms: Some(12),
        started_at: NOW,
        at: NOW.plus_ms(12),
        parent_request_id: Some(RequestId::new()),
        delegation: Some("[]".to_owned()),
        flags: Some("output_mismatch".to_owned()),
        key_version: 1,
        previous_hash: [1; 32],
        hash: [0xab; 32],
    }
}

/// Returns all rows of a chain, read in pages of `limit` rows.
pub(crate) async fn chain(store: &Store, writer: &str, limit: u32) -> Vec<Result<ScannedRow, UnreadableRow>> {
    let (mut rows, mut next) = (Vec::new(), Some(ScanFrom::START));
    while let Some(from) = next {
        let page = store.scan(writer, from, limit).await.unwrap();
        assert!(page.rows.len() <= limit as usize);
        rows.extend(page.rows);
        next = page.next;
    }
    rows
}

/// Returns whether the only event of the row's writer differs from `row` or cannot be decoded.
pub(crate) async fn reads_differently(store: &Store, row: &AuditRow) -> bool {
    chain(store, &row.writer, 10).await.pop() != Some(Ok(scanned(row)))
}

/// Returns a row as a scan of its chain should.
pub(crate) fn scanned(row: &AuditRow) -> ScannedRow {
    ScannedRow { row: row.clone(), canonical: canonical(row).into_bytes(), contradiction: None }
}

/// Appends rows with their canonical texts.
pub(crate) trait AppendRows {
    async fn append_rows(&self, rows: &[AuditRow]) -> Result<(), StoreError>;
}

impl AppendRows for Store {
    async fn append_rows(&self, rows: &[AuditRow]) -> Result<(), StoreError> {
        let texts: Vec<String> = rows.iter().map(canonical).collect();
        let chained: Vec<_> = rows.iter().zip(&texts).map(|(row, body)| ChainedRow { row, body }).collect();
        self.append(&chained, &[]).await.map(drop)
    }
}

pub(crate) fn canonical(row: &AuditRow) -> String {
    let mut text = String::new();
    row.write_canonical(&mut text);
    text
}

/// Returns the anchor of the rows from `first` to `last`.
pub(crate) fn anchor(first: i64, last: i64) -> AnchorRow {
    AnchorRow {
        writer: "node-1".to_owned(),
        first_sequence: first,
        previous_hash: [1; 32],
        last_sequence: last,
        last_hash: [2; 32],
        last_at: NOW,
        rows: last - first + 1,
        manifest_digest: [3; 32],
        archived_at: NOW.plus_ms(1000),
        key_version: 1,
        signature: "ab".repeat(64),
    }
}
