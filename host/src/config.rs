//! Settings: the only module that reads the environment and the settings file.
//!
//! A flag takes precedence over its `MONSTRUM_…` variable, the variable over `monstrum.toml`, and the file over the
//! default.

#![expect(clippy::doc_markdown, reason = "help texts are not Markdown")]

mod approval_url;
mod bounded;
mod calls;
mod connections;
mod days;
mod mcp;
mod public_url;
mod sandboxes;
mod switch;

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::{IpNet, Ipv4Net};
use monstrum_types::Secret;
use serde::Deserialize;
use url::Url;

pub use bounded::Bounded;
pub use connections::Connections;
pub use days::Days;
pub use mcp::{ClientSecret, McpHost, McpIssuer, McpOrigin};
pub use public_url::PublicUrl;
pub use sandboxes::{SandboxKind, SandboxSettings, SandboxTemplate, SandboxTotals};
pub use switch::Switch;

use monstrum_core::access_tokens::TokenIssuer;
use monstrum_core::approvals::ApprovalUrl;
use monstrum_core::call::admission::{self, CALLS_MAX, ROUNDS_MAX};
use monstrum_core::oauth::ReturnOrigin;
use monstrum_core::plugins::Ceilings;
use monstrum_core::plugins::registry::Place;
use monstrum_core::policy::pattern_limits::{WORKSPACE_MIB_DEFAULT, WORKSPACE_MIB_MAX};

