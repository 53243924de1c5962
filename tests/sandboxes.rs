//! The assignment of sandboxes to conversations, with a provider in memory. The tests run on SQLite and on a real
//! PostgreSQL, with one host and with two, and with a clock that the test sets.

mod deleting;
mod idle;
mod kept;
mod shares;
mod start;
mod starting;
mod storm;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use monstrum_core::policy::row_seals;
use monstrum_core::sandboxes::{AccessError, Conversation, Options, Place, Sandboxes};
use monstrum_sandbox::{ExecOutput, ExecRequest, SandboxError, SandboxName, SandboxProvider};
use monstrum_store::{
    BotRow, ConversationFilter, DEFAULT_WORKSPACE, Page, SandboxFilter, SandboxRow, SandboxStatus, Store, StoreOptions,
    WorkspaceRow,
};
use monstrum_types::{BotId, FixedClock, Labels, SandboxInstanceId, UtcMillis, WorkspaceId};
use support::{Postgres, SandboxDouble};

/// Runs each case on both databases.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod on_sqlite {
            $(
                #[tokio::test]
                async fn $case() -> anyhow::Result<()> {
                    super::$case(crate::sandboxes::Hosts::on_sqlite().await?).await
                }
            )+
        }
        mod on_postgresql {
            $(
                #[tokio::test]
                async fn $case() -> anyhow::Result<()> {
                    super::$case(crate::sandboxes::Hosts::on_postgresql().await?).await
                }
            )+
        }
    };
}
pub(crate) use on_both;

/// The conversation `chat` of an app, or all conversations of the app.
fn chats<'a>(bot: Option<BotId>, app: &'a str, chat: Option<&'a str>) -> ConversationFilter<'a> {
    ConversationFilter { bot, app, chat }
}

const NOW: UtcMillis = UtcMillis(1_795_000_000_000);
const NODE: &str = "node-1";

/// One database, one provider, a bot in the default workspace, and any number of hosts.
pub(crate) struct Hosts {
    pub(crate) store: Store,
    pub(crate) clock: Arc<FixedClock>,
    pub(crate) double: Arc<SandboxDouble>,
    pub(crate) workspace: WorkspaceId,
    pub(crate) bot: BotId,
    options: StoreOptions,
    _folder: Option<tempfile::TempDir>,
}

impl Hosts {
    pub(crate) async fn on_sqlite() -> Result<Hosts> {
        let folder = tempfile::tempdir()?;
        let options = StoreOptions::sqlite(folder.path().join("monstrum.db"));
        Hosts::on(options, Some(folder)).await
    }

    pub(crate) async fn on_postgresql() -> Result<Hosts> {
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        let settings = ["fsync=off", "full_page_writes=off", "max_connections=500"];
        let server = SERVER.get_or_init(|| Postgres::for_all(&settings).expect("PostgreSQL starts"));
        Hosts::on(StoreOptions::from_url(&server.database()?)?, None).await
    }

    async fn on(options: StoreOptions, folder: Option<tempfile::TempDir>) -> Result<Hosts> {
        let store = row_seals::open_for_tests(options.clone()).await?;
        let workspace =
            store.workspace_named(DEFAULT_WORKSPACE).await?.context("the default workspace does not exist")?.id;
        let bot = bot_in(&store, workspace, "agent").await?;
        let (clock, double) = (Arc::new(FixedClock::new(NOW)), Arc::new(SandboxDouble::default()));
        Ok(Hosts { store, clock, double, workspace, bot, options, _folder: folder })
    }

    /// Creates the only host.
    pub(crate) fn host(&self) -> Arc<Sandboxes> {
        self.host_of(NODE, false, self.store.clone(), Options::default())
    }

    /// Creates the only host, with other settings.
    pub(crate) fn host_with(&self, options: Options) -> Arc<Sandboxes> {
        self.host_of(NODE, false, self.store.clone(), options)
    }

    /// Creates the only host. The host has no provider, for the reason `why`.
    pub(crate) fn host_without(&self, why: &str) -> Arc<Sandboxes> {
        let place = Place { node: NODE.to_owned(), is_shared: false };
        let (store, clock) = (self.store.clone(), Arc::clone(&self.clock));
        let why = SandboxError::unavailable(why);
        Sandboxes::new(Err(why), place, store, clock, Options::default())
    }

    /// Creates another process on the same database.
    pub(crate) async fn another(&self, node: &str, is_shared: bool) -> Result<Arc<Sandboxes>> {
        let store = row_seals::open_for_tests(self.options.clone()).await?;
        Ok(self.host_of(node, is_shared, store, Options::default()))
    }

