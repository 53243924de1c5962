//! Startup and shutdown of a server. This is the only module that names concrete implementations.

mod archive;
mod data;
pub mod doctor;
mod engine;
mod listen;
mod offline;
mod purge;
mod recovery;
pub mod rotation;
mod sandboxes;
mod tasks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monstrum_egress::{Egress, EgressOptions};
use monstrum_runtime::{Runtime, RuntimeOptions};
use monstrum_sandbox::SandboxProvider;
use monstrum_store::Store;
use monstrum_types::{Clock, Secret, SystemClock};
use monstrum_vault::{FileKey, Vault, VaultError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::config::{Days, Settings};
use crate::gateway;
use crate::telemetry::recorder;
use listen::Patience;
use monstrum_agent::Tasks;
use monstrum_core::access_tokens::AccessTokens;
use monstrum_core::app::App;
use monstrum_core::approvals::Approvals;
use monstrum_core::audit::{Auditor, Feed, HEADS_FILE, Heads};
use monstrum_core::call::Calls;
use monstrum_core::call::admission::Lanes;
use monstrum_core::call::execute::{BuiltIn, Executor};
use monstrum_core::call::ledger::{Ledger, Payers};
use monstrum_core::console_sessions::ConsoleSessions;
use monstrum_core::credentials::Refresher;
use monstrum_core::emitter::Emitter;
use monstrum_core::mcp::Mcp;
use monstrum_core::meters;
use monstrum_core::oauth::Oauth;
use monstrum_core::pins::Pins;
use monstrum_core::plugins::packages::Packages;
use monstrum_core::plugins::registry::Registry;
use monstrum_core::plugins::{Plugins, StartIndex, Watch, owners};
use monstrum_core::policy::Policy;
use monstrum_core::policy::key_uses;
use monstrum_core::policy::pattern_limits::PatternRoom;
use monstrum_core::remote_agents::RemoteAgents;
use monstrum_core::sandboxes::outputs::Outputs;
use monstrum_core::sandboxes::{FileTurns, Sandboxes};
use monstrum_core::webhooks::Receiver;
use monstrum_work::runs::Runs;

pub use archive::{ArchivingError, archive_offline, archive_online};
pub use data::{
    ADMIN_KEY_FILE, AUDIT_KEYS, Data, DataError, Inspected, Lock, NODE_FILE, Unsealed, connections_of_servers,
    lost_key_versions,
};
pub use offline::{OfflineChange, OfflineError, recorded, recorded_with};
use purge::{Kept, purge};
pub use recovery::{RecoveryError, recover_root_key};
pub use sandboxes::SANDBOX_FOLDER;
#[cfg(target_os = "linux")]
pub(crate) use sandboxes::{KeptImages, kept_images};

/// The interval at which the server checks the database for changes of the policy.
const POLICY_POLL: Duration = Duration::from_millis(500);
/// The interval at which the server compares all seals in the database with the seals of the policy in
/// force.
const SEALS_POLL: Duration = Duration::from_secs(10);
/// The interval at which the server polls the plugins folder.
const PLUGINS_POLL: Duration = Duration::from_millis(500);
/// The interval at which the server records when API keys were last used. The record of one key is written at most once
/// a minute.
const KEY_USES_INTERVAL: Duration = Duration::from_secs(10);
/// The time limit, at shutdown, for finishing requests for OAuth tokens and storing the tokens.
const TOKENS_MAX: Duration = Duration::from_secs(25);
/// The time limit, at shutdown, for stopping sandboxes. If stopping a sandbox takes longer, the server corrects the
/// recorded status of the sandbox at its next start.
const SANDBOXES_MAX: Duration = Duration::from_secs(15);
/// Two time limits at shutdown: one for clients to read finished answers, and one for recording when API keys were last
/// used.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// An error while starting a server.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the plugins folder cannot be used")]
    Plugins(#[from] monstrum_core::plugins::folder::FolderError),
    #[error("cannot create the plugins folder {}", path.display())]
    CreatePlugins { path: PathBuf, source: std::io::Error },
    #[error("cannot start the WebAssembly engine")]
    Runtime(#[from] monstrum_runtime::RuntimeError),
    #[error("cannot use the audit heads")]
    Heads(#[from] monstrum_core::audit::HeadsError),
    #[error("cannot prepare the secrets of webhooks")]
    Vault(#[from] VaultError),
    #[error("the database cannot be used")]
    Store(#[from] monstrum_store::StoreError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub base_url: String,
    /// The root key, if the server created it during this start.
    pub admin_key: Option<Secret>,
    pub app: Arc<App>,
    pub tasks: Arc<Tasks>,
    pub runs: Arc<Runs>,
    /// The time for which calls in flight may finish at shutdown.
    grace: Duration,
    stop: CancellationToken,
    served: JoinHandle<std::io::Result<()>>,
    audited: JoinHandle<()>,
    chores: Vec<JoinHandle<()>>,
    engine: Option<JoinHandle<()>>,
    _data: data::Lock,
}

/// Starts a server. The server accepts requests when this function returns; plugins are scanned in the background.
pub async fn start(settings: Settings) -> Result<Running, BootError> {
    start_with(settings, Outside::default()).await
}

/// Replacements for the network, the sandbox provider and the clock of a server.
#[derive(Default)]
pub struct Outside {
    /// The options of egress. `monstrum plugin test` replaces the network with these options.
    pub egress: EgressOptions,
    /// The provider of sandboxes; `None` means the provider that the settings name.
    pub sandboxes: Option<Arc<dyn SandboxProvider>>,
    /// The clock; `None` means that of the machine.
    pub clock: Option<Arc<dyn Clock>>,
}

/// Starts a server with the network and the sandbox provider that `outside` specifies.
pub async fn start_with(settings: Settings, outside: Outside) -> Result<Running, BootError> {
    listen::raise_descriptors();
    let clock: Arc<dyn Clock> = outside.clock.clone().unwrap_or_else(|| Arc::new(SystemClock));
    let data = Data::open(&settings, clock.as_ref()).await?;
    owners::fill(&data.store).await?;
    create_plugins_dir(&settings)?;
    let (listener, address) = bound(settings.listen).await?;

    let cache_mac_key = *data.vault.derive("precompiled cache");
    let runtime = Runtime::new(RuntimeOptions { cache_dir: data.path.join("cache"), cache_mac_key })?;
    let plugins =
        Plugins::new(&settings.plugins_dir, runtime, data.store.clone(), Arc::clone(&clock), settings.ceilings)?;
    let index = StartIndex::new(&data.path, FileKey::derive(&data.vault, "plugin start index"), data.node.clone());
    let plugins = Arc::new(plugins.with_start_index(index));
    let watch = plugins.load_unchanged().await;
    let egress = Egress::new(outside.egress);
    let (vault, store) = (&data.vault, &data.store);
    let refresher = Refresher::new(store.clone(), Arc::clone(vault), egress.clone(), Arc::clone(&clock));
    let refresher = Arc::new(refresher);
    let policy = Policy::open(store.clone(), Arc::clone(&refresher), Arc::clone(&plugins)).await?;
    let policy = Arc::new(policy);
    let (auditor, audited) = auditor(&data, &policy, &clock).await?;
    let public_base_url = settings.url_for_browsers(address);
    let oauth = Oauth::new(
        store.clone(),
        Arc::clone(vault),
        egress.clone(),
        Arc::clone(&clock),
        Arc::clone(&policy),
        auditor.clone(),
        public_base_url,
    );
    let ledger = ledger(&data, &auditor, &policy, &clock).await?;
    let lanes = Lanes::new(settings.calls_at_once);
    let (sandboxes, sandbox_outputs) = sandboxes::open(&settings, &data, Arc::clone(&clock), outside.sandboxes).await;
    let pins = Pins::new(store.clone(), auditor.clone(), Arc::clone(&policy), Arc::clone(&clock), data.node.clone());
    let pins = Arc::new(pins);
    let agents = Arc::new(RemoteAgents::new(Arc::clone(&policy), Arc::clone(&pins), store.clone(), data.node.clone()));
    let mcp = Arc::new(Mcp::new(egress.clone(), Arc::clone(&policy), Arc::clone(&pins), Arc::clone(&clock)));
    let access_tokens = settings.mcp_issuer.clone();
    let access_tokens = access_tokens.map(|issuer| AccessTokens::new(issuer, egress.clone(), Arc::clone(&clock)));
    let built_in = built_in(&sandboxes, &sandbox_outputs, &agents, &mcp);
    let executor = Executor::new(egress, lanes, settings.ceilings, Arc::clone(&ledger), built_in);
    let emitter = emitter(store, vault, &policy, &auditor, &clock);
    let approvals = approvals(&settings, &data, (&policy, &auditor, &emitter), &clock);
    let calls = Calls::new(Arc::clone(&policy), auditor.clone(), executor, Arc::clone(&approvals), Arc::clone(&clock));

    let console_sessions =
        ConsoleSessions::new(store.clone(), Arc::clone(&policy), auditor.clone(), Arc::clone(&clock));

    let packages = packages(&settings, &data, &plugins);
    let base_url = settings.public_url.as_ref().map_or_else(|| format!("http://{address}"), ToString::to_string);
    let webhooks = Receiver::new(&data.vault)?;
    let pattern_room = PatternRoom::new(settings.workspace_patterns_mib);
    let audit_feed = Feed::new(data.store.clone());
    let app = Arc::new(App {
        data_dir: settings.data_dir.clone(),
        store: data.store,
        vault: data.vault,
        audit_keys: data.audit_keys,
        auditor,
        audit_feed,
        plugins,
        packages,
        oauth: Arc::new(oauth),
        return_origins: settings.oauth_return_origins.clone(),
        refresher,
        policy,
        sandboxes,
        sandbox_outputs,
        file_turns: FileTurns::default(),
        pattern_room,
        approvals,
        emitter,
        ledger,
        pins,
        agents,
        mcp,
        access_tokens,
        calls: Arc::new(calls),
        console_sessions,
        webhooks,
        clock,
        scanned: tokio::sync::watch::Sender::new(false),
    });
    recorder::install();
    let stop = CancellationToken::new();
    let engine = engine::create(&app, data.node).await?;
    let (tasks, runs) = tasks::register(&app, &engine);
    let work = (Arc::clone(&tasks), Arc::clone(&runs));
    let router = router(Arc::clone(&app), work, &settings, address, &stop);
    let kept = Kept::of(&settings);
    let server = listen::serve(listener, router, settings.connections, Patience::default(), stop.clone());
    let chores = chores(&app, watch, (settings.watch_plugins, (settings.audit_keep, kept)), &stop);
    let engine = engine::start(engine, &app, &stop);
    let served = tokio::spawn(server);
    let (admin_key, grace) = (data.admin_key, settings.shutdown_grace);
    let _data = data.lock;
    Ok(Running { address, base_url, admin_key, app, tasks, runs, grace, stop, served, audited, chores, engine, _data })
}

fn approvals(
    settings: &Settings,
    data: &Data,
    (policy, auditor, emitter): (&Arc<Policy>, &Auditor, &Arc<Emitter>),
    clock: &Arc<dyn Clock>,
) -> Arc<Approvals> {
    Arc::new(Approvals::new(
        data.store.clone(),
        Arc::clone(&data.vault),
        auditor.clone(),
        Arc::clone(policy),
        Arc::clone(emitter),
        Arc::clone(clock),
        settings.url_for_approvals(),
    ))
}

/// Starts the writer of the audit.
async fn auditor(data: &Data, policy: &Policy, clock: &Arc<dyn Clock>) -> Result<(Auditor, JoinHandle<()>), BootError> {
    let heads = Heads::open(&data.path.join(HEADS_FILE), &data.audit_keys)?;
    let keys = data.newest_audit_keys();
    let sealed_generations = policy.load().verification.generations_total();
    let (store, node) = (data.store.clone(), data.node.clone());
    Ok(Auditor::start(store, keys, heads, node, sealed_generations, Arc::clone(clock)).await?)
}

/// Creates what emits events.
fn emitter(
    store: &Store,
    vault: &Arc<Vault>,
    policy: &Arc<Policy>,
    auditor: &Auditor,
    clock: &Arc<dyn Clock>,
) -> Arc<Emitter> {
    let (vault, policy, auditor) = (Arc::clone(vault), Arc::clone(policy), auditor.clone());
    Arc::new(Emitter::new(store.clone(), vault, policy, auditor, Arc::clone(clock)))
}

/// Opens the ledger, and settles the reservations that an earlier run of this host has left.
async fn ledger(
    data: &Data,
    auditor: &Auditor,
    policy: &Arc<Policy>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<Ledger>, BootError> {
    let policy = Arc::clone(policy);
    let limits =
        Box::new(move |payers: Payers<'_>| policy.load().payer_limits(payers.workspace, payers.bot, payers.user));
    let ledger = Ledger::new(data.store.clone(), auditor.clone(), limits, Arc::clone(clock), data.node.clone());
    ledger.settle_lost().await?;
    Ok(Arc::new(ledger))
}

/// Returns what runs the tools of the built-in types.
fn built_in(
    sandboxes: &Arc<Sandboxes>,
    sandbox_outputs: &Arc<Outputs>,
    agents: &Arc<RemoteAgents>,
    mcp: &Arc<Mcp>,
) -> BuiltIn {
    BuiltIn {
        sandboxes: Arc::clone(sandboxes),
        sandbox_outputs: Arc::clone(sandbox_outputs),
        agents: Arc::clone(agents),
        mcp: Arc::clone(mcp),
    }
}

/// Creates the router of a server that listens on `address`.
fn router(
    app: Arc<App>,
    work: (Arc<Tasks>, Arc<Runs>),
    settings: &Settings,
    address: SocketAddr,
    stop: &CancellationToken,
) -> axum::Router {
    let options = gateway::Options { public_docs: settings.public_docs };
    let mcp = gateway::McpOptions {
        address,
        public_url: settings.public_url.clone(),
        hosts: settings.mcp_hosts.clone(),
        origins: settings.mcp_origins.clone(),
        stop: stop.clone(),
    };
    let console = gateway::ConsoleOptions {
        enabled: settings.console,
        hosts: settings.console_hosts.clone(),
        public_url: settings.public_url.clone(),
        address,
    };
    gateway::router(app, work, options, mcp, console)
}

/// Listens on `address`. Returns the address with its port, which the system chooses for the port 0.
async fn bound(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BootError> {
    let failed = |source| BootError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

/// Creates the packages of a server, with the registry of the settings.
fn packages(settings: &Settings, data: &Data, plugins: &Arc<Plugins>) -> Packages {
    let registry = settings.registry.clone();
    let registry = registry.map(|place| Registry::new(place, &settings.registry_allow_addresses));
    Packages::new(data.store.clone(), Arc::clone(plugins), registry)
}

/// Starts the background tasks of a server.
fn chores(
    app: &Arc<App>,
    watch: Watch,
    (watches_plugins, (audit_keep, kept)): (bool, (Option<Days>, Kept)),
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let mut chores = vec![
        tokio::spawn(follow_plugins(Arc::clone(app), watch, watches_plugins, stop.clone())),
        tokio::spawn(load_components(Arc::clone(app))),
        tokio::spawn(follow_policy(Arc::clone(app), stop.clone())),
        tokio::spawn(follow_owners(Arc::clone(app), stop.clone())),
        tokio::spawn(purge(Arc::clone(app), kept, stop.clone())),
        tokio::spawn(follow_key_uses(Arc::clone(app), stop.clone())),
        tokio::spawn(follow_devices(Arc::clone(app), stop.clone())),
        tokio::spawn(follow_approvals(Arc::clone(app), stop.clone())),
        tokio::spawn(follow_agents(Arc::clone(app), stop.clone())),
        tokio::spawn(share_agents(Arc::clone(app), stop.clone())),
        tokio::spawn(Arc::clone(&app.mcp).follow(stop.clone())),
    ];
    chores.extend(sandboxes::chores(app, stop));
    if let Some(days) = audit_keep {
        chores.push(tokio::spawn(archive::archive_daily(Arc::clone(app), days.get(), stop.clone())));
    }
    chores
}

impl Running {
    /// Returns a token that stops the server when it is cancelled.
    pub fn stop_handle(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits until the server is stopped, then shuts it down: it rejects new calls, waits for running calls or records
    /// them as interrupted, and signs a final audit head.
    pub async fn stopped(self) {
        let Running { app, tasks, grace, stop, mut served, audited, chores, engine, .. } = self;
        tokio::select! {
            // Cancelling `stop` also ends the task `served`. `stop` is polled first, so that a requested stop is not
            // logged as an error.
            biased;
            () = stop.cancelled() => {}
            ended = &mut served => {
                tracing::error!(?ended, "the server stopped unexpectedly");
                stop.cancel();
            }
        }
        tracing::info!("shutting down");
        app.approvals.close();
        app.audit_feed.close();
        app.agents.announce_end();
        tasks.close();
        // Tasks end their turns before their calls are interrupted, so that another turn continues them.
        engine::stopped(engine).await;
        app.calls.shut_down(grace).await;
        app.agents.shut_down().await;
        if tokio::time::timeout(FLUSH_MAX, app.ledger.shut_down()).await.is_err() {
            tracing::warn!("the shutdown timed out settling reservations; the next start settles them as a whole");
        }
        if !served.is_finished() && tokio::time::timeout(FLUSH_MAX, &mut served).await.is_err() {
            served.abort();
        }
        for chore in chores {
            chore.abort();
        }
        app.mcp.shut_down().await;
        app.audit_feed.shut_down().await;
        app.sandboxes.shut_down(SANDBOXES_MAX).await;
        if tokio::time::timeout(FLUSH_MAX, app.sandbox_outputs.shut_down()).await.is_err() {
            tracing::warn!("the shutdown timed out storing the outputs of commands in sandboxes; they are lost");
        }
        // Fetched tokens must be stored before the process ends.
        let stored = async { tokio::join!(app.oauth.shut_down(), app.refresher.shut_down()) };
        if tokio::time::timeout(TOKENS_MAX, stored).await.is_err() {
            tracing::warn!(
                "the shutdown timed out waiting for requests for OAuth tokens; a token that was not stored is lost"
            );
        }
        app.auditor.close();
        if let Err(error) = audited.await {
            tracing::error!(%error, "the audit writer failed");
        }
        // The audit is completed first: if the process is killed now, only the last-use times of API keys are lost,
        // which is acceptable.
        if tokio::time::timeout(FLUSH_MAX, save_key_uses(&app)).await.is_err() {
            tracing::warn!("the shutdown timed out before the last-use times of API keys were written");
        }
        app.plugins.save_start_index().await;
        app.store.close().await;
        tracing::info!("stopped");
    }
}

fn create_plugins_dir(settings: &Settings) -> Result<(), BootError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = &settings.plugins_dir;
    let created = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    created.map_err(|source| BootError::CreatePlugins { path: path.clone(), source })
}

/// Loads the plugins folder: first runs the start-up scan, then loads every change.
async fn follow_plugins(app: Arc<App>, mut watch: Watch, keeps_watching: bool, stop: CancellationToken) {
    app.scan_plugins(POLICY_POLL).await;
    if !keeps_watching {
        return;
    }
    let mut tick = tokio::time::interval(PLUGINS_POLL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_readable = true;
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        for entry in app.plugins.entries().iter().filter(|entry| entry.is_to_retry) {
            watch.forget(&entry.name);
        }
        let looked = tokio::task::spawn_blocking(move || (watch.poll(Instant::now()), watch));
        // Only the shutdown of the runtime cancels this task.
        let Ok((looked, back)) = looked.await else { return };
        watch = back;
        match looked {
            Ok(changed) if !changed.is_empty() => load_changed(&app, &changed).await,
            Ok(_) => is_readable = true,
            Err(error) if is_readable => {
                is_readable = false;
                tracing::error!(%error, "cannot read the plugins folder; the loaded plugins stay in force");
            }
            Err(_) => {}
        }
    }
}

/// Writes the start index and loads the components of unchanged plugins once the host is ready.
async fn load_components(app: Arc<App>) {
    // The sender of `scanned` belongs to the app, so it exists until this task ends.
    if app.scanned.subscribe().wait_for(|is_scanned| *is_scanned).await.is_ok() {
        app.plugins.save_start_index().await;
        app.plugins.load_components().await;
    }
}

/// Loads changed plugins. If the policy cannot be renewed, this function logs the error and `follow_policy` retries.
async fn load_changed(app: &App, names: &[String]) {
    if let Err(error) = app.load_plugins(names).await {
        tracing::error!(%error, "cannot activate the changed plugins; retrying");
    }
}

async fn follow_policy(app: Arc<App>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(POLICY_POLL);
    let mut compared = Instant::now();
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let began = Instant::now();
        let mut renewed = app.policy.renew_if_behind().await;
        if renewed.is_ok() && compared.elapsed() >= SEALS_POLL {
            compared = began;
            renewed = app.policy.renew_if_seals_differ().await;
        }
        meters::database(renewed.is_ok(), began.elapsed());
        if let Err(error) = renewed {
            tracing::warn!(error = %error, "cannot read the policy; calls are rejected until the policy can be read");
        }
        app.sign_policy();
    }
}

/// Reloads plugins whose names another host has reassigned or released.
async fn follow_owners(app: Arc<App>, stop: CancellationToken) {
    let mut renewals = app.policy.renewals();
    while let Some(Ok(())) = stop.run_until_cancelled(renewals.changed()).await {
        let names = app.plugins.judged_by_others(app.policy.load().owners());
        if !names.is_empty() {
            load_changed(&app, &names).await;
        }
    }
}

async fn follow_key_uses(app: Arc<App>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(KEY_USES_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        save_key_uses(&app).await;
    }
}

async fn save_key_uses(app: &App) {
    if let Err(error) = key_uses::save(&app.store, app.policy.load().key_uses()).await {
        tracing::warn!(%error, "cannot write the last-use times of API keys; retrying");
    }
}

async fn follow_devices(app: Arc<App>, stop: CancellationToken) {
    app.oauth.follow_devices(stop).await;
}

async fn follow_approvals(app: Arc<App>, stop: CancellationToken) {
    app.approvals.follow_expiry(stop).await;
}

async fn follow_agents(app: Arc<App>, stop: CancellationToken) {
    app.agents.follow_presence(stop).await;
}

async fn share_agents(app: Arc<App>, stop: CancellationToken) {
    app.agents.share_presence(stop).await;
}