/// The flags of `monstrum serve`.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeFlags {
    /// Address to listen on; port 0 selects a free port [default: 127.0.0.1:8080]
    #[arg(long, env = "MONSTRUM_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// Maximum number of open connections, up to half of the process's limit on open files [default: half of that limit, at most 16384]
    #[arg(long, env = "MONSTRUM_MAX_CONNECTIONS", value_name = "CONNECTIONS")]
    pub max_connections: Option<NonZeroU32>,

    /// Maximum number of open connections from one IPv4 address or IPv6 /64; 0 disables the limit, for a server behind
    /// a proxy [default: half of --max-connections]
    #[arg(long, env = "MONSTRUM_MAX_CONNECTIONS_PER_ADDRESS", value_name = "CONNECTIONS")]
    pub max_connections_per_address: Option<u32>,

    /// Folder of the database, the keys and the audit heads [default: ./data]
    #[arg(long, env = "MONSTRUM_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// How long rows of the audit stay in the database before the server archives them in DATA/audit-archive, in days,
    /// for example 400d [default: forever]
    #[arg(long, env = "MONSTRUM_AUDIT_KEEP", value_name = "DAYS")]
    pub audit_keep: Option<Days>,

    /// How long tasks are kept after their end, and sessions after their last use, in days, from 1 to 36500 [default: 30]
    #[arg(long, env = "MONSTRUM_KEEP_TASKS_DAYS", value_name = "DAYS")]
    pub keep_tasks_days: Option<Bounded<1, KEEP_DAYS_MAX>>,

    /// How long events and their deliveries are kept, in days, from 1 to 36500 [default: 30]
    #[arg(long, env = "MONSTRUM_KEEP_EVENTS_DAYS", value_name = "DAYS")]
    pub keep_events_days: Option<Bounded<1, KEEP_DAYS_MAX>>,

    /// How long runs of workflows are kept after their end, in days, from 1 to 36500 [default: 90]
    #[arg(long, env = "MONSTRUM_KEEP_RUNS_DAYS", value_name = "DAYS")]
    pub keep_runs_days: Option<Bounded<1, KEEP_DAYS_MAX>>,

    /// Folder of the plugins, with one folder for each plugin [default: DATA/plugins]
    #[arg(long, env = "MONSTRUM_PLUGINS_DIR", value_name = "DIR")]
    pub plugins_dir: Option<PathBuf>,

    /// Load a plugin when its folder changes; if false, changes require `monstrum plugin reload` [default: true]
    #[arg(long, env = "MONSTRUM_WATCH_PLUGINS", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub watch_plugins: Option<bool>,

    /// Database, as postgres://USER:PASSWORD@HOST:PORT/DATABASE or sqlite:PATH; set a URL with a password as
    /// MONSTRUM_DATABASE_URL, because other users can see arguments [default: DATA/monstrum.db]
    #[arg(long, env = "MONSTRUM_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<DatabaseUrl>,

    /// File of the master keys, which encrypt every secret; MONSTRUM_MASTER_KEY can contain the keys instead, with
    /// commas between their lines [default: DATA/master.key]
    #[arg(long, env = "MONSTRUM_MASTER_KEY_FILE", value_name = "FILE")]
    pub master_key_file: Option<PathBuf>,

    /// URL at which browsers reach this server; OAuth requires the URL unless the server listens on loopback
    #[arg(long, env = "MONSTRUM_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<PublicUrl>,

    /// URL at which people decide about approvals, with the placeholders {workspace} and {id}; answers to calls that wait
    /// for an approval contain the URL [default: the console's page, with an https --public-url]
    #[arg(long, env = "MONSTRUM_APPROVAL_URL", value_name = "URL")]
    pub approval_url: Option<ApprovalUrl>,

    /// Serve the console, at /console: on or off [default: on]
    #[arg(long, env = "MONSTRUM_CONSOLE", value_name = "SWITCH")]
    pub console: Option<Switch>,

    /// Further host names by which browsers reach the console, as HOST or HOST:PORT; loopback names and the host of
    /// --public-url are always accepted
    #[arg(long, env = "MONSTRUM_CONSOLE_HOSTS", value_name = "HOST,…", value_delimiter = ',')]
    pub console_hosts: Option<Vec<McpHost>>,

    /// Further host names by which MCP clients reach this server, as HOST or HOST:PORT, for example names in a container
    /// network; loopback names, the listen address and the host of --public-url are always accepted
    #[arg(long, env = "MONSTRUM_MCP_HOSTS", value_name = "HOST,…", value_delimiter = ',')]
    pub mcp_hosts: Option<Vec<McpHost>>,

    /// Origins of browser pages that may use /mcp, for example https://app.example.com; requests with any other Origin
    /// are rejected
    #[arg(long, env = "MONSTRUM_MCP_ORIGINS", value_name = "ORIGIN,…", value_delimiter = ',')]
    pub mcp_origins: Option<Vec<McpOrigin>>,

    /// Authorization server whose access tokens MCP clients may send in place of API keys, as the URL in the claim `iss`;
    /// requires --public-url
    #[arg(long, env = "MONSTRUM_MCP_ISSUER", value_name = "URL")]
    pub mcp_issuer: Option<McpIssuer>,

    /// Private addresses that the host names of the MCP issuer may resolve to, as CIDRs
    #[arg(long, env = "MONSTRUM_MCP_ISSUER_ALLOW", value_name = "CIDR,…", value_delimiter = ',')]
    pub mcp_issuer_allow: Option<Vec<IpNet>>,

    /// Permit http:// URLs of the MCP issuer, for an issuer in the own network [default: false]
    #[arg(long, env = "MONSTRUM_MCP_ISSUER_HTTP", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub mcp_issuer_http: Option<bool>,

    /// Id of this server as a client of the MCP issuer, at which users sign in before they authorize a resource; its
    /// redirect URI is PUBLIC_URL/oauth/connect/callback
    #[arg(long, env = "MONSTRUM_MCP_ISSUER_CLIENT_ID", value_name = "ID")]
    pub mcp_issuer_client_id: Option<String>,

    /// Secret of that client; set it as MONSTRUM_MCP_ISSUER_CLIENT_SECRET or in a file, because other users can see
    /// arguments
    #[arg(long, env = "MONSTRUM_MCP_ISSUER_CLIENT_SECRET", value_name = "SECRET", hide_env_values = true)]
    pub mcp_issuer_client_secret: Option<ClientSecret>,

    /// File with the secret of that client
    #[arg(long, env = "MONSTRUM_MCP_ISSUER_CLIENT_SECRET_FILE", value_name = "FILE")]
    pub mcp_issuer_client_secret_file: Option<PathBuf>,

    /// Origins to which browsers may return after the authorization of a user, for example https://app.example.com
    #[arg(long, env = "MONSTRUM_OAUTH_RETURN_ORIGINS", value_name = "ORIGIN,…", value_delimiter = ',')]
    pub oauth_return_origins: Option<Vec<ReturnOrigin>>,

    /// Registry of plugin packages: a folder indexed by `monstrum registry index`, or the https:// URL of such a folder
    #[arg(long, env = "MONSTRUM_REGISTRY", value_name = "DIR|URL")]
    pub registry: Option<Place>,

    /// Private addresses that the host name of the registry may resolve to, as CIDRs
    #[arg(long, env = "MONSTRUM_REGISTRY_ALLOW_ADDRESSES", value_name = "CIDR", value_delimiter = ',')]
    pub registry_allow_addresses: Option<Vec<IpNet>>,

    /// Maximum fuel of one call; a WebAssembly instruction costs about one unit [default: 1000000000]
    #[arg(long, env = "MONSTRUM_MAX_FUEL", value_name = "UNITS")]
    pub max_fuel: Option<NonZeroU64>,

    /// Maximum memory of one call, for all its memories and tables together, up to 1024 [default: 64]
    #[arg(long, env = "MONSTRUM_MAX_MEMORY_MIB", value_name = "MIB")]
    pub max_memory_mib: Option<Bounded<1, MEMORY_MIB_MAX>>,

    /// Maximum duration of one call, including the time in queues [default: 30]
    #[arg(long, env = "MONSTRUM_MAX_TIMEOUT_S", value_name = "SECONDS")]
    pub max_timeout_s: Option<NonZeroU32>,

    /// Maximum number of concurrent calls, up to 1000 [default: 1000]
    #[arg(long, env = "MONSTRUM_MAX_CALLS", value_name = "CALLS")]
    pub max_calls: Option<Bounded<1, CALLS_MAX>>,

    /// Maximum number of concurrent calls of one plugin [default: 64]
    #[arg(long, env = "MONSTRUM_MAX_CALLS_PER_PLUGIN", value_name = "CALLS")]
    pub max_calls_per_plugin: Option<NonZeroU32>,

    /// Maximum number of concurrent calls of one bot [default: 32]
    #[arg(long, env = "MONSTRUM_MAX_CALLS_PER_BOT", value_name = "CALLS")]
    pub max_calls_per_bot: Option<NonZeroU32>,

    /// Maximum number of concurrent rounds with language models, up to 4096 [default: 256]
    #[arg(long, env = "MONSTRUM_MAX_LLM_CALLS", value_name = "CALLS")]
    pub max_llm_calls: Option<Bounded<1, ROUNDS_MAX>>,

    /// Maximum memory of the compiled patterns of a workspace's roles and bindings, up to 4096 [default: 64]
    #[arg(long, env = "MONSTRUM_WORKSPACE_PATTERNS_MIB", value_name = "MIB")]
    pub workspace_patterns_mib: Option<Bounded<1, WORKSPACE_MIB_MAX>>,

    /// Provider of sandboxes: embedded (this process, on Linux as root) or off [default: embedded]
    #[arg(long, env = "MONSTRUM_SANDBOX", value_name = "PROVIDER")]
    pub sandbox: Option<SandboxKind>,

    /// Idle time in seconds after which a sandbox is stopped; its files are kept [default: 300]
    #[arg(long, env = "MONSTRUM_SANDBOX_IDLE_S", value_name = "SECONDS")]
    pub sandbox_idle_s: Option<sandboxes::IdleS>,

    /// Interval of the search for idle sandboxes, in seconds [default: 300]
    #[arg(long, env = "MONSTRUM_SANDBOX_SWEEP_S", value_name = "SECONDS")]
    pub sandbox_sweep_s: Option<sandboxes::SweepS>,

    /// Maximum memory of one sandbox, unless its workspace sets another limit [default: 1024]
    #[arg(long, env = "MONSTRUM_SANDBOX_MEMORY_MIB", value_name = "MIB")]
    pub sandbox_memory_mib: Option<sandboxes::MemoryMib>,

    /// Maximum number of processors of one sandbox, such as 0.5 [default: 1]
    #[arg(long, env = "MONSTRUM_SANDBOX_CPUS", value_name = "CPUS")]
    pub sandbox_cpus: Option<sandboxes::Cpus>,

    /// Maximum disk space of one sandbox [default: 2048]
    #[arg(long, env = "MONSTRUM_SANDBOX_DISK_MIB", value_name = "MIB")]
    pub sandbox_disk_mib: Option<sandboxes::DiskMib>,

    /// Maximum number of processes in one sandbox [default: 1024]
    #[arg(long, env = "MONSTRUM_SANDBOX_PROCESSES", value_name = "PROCESSES")]
    pub sandbox_processes: Option<sandboxes::Processes>,

    /// Maximum number of running sandboxes on this host [default: 64]
    #[arg(long, env = "MONSTRUM_SANDBOX_MAX", value_name = "SANDBOXES")]
    pub sandbox_max: Option<sandboxes::RunningMax>,

    /// Maximum share of --sandbox-max for one workspace while other workspaces may use sandboxes; 100 disables the
    /// limit [default: 50]
    #[arg(long, env = "MONSTRUM_SANDBOX_SHARE_WORKSPACE", value_name = "PERCENT")]
    pub sandbox_share_workspace: Option<sandboxes::Share>,

    /// Maximum share of --sandbox-max for one bot while other bots may use sandboxes; 100 disables the limit
    /// [default: 25]
    #[arg(long, env = "MONSTRUM_SANDBOX_SHARE_BOT", value_name = "PERCENT")]
    pub sandbox_share_bot: Option<sandboxes::Share>,

    /// Maximum number of sandboxes that one workspace keeps, running or not; the server rejects new sandboxes beyond it
    /// [default: 1000]
    #[arg(long, env = "MONSTRUM_SANDBOX_KEPT_MAX", value_name = "SANDBOXES")]
    pub sandbox_kept_max: Option<sandboxes::KeptMax>,

    /// Maximum disk space of the sandboxes of one workspace on this host; the server rejects new sandboxes beyond it
    /// [default: 50]
    #[arg(long, env = "MONSTRUM_SANDBOX_KEPT_GIB", value_name = "GIB")]
    pub sandbox_kept_gib: Option<sandboxes::KeptGib>,

    /// Keep the commands in sandboxes with their outputs, encrypted: on or off [default: on]
    #[arg(long, env = "MONSTRUM_SANDBOX_KEEP_OUTPUTS", value_name = "SWITCH")]
    pub sandbox_keep_outputs: Option<Switch>,

    /// Maximum total memory of all sandboxes on this host
    /// [default: the memory of the host minus one eighth, at least 1 GiB]
    #[arg(long, env = "MONSTRUM_SANDBOX_TOTAL_MEMORY_MIB", value_name = "MIB")]
    pub sandbox_total_memory_mib: Option<sandboxes::TotalMemoryMib>,

    /// Maximum total number of processes in all sandboxes on this host [default: half of kernel.pid_max]
    #[arg(long, env = "MONSTRUM_SANDBOX_TOTAL_PROCESSES", value_name = "PROCESSES")]
    pub sandbox_total_processes: Option<sandboxes::TotalProcesses>,

    /// System of new sandboxes: host (the programs of this machine) or built (by `monstrum sandbox template build`)
    /// [default: host]
    #[arg(long, env = "MONSTRUM_SANDBOX_TEMPLATE", value_name = "TEMPLATE")]
    pub sandbox_template: Option<SandboxTemplate>,

    /// Address range of sandboxes with a network; reserve this range for sandboxes [default: 198.19.0.0/16]
    #[arg(long, env = "MONSTRUM_SANDBOX_NETWORK", value_name = "RANGE")]
    pub sandbox_network: Option<Ipv4Net>,

    /// Public DNS resolvers of sandboxes with a network [default: 1.1.1.1,9.9.9.9]
    #[arg(long, env = "MONSTRUM_SANDBOX_RESOLVERS", value_delimiter = ',', value_name = "ADDRESS,…")]
    pub sandbox_resolvers: Option<Vec<IpAddr>>,

    /// Seconds that running calls may take to finish at shutdown [default: 30]
    #[arg(long, env = "MONSTRUM_SHUTDOWN_GRACE_S", value_name = "SECONDS")]
    pub shutdown_grace_s: Option<u64>,

    /// Serve /metrics, /docs and the API description without a key [default: false]
    #[arg(long, env = "MONSTRUM_PUBLIC_DOCS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub public_docs: Option<bool>,

    /// Format of log lines: text or json [default: text]
    #[arg(long, env = "MONSTRUM_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Log filter, in the syntax of RUST_LOG [default: info]
    #[arg(long, env = "MONSTRUM_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// OpenTelemetry endpoint for spans (OTLP over HTTP), such as http://127.0.0.1:4318; requires a build with the
    /// feature otel
    #[arg(long, env = "MONSTRUM_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// The size of a memory slot in the pool of the WebAssembly engine, in MiB. A call cannot have more memory.
