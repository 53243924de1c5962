//! The host in this process, so that its store can be filled faster than through the API.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use monstrum_egress::{EgressOptions, Resolve};
use monstrum_host::boot::{self, Outside, Running};
use monstrum_host::config::{SandboxKind, ServeFlags, Settings};
use monstrum_store::{BindingRow, BotRow, ResourceRow, Store};
use monstrum_types::{BindingId, BotId, Clock, ResourceId, SystemClock, UtcMillis, WorkspaceId};
use rustls::pki_types::CertificateDer;
use serde_json::json;

use crate::{Api, Server};

/// The number of bindings per transaction while a workspace is filled.
const BINDINGS_AT_ONCE: usize = 10_000;

/// The host in this process, and its folders.
pub struct InProcess {
    pub running: Running,
    pub folders: Server,
}

impl InProcess {
    /// Starts the host with these plugins and fresh folders.
    pub async fn start(plugins: &[&str]) -> Result<InProcess> {
        InProcess::start_trusting(plugins, Vec::new()).await
    }

    /// Like [`InProcess::start`]. Egress also trusts the certificate authorities `roots`.
    pub async fn start_trusting(plugins: &[&str], roots: Vec<CertificateDer<'static>>) -> Result<InProcess> {
        InProcess::start_in(Server::prepare(plugins)?, roots).await
    }

    /// Like [`InProcess::start`]. Egress resolves names with `resolver`.
    pub async fn start_resolving(plugins: &[&str], resolver: Arc<dyn Resolve>) -> Result<InProcess> {
        let egress = EgressOptions { resolver, ..EgressOptions::default() };
        InProcess::start_with(Server::prepare(plugins)?, egress).await
    }

    /// Starts the host with the folders of `folders`, a server that is not running.
    pub async fn start_in(folders: Server, roots: Vec<CertificateDer<'static>>) -> Result<InProcess> {
        InProcess::start_with(folders, EgressOptions { extra_roots: roots, ..EgressOptions::default() }).await
    }

    /// Like [`InProcess::start`], without sandboxes, for tests that run beside others in the same process.
    pub async fn start_without_sandboxes(plugins: &[&str]) -> Result<InProcess> {
        let flags = ServeFlags { sandbox: Some(SandboxKind::Off), ..ServeFlags::default() };
        InProcess::start_as(Server::prepare(plugins)?, EgressOptions::default(), flags).await
    }

    async fn start_with(folders: Server, egress: EgressOptions) -> Result<InProcess> {
        InProcess::start_as(folders, egress, ServeFlags::default()).await
    }

    async fn start_as(folders: Server, egress: EgressOptions, flags: ServeFlags) -> Result<InProcess> {
        let flags = ServeFlags {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            data_dir: Some(folders.data_dir()),
            plugins_dir: Some(folders.plugins_dir()),
            ..flags
        };
        let settings = Settings::resolve(flags, folders.home())?;
        let outside = Outside { egress, ..Outside::default() };
        let running = boot::start_with(settings, outside).await.context("the host did not start")?;
        Ok(InProcess { running, folders })
    }

    /// Returns a client with the root key.
    pub fn api(&self) -> Result<Api> {
        let key = self.running.admin_key.as_ref().context("the host created no root key")?;
        Api::new(&self.running.base_url, key.expose())
    }

    /// Stops the host and waits until it has stopped.
    pub async fn stop(self) {
        self.running.stop_handle().cancel();
        self.running.stopped().await;
    }

    /// Adds bots and resources of a type to the default workspace, and binds every resource to every bot. Returns one
    /// of the bindings.
    pub async fn fill(&self, resource_type: &str, bots: usize, resources: usize) -> Result<BindingRow> {
        let (store, now) = (&self.running.app.store, SystemClock.now());
        let workspace = self.running.app.policy.load().default_workspace();
        let mut ids = Vec::new();
        for number in 0..resources {
            let row = resource(workspace, resource_type, number, now)?;
            store.insert_resource(&row).await?;
            ids.push(row.id);
        }
        let mut bindings = Vec::new();
        for number in 0..bots {
            let bot = bot(workspace, number, now);
            store.insert_bot(&bot).await?;
            bindings.extend(ids.iter().map(|resource| binding(workspace, bot.id, *resource, now)));
        }
        insert(store, workspace, &bindings).await?;
        bindings.pop().context("no binding was created")
    }
}

async fn insert(store: &Store, workspace: WorkspaceId, bindings: &[BindingRow]) -> Result<()> {
    for group in bindings.chunks(BINDINGS_AT_ONCE) {
        store.insert_bindings(workspace, group).await?;
    }
    Ok(())
}

fn bot(workspace: WorkspaceId, number: usize, now: UtcMillis) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id: workspace,
        name: format!("bot {number}"),
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
        created_at: now,
        updated_at: now,
    }
}

fn resource(workspace: WorkspaceId, resource_type: &str, number: usize, now: UtcMillis) -> Result<ResourceRow> {
    Ok(ResourceRow {
        id: ResourceId::new(),
        workspace_id: workspace,
        resource_type: resource_type.parse()?,
        name: format!("resource {number}"),
        config: json!({ "api_base": "http://127.0.0.1:9" }),
        network: json!({}),
        labels: None,
        created_at: now,
        updated_at: now,
    })
}

fn binding(workspace: WorkspaceId, bot: BotId, resource: ResourceId, now: UtcMillis) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: workspace,
        bot_id: bot,
        resource_id: resource,
        role_id: None,
        permissions: Some(json!({ "allowed_operations": ["echo.*"] })),
        scope_constraints: json!({ "repos": ["acme/*"] }),
        delegate: None,
        gates: None,
        allow_calls: json!([]),
        allow_subscribe: false,
        limits: None,
        calls_per_minute: None,
        enabled: true,
        expires_at: None,
        created_at: now,
        updated_at: now,
    }
}