    fn host_of(&self, node: &str, is_shared: bool, store: Store, options: Options) -> Arc<Sandboxes> {
        let provider: Arc<dyn SandboxProvider> = Arc::clone(&self.double) as Arc<dyn SandboxProvider>;
        let place = Place { node: node.to_owned(), is_shared };
        Sandboxes::new(Ok(provider), place, store, Arc::clone(&self.clock) as _, options)
    }

    /// Runs a command of the simulated provider in the conversation `chat`.
    pub(crate) async fn exec(
        &self,
        host: &Arc<Sandboxes>,
        chat: &str,
        command: &str,
    ) -> Result<ExecOutput, AccessError> {
        host.exec(self.workspace, self.bot, &conversation(chat), ExecRequest::new(command), None).await
    }

    /// Like [`Hosts::exec`], but runs the command in the background.
    pub(crate) fn spawn_exec(
        &self,
        host: &Arc<Sandboxes>,
        chat: &str,
        command: &str,
    ) -> tokio::task::JoinHandle<Result<ExecOutput, AccessError>> {
        let (host, workspace, bot) = (Arc::clone(host), self.workspace, self.bot);
        let (of, request) = (conversation(chat), ExecRequest::new(command));
        tokio::spawn(async move { host.exec(workspace, bot, &of, request, None).await })
    }

    pub(crate) async fn row(&self, chat: &str) -> Result<SandboxRow> {
        let row = self.store.sandbox_of_conversation(self.workspace, "app", chat).await?;
        row.with_context(|| format!("the conversation {chat} has no sandbox"))
    }

    /// Returns the state of every row, by conversation.
    pub(crate) async fn rows(&self) -> Result<String> {
        let rows = self.store.sandboxes(self.workspace, &SandboxFilter::default(), &Page::first(100)).await?.items;
        let line = |row: &SandboxRow| {
            let error = row.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
            let claimed = if row.operation.is_some() { ", claimed" } else { "" };
            format!("{} {}{claimed}{error}", row.chat_id.as_deref().unwrap_or_default(), row.status.as_str())
        };
        let mut lines: Vec<String> = rows.iter().map(line).collect();
        lines.sort();
        Ok(lines.join("\n"))
    }

    pub(crate) fn name(&self, chat: &str) -> SandboxName {
        SandboxName::new(self.workspace, &conversation(chat).sandbox_id())
    }

    /// Returns the provider's state of a conversation's sandbox, or `absent`.
    pub(crate) fn at_provider(&self, chat: &str) -> &'static str {
        self.double.states().get(self.name(chat).as_str()).copied().unwrap_or("absent")
    }

    pub(crate) fn after(&self, time: Duration) {
        self.clock.advance_ms(i64::try_from(time.as_millis()).expect("a test's time is short"));
    }

    /// Inserts a row as another host could have left it.
    pub(crate) async fn insert(&self, chat: &str, change: impl FnOnce(&mut SandboxRow)) -> Result<SandboxRow> {
        let of = conversation(chat);
        let mut row = SandboxRow {
            id: SandboxInstanceId::new(),
            workspace_id: self.workspace,
            bot_id: self.bot,
            provider: "double".to_owned(),
            sandbox_id: of.sandbox_id(),
            app_id: Some(of.app_id().to_owned()),
            user_id: Some(of.user_id().to_owned()),
            chat_id: Some(of.chat_id().to_owned()),
            node: Some(NODE.to_owned()),
            status: SandboxStatus::Running,
            operation: None,
            operation_until: None,
            last_active_at: NOW,
            created_at: NOW,
            limit: None,
            network: None,
            error: None,
            attempts: 0,
            next_attempt_at: None,
            labels: Some(Labels::none()),
        };
        change(&mut row);
        assert!(self.store.insert_sandbox(&row).await?, "the bot of the sandbox does not exist");
        Ok(row)
    }
}

pub(crate) fn conversation(chat: &str) -> Conversation {
    Conversation::new("app", "user", chat).expect("it is short and plain")
}

pub(crate) async fn bot_in(store: &Store, workspace: WorkspaceId, name: &str) -> Result<BotId> {
    let row = BotRow {
        id: BotId::new(),
        workspace_id: workspace,
        name: name.to_owned(),
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
    };
    store.insert_bot(&row).await?;
    Ok(row.id)
}

pub(crate) async fn workspace_named(store: &Store, name: &str) -> Result<WorkspaceId> {
    let id = WorkspaceId::new();
    let row = WorkspaceRow { id, name: name.to_owned(), sandbox: None, created_at: NOW, updated_at: NOW };
    store.insert_workspace(&row).await?;
    Ok(id)
}

/// Describes a failure.
pub(crate) fn words<T>(result: Result<T, AccessError>) -> String {
    match result {
        Ok(_) => "no fault".to_owned(),
        Err(AccessError::Unavailable(words)) => format!("unavailable: {words}"),
        Err(fault) => fault.to_string(),
    }
}