const MEMORY_MIB_MAX: u32 = 1024;
/// The default of `keep_tasks_days` and `keep_events_days`, that of `keep_runs_days`, and their maximum: a hundred years.
const KEEP_DAYS: u32 = 30;
const KEEP_RUNS_DAYS: u32 = 90;
const KEEP_DAYS_MAX: u32 = 36_500;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The URL of a database, which may contain a password.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(Secret);

impl DatabaseUrl {
    /// Returns the URL with its password.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        DatabaseUrl(Secret::new(url))
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("DatabaseUrl")
    }
}

/// The file name of the master keys in a data folder.
pub const MASTER_KEY_FILE: &str = "master.key";
/// The environment variable that may contain the master keys.
pub const MASTER_KEY_VARIABLE: &str = "MONSTRUM_MASTER_KEY";

/// The location of the master keys.
#[derive(Clone)]
pub enum MasterKeyPlace {
    File(PathBuf),
    /// The text of the keys, from the environment.
    Variable(Secret),
}

impl std::fmt::Display for MasterKeyPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MasterKeyPlace::File(path) => path.display().fmt(formatter),
            MasterKeyPlace::Variable(_) => formatter.write_str(MASTER_KEY_VARIABLE),
        }
    }
}

impl std::fmt::Debug for MasterKeyPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, formatter)
    }
}

