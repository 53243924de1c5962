//! The sandboxes of conversations: created on first use, stopped when idle, deleted on demand.
//!
//! Every decision is stored in a row that changes by compare-and-swap, so that several processes on one database agree;
//! the provider carries the decision out. Whether a bot may have a sandbox is decided elsewhere.

mod activity;
mod conversation;
mod deletion;
mod file_turns;
mod kept;
mod open;
pub mod options;
pub mod prompt;
mod reaper;
mod reconcile;
mod room;
mod settings;
mod shares;
mod starting;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use monstrum_sandbox::{Capabilities, ExecOutput, ExecRequest, Feed, SandboxError, SandboxName, SandboxProvider, Spec};
use monstrum_store::{Listed, Page, SandboxFilter, SandboxRow, Store, StoreError};
use monstrum_types::{BotId, Clock, SandboxInstanceId, WorkspaceId, WorkspaceSandbox};
use tokio::sync::{Mutex, Notify, RwLock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use activity::Activities;

pub use conversation::{Conversation, InvalidConversation, PART_BYTES_MAX};
pub use file_turns::{FREE_BYTES, FileTurns, Turn};
pub use kept::Kept;
pub use open::Open;
pub use options::Options;
pub use reconcile::ASIDE_KEPT_MS;
pub use settings::out_of_range;

/// The lease of an operation on a sandbox. It is longer than any operation may take, so a claim older than its lease has
/// expired.
const LEASE_MS: i64 = 90_000;

/// Why a sandbox could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The provider is unavailable; a retry may succeed later.
    #[error("{0}")]
    Unavailable(String),
    #[error("there is no such sandbox")]
    NotFound,
    /// The sandbox of the conversation belongs to another user.
    #[error("this conversation has a sandbox with another user")]
    OtherUser,
    /// The name of the sandbox is in use by a conversation or bot that must not share it.
    #[error("{0}")]
    Conflict(&'static str),
    /// The sandbox ran before, but the provider no longer has its files. They are not replaced by an empty sandbox.
    #[error("the files of the sandbox are missing on the server")]
    Lost,
    /// The workspace has reached the limit of sandboxes that it keeps.
    #[error("{0}")]
    Limit(String),
    #[error(transparent)]
    Provider(SandboxError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

impl From<SandboxError> for Fault {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unavailable(words) => Fault::Unavailable(words),
            other => Fault::Provider(other),
        }
    }
}

/// The sandboxes of this host.
pub struct Sandboxes {
    provider: Result<Arc<dyn SandboxProvider>, SandboxError>,
    /// The data folder of this host.
    node: String,
    /// Whether every host on the database, and not only this one, reaches the provider's sandboxes.
    is_shared: bool,
    store: Store,
    clock: Arc<dyn Clock>,
    options: Options,
    activities: Activities,
    /// Sandboxes that were started only to access their files, so that no command has run in them.
    quiet: std::sync::Mutex<HashSet<SandboxInstanceId>>,
    /// Held while running sandboxes are counted and one is claimed, so that the limit is never exceeded.
    claiming: Mutex<()>,
    /// Held by a claim that found no free place until it has one.
    making_room: Mutex<()>,
    /// Held for writing while rows and provider are compared, so that no sandbox starts meanwhile.
    comparing: RwLock<()>,
    /// Notified when a row has changed.
    moved: Notify,
    /// Notified when a deletion is due.
    deletion: Notify,
    /// Notified when a sweep is due early.
    sweep: Notify,
    /// Notified when switches of bots may have changed.
    switched: Notify,
    /// Tasks that no caller can cancel.
    running: TaskTracker,
    closing: CancellationToken,
}

/// The place of a host's sandboxes.
pub struct Place {
    /// The data folder of this host.
    pub node: String,
    /// Whether every host on the database, and not only this one, reaches the provider's sandboxes.
    pub is_shared: bool,
}

impl Sandboxes {
    /// Sandboxes of this provider, or the reason why there is no provider.
    pub fn new(
        provider: Result<Arc<dyn SandboxProvider>, SandboxError>,
        place: Place,
        store: Store,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Arc<Sandboxes> {
        Arc::new(Sandboxes {
            provider,
            node: place.node,
            is_shared: place.is_shared,
            store,
            activities: Activities::new(Arc::clone(&clock)),
            clock,
            options,
            quiet: std::sync::Mutex::default(),
            claiming: Mutex::new(()),
            making_room: Mutex::new(()),
            comparing: RwLock::new(()),
            moved: Notify::new(),
            deletion: Notify::new(),
            sweep: Notify::new(),
            switched: Notify::new(),
            running: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// The capabilities of the provider; the error is the reason why it is unavailable.
    pub fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        match &self.provider {
            Ok(provider) => provider.capabilities(),
            Err(error) => Err(error.clone()),
        }
    }

    /// Runs a command in the sandbox of a conversation, which is created or resumed if necessary.
    pub async fn exec(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        of: &Conversation,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, Fault> {
        self.of_conversation(workspace, bot, of).await?.exec(request, feed).await
    }

    /// The sandbox of a conversation in this workspace, if there is one. With a bot, only a sandbox of that bot.
    pub async fn find(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
        chat_id: &str,
    ) -> Result<Option<SandboxRow>, Fault> {
        let row = self.store.sandbox_of_conversation(workspace, app_id, chat_id).await?;
        Ok(row.filter(|row| bot.is_none_or(|bot| row.bot_id == bot)))
    }

    /// A sandbox of this workspace. With a bot, only a sandbox of that bot.
    pub async fn get(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        id: SandboxInstanceId,
    ) -> Result<SandboxRow, Fault> {
        let row = self.store.sandbox(workspace, id).await?;
        row.filter(|row| bot.is_none_or(|bot| row.bot_id == bot)).ok_or(Fault::NotFound)
    }

    /// A page of the sandboxes of this workspace.
    pub async fn list(
        &self,
        workspace: WorkspaceId,
        filter: &SandboxFilter,
        page: &Page<SandboxInstanceId>,
    ) -> Result<Listed<SandboxRow, SandboxInstanceId>, Fault> {
        Ok(self.store.sandboxes_by(workspace, filter, page).await?)
    }

    /// The spec with which a sandbox of this workspace would be started.
    pub async fn spec(&self, workspace: WorkspaceId) -> Result<Spec, StoreError> {
        Ok(settings::spec(&self.settings_of(workspace).await?, &self.options))
    }

    fn quiet(&self) -> std::sync::MutexGuard<'_, HashSet<SandboxInstanceId>> {
        self.quiet.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn provider(&self) -> Result<&Arc<dyn SandboxProvider>, Fault> {
        if self.closing.is_cancelled() {
            return Err(Fault::Unavailable("the server is shutting down".to_owned()));
        }
        self.provider.as_ref().map_err(|error| error.clone().into())
    }

    /// The settings of a workspace; the defaults for a deleted workspace. A row that does not match its seal is an error.
    async fn settings_of(&self, workspace: WorkspaceId) -> Result<WorkspaceSandbox, StoreError> {
        let row = self.store.verified_workspace(workspace).await?;
        let Some(settings) = row.and_then(|row| row.sandbox) else { return Ok(WorkspaceSandbox::default()) };
        serde_json::from_value(settings)
            .map_err(|error| StoreError::Corrupt { what: format!("the workspace's settings of sandboxes: {error}") })
    }
}

/// The provider's name for the sandbox of a row.
fn name(row: &SandboxRow) -> SandboxName {
    SandboxName::new(row.workspace_id, &row.sandbox_id)
}

/// Whether the provider has ever created the sandbox of a row. Only then missing files are lost.
fn has_run(row: &SandboxRow) -> bool {
    row.limit.is_some()
}

/// Waits for the provider up to `max`. After that it counts as unavailable.
async fn within<T>(
    max: Duration,
    what: &str,
    work: impl Future<Output = Result<T, SandboxError>>,
) -> Result<T, SandboxError> {
    let late = || SandboxError::Unavailable(format!("the sandbox was not {what} within {} s", max.as_secs()));
    tokio::time::timeout(max, work).await.unwrap_or_else(|_| Err(late()))
}

/// The text of an error for rows and the log. A provider may repeat output of a sandbox, so the text is cut and cleaned.
fn told(error: &SandboxError) -> String {
    const CHARS_MAX: usize = 300;
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    error.to_string().chars().take(CHARS_MAX).map(plain).collect()
}

/// A unique name for an operation.
fn operation() -> String {
    uuid::Uuid::now_v7().to_string()
}