/// Every setting, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub connections: Connections,
    pub data_dir: PathBuf,
    /// Rows of the audit that are older are archived daily; `None` archives nothing.
    pub audit_keep: Option<Days>,
    /// How long tasks are kept after their end, and sessions after their last use, in days.
    pub keep_tasks_days: u32,
    /// How long events and their deliveries are kept, in days.
    pub keep_events_days: u32,
    /// How long runs of workflows are kept after their end, in days.
    pub keep_runs_days: u32,
    pub plugins_dir: PathBuf,
    pub watch_plugins: bool,
    pub database_url: Option<DatabaseUrl>,
    pub master_key: MasterKeyPlace,
    pub public_url: Option<PublicUrl>,
    pub approval_url: Option<ApprovalUrl>,
    /// Whether the server serves the console.
    pub console: bool,
    /// Further host names by which browsers may reach the console.
    pub console_hosts: Vec<McpHost>,
    /// Further host names by which MCP clients may reach the server.
    pub mcp_hosts: Vec<McpHost>,
    /// The origins of browser pages that may use the MCP server.
    pub mcp_origins: Vec<McpOrigin>,
    /// The authorization server whose access tokens MCP clients may send.
    pub mcp_issuer: Option<TokenIssuer>,
    /// The origins to which browsers may return after the authorization of a user.
    pub oauth_return_origins: Vec<ReturnOrigin>,
    pub registry: Option<Place>,
    /// Non-public addresses that the host name of the registry may resolve to.
    pub registry_allow_addresses: Vec<IpNet>,
    pub ceilings: Ceilings,
    pub calls_at_once: admission::Limits,
    pub workspace_patterns_mib: u32,
    pub sandboxes: SandboxSettings,
    pub shutdown_grace: Duration,
    pub public_docs: bool,
    pub log_format: LogFormat,
    pub log: String,
    pub otlp_endpoint: Option<String>,
}

/// An error while resolving settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("both {MASTER_KEY_VARIABLE} and a master key file ({}) are set", path.display())]
    TwoMasterKeys { path: PathBuf },
    #[error("{MASTER_KEY_VARIABLE} is not valid UTF-8")]
    MasterKeyText,
    #[error("{0}")]
    McpIssuer(&'static str),
    #[error("{}: {message}", path.display())]
    Parse { path: PathBuf, message: String, source: Box<toml::de::Error> },
}

/// Returns the user's settings folder: XDG_CONFIG_HOME, or `.config` in the home directory.
#[expect(clippy::disallowed_methods, reason = "this module reads the environment")]
pub fn user_config_dir() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    named("XDG_CONFIG_HOME").or_else(|| named("HOME").map(|home| home.join(".config")))
}

/// The settings file in the working directory.
pub const FILE: &str = "monstrum.toml";

impl Settings {
    /// Resolves `flags`, which include the environment, over `monstrum.toml` in `directory`.
    pub fn resolve(flags: ServeFlags, directory: &Path) -> Result<Settings, SettingsError> {
        let file = read_file(&directory.join(FILE))?;
        let sandboxes = SandboxSettings::resolve(&flags, &file);
        let connections = Connections::resolve(&flags, &file);
        let calls_at_once = calls::at_once(&flags, &file);
        let mcp_issuer = mcp::issuer(&flags, &file)?;
        let data_dir = flags.data_dir.or(file.data_dir).unwrap_or_else(|| PathBuf::from("data"));
        let plugins_dir = flags.plugins_dir.or(file.plugins_dir).unwrap_or_else(|| data_dir.join("plugins"));
        let master_key_file = flags.master_key_file.or(file.master_key_file);
        let master_key_file = master_key_file.unwrap_or_else(|| data_dir.join(MASTER_KEY_FILE));
        let ceilings = Ceilings::default();
        let ceilings = Ceilings {
            fuel: flags.max_fuel.or(file.max_fuel).map_or(ceilings.fuel, NonZeroU64::get),
            memory_mib: flags.max_memory_mib.or(file.max_memory_mib).map_or(ceilings.memory_mib, Bounded::get),
            timeout_s: flags.max_timeout_s.or(file.max_timeout_s).map_or(ceilings.timeout_s, NonZeroU32::get),
        };
        let shutdown_grace_s = flags.shutdown_grace_s.or(file.shutdown_grace_s).unwrap_or(30);
        Ok(Settings {
            listen: flags.listen.or(file.listen).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080))),
            connections,
            data_dir,
            audit_keep: flags.audit_keep.or(file.audit_keep),
            keep_tasks_days: flags.keep_tasks_days.or(file.keep_tasks_days).map_or(KEEP_DAYS, Bounded::get),
            keep_events_days: flags.keep_events_days.or(file.keep_events_days).map_or(KEEP_DAYS, Bounded::get),
            keep_runs_days: flags.keep_runs_days.or(file.keep_runs_days).map_or(KEEP_RUNS_DAYS, Bounded::get),
            plugins_dir,
            watch_plugins: flags.watch_plugins.or(file.watch_plugins).unwrap_or(true),
            database_url: flags.database_url.or(file.database_url),
            master_key: MasterKeyPlace::File(master_key_file),
            public_url: flags.public_url.or(file.public_url),
            approval_url: flags.approval_url.or(file.approval_url),
            console: flags.console.or(file.console) != Some(Switch::Off),
            console_hosts: flags.console_hosts.or(file.console_hosts).unwrap_or_default(),
            mcp_hosts: flags.mcp_hosts.or(file.mcp_hosts).unwrap_or_default(),
            mcp_origins: flags.mcp_origins.or(file.mcp_origins).unwrap_or_default(),
            mcp_issuer,
            oauth_return_origins: flags.oauth_return_origins.or(file.oauth_return_origins).unwrap_or_default(),
            registry: flags.registry.or(file.registry),
            registry_allow_addresses: flags
                .registry_allow_addresses
                .or(file.registry_allow_addresses)
                .unwrap_or_default(),
            ceilings,
            calls_at_once,
            workspace_patterns_mib: flags
                .workspace_patterns_mib
                .or(file.workspace_patterns_mib)
                .map_or(WORKSPACE_MIB_DEFAULT, Bounded::get),
            sandboxes,
            shutdown_grace: Duration::from_secs(shutdown_grace_s),
            public_docs: flags.public_docs.or(file.public_docs).unwrap_or(false),
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            log: flags.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
            otlp_endpoint: flags.otlp_endpoint.or(file.otlp_endpoint),
        })
    }
}

impl Settings {
    /// Returns the URL at which browsers reach this server. Without a public URL, the server knows this URL only if it
    /// listens on loopback.
    pub fn url_for_browsers(&self, address: SocketAddr) -> Option<Url> {
        let own = || format!("http://{address}").parse().ok().filter(|_| address.ip().is_loopback());
        self.public_url.as_ref().map(|public| public.url().clone()).or_else(own)
    }

    /// Replaces the key file with the master keys from the environment, if the variable is set. Setting both the
    /// variable and the key file is an error, because it would be unclear which keys apply.
    pub fn with_keys_of_environment(mut self) -> Result<Settings, SettingsError> {
        let Some(text) = master_key_variable()? else { return Ok(self) };
        match self.master_key {
            MasterKeyPlace::File(path) if path != self.data_dir.join(MASTER_KEY_FILE) => {
                Err(SettingsError::TwoMasterKeys { path })
            }
            _ => {
                self.master_key = MasterKeyPlace::Variable(text);
                Ok(self)
            }
        }
    }
}

/// Reads the environment variable of the master keys. The keys cannot be set by a flag, because all users can see
/// arguments. The keys cannot be set in `monstrum.toml` either, because that file is not secret.
#[expect(clippy::disallowed_methods, reason = "this module reads the environment")]
fn master_key_variable() -> Result<Option<Secret>, SettingsError> {
    match std::env::var(MASTER_KEY_VARIABLE) {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(SettingsError::MasterKeyText),
    }
}

fn read_file(path: &Path) -> Result<ServeFlags, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ServeFlags::default()),
        Err(source) => return Err(SettingsError::Read { path: path.to_owned(), source }),
    };
    let parse = |message, source| SettingsError::Parse { path: path.to_owned(), message, source: Box::new(source) };
    let deserializer = toml::Deserializer::parse(&text).map_err(|error| parse(error.message().to_owned(), error))?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let (setting, error) = (error.path().to_string(), error.into_inner());
        // The message about an unknown setting already names it.
        let is_named = error.message().contains(&format!("`{setting}`"));
        let prefix = if is_named { String::new() } else { format!("{setting}: ") };
        parse(format!("{prefix}{}", error.message()), error)
    })
}

#[cfg(test)]
mod tests;
