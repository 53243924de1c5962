//! Which conversation has which sandbox: made when it is first used, stopped when nobody uses it, deleted on demand.
//!
//! What is decided here stands in rows, which change by compare-and-swap, so that several processes on one database agree
//! on who does what; the provider does it. Whether a bot may have a sandbox at all is not decided here.

mod activity;
mod conversation;
mod deletion;
mod file_turns;
mod kept;
mod open;
mod reaper;
mod reconcile;
mod room;
mod settings;
mod shares;
mod starting;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use monstrum_sandbox::{
    Capabilities, ExecOutput, ExecRequest, Feed, SandboxError, SandboxName, SandboxProvider, Spec, Unavailable,
};
use monstrum_store::{Listed, Page, SandboxFilter, SandboxRow, Store, StoreError};
use monstrum_types::{BotId, Clock, SandboxInstanceId, WorkspaceId};
use tokio::sync::{Mutex, Notify, RwLock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::SandboxSettings;
use crate::plugins::with_causes;
use activity::Activities;

pub use conversation::{Conversation, InvalidConversation, PART_BYTES_MAX};
pub use file_turns::{FREE_BYTES, FileTurns, Turn};
pub use kept::Kept;
pub use open::Open;
pub use reconcile::ASIDE_KEPT_MS;
pub use settings::{SandboxLimits, WorkspaceSandbox};

/// How long one operation on a sandbox counts as under way. Longer than any may take, so that whoever is not heard of
/// for so long is dead.
const LEASE_MS: i64 = 90_000;

/// Why there is no answer of a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No provider can be used now; the same request may succeed later.
    #[error(transparent)]
    Unavailable(Unavailable),
    #[error("there is no such sandbox")]
    NotFound,
    /// The conversation is another user's.
    #[error("this conversation has a sandbox with another user")]
    OtherUser,
    /// The name of the sandbox is taken by what it must not be shared with.
    #[error("{0}")]
    Conflict(&'static str),
    /// It ran once, and the provider no longer has its files: they are not replaced by empty ones.
    #[error("the files of the sandbox are missing on the server")]
    Lost,
    /// The workspace keeps as many sandboxes as it may.
    #[error("{0}")]
    Limit(String),
    #[error(transparent)]
    Provider(SandboxError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

impl Fault {
    fn unavailable(message: impl Into<String>) -> Fault {
        Fault::Unavailable(Unavailable::new(message))
    }
}

impl From<SandboxError> for Fault {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unavailable(reason) => Fault::Unavailable(reason),
            other => Fault::Provider(other),
        }
    }
}

/// The sandboxes of this host.
pub struct Sandboxes {
    provider: Result<Arc<dyn SandboxProvider>, SandboxError>,
    /// The data folder of this host.
    node: String,
    /// Whether every host on the database reaches the provider's sandboxes, and not this one only.
    is_shared: bool,
    store: Store,
    clock: Arc<dyn Clock>,
    settings: SandboxSettings,
    activities: Activities,
    /// Sandboxes in which nothing has run since they were started, for somebody looked at their files.
    quiet: std::sync::Mutex<HashSet<SandboxInstanceId>>,
    /// Held while a sandbox is counted and claimed, so that no more run than may.
    claiming: Mutex<()>,
    /// Held by whoever found no room until it has its place.
    making_room: Mutex<()>,
    /// Held for writing while rows and provider are compared: nothing is started meanwhile.
    comparing: RwLock<()>,
    /// A row has moved on.
    moved: Notify,
    /// A deletion is due.
    deletion: Notify,
    /// The sweep is due before its time.
    sweep: Notify,
    /// Switches of bots may have changed.
    switched: Notify,
    /// What no caller can cancel.
    running: TaskTracker,
    closing: CancellationToken,
}

/// Where a host keeps its sandboxes.
pub struct Place {
    /// The data folder of this host.
    pub node: String,
    /// Whether every host on the database reaches the provider's sandboxes, and not this one only.
    pub is_shared: bool,
}

impl Sandboxes {
    /// Sandboxes of a provider, or of none, and why.
    pub fn new(
        provider: Result<Arc<dyn SandboxProvider>, SandboxError>,
        place: Place,
        store: Store,
        clock: Arc<dyn Clock>,
        settings: SandboxSettings,
    ) -> Arc<Sandboxes> {
        Arc::new(Sandboxes {
            provider,
            node: place.node,
            is_shared: place.is_shared,
            store,
            activities: Activities::new(Arc::clone(&clock)),
            clock,
            settings,
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

    /// What the provider really has. Fails where there is none that could be used, with the reason.
    pub fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        match &self.provider {
            Ok(provider) => provider.capabilities(),
            Err(error) => Err(error.clone()),
        }
    }

    /// Runs a command in the sandbox of a conversation, which is made or resumed for it.
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

    /// The sandbox of a conversation in this workspace, if it has one; with a bot, only where it is that bot's.
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

    /// A sandbox of this workspace; with a bot, only where it is that bot's.
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

    /// What a sandbox of this workspace would be started with.
    pub async fn spec(&self, workspace: WorkspaceId) -> Result<Spec, StoreError> {
        Ok(self.settings_of(workspace).await?.spec(&self.settings))
    }

    fn quiet(&self) -> std::sync::MutexGuard<'_, HashSet<SandboxInstanceId>> {
        self.quiet.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn provider(&self) -> Result<&Arc<dyn SandboxProvider>, Fault> {
        if self.closing.is_cancelled() {
            return Err(Fault::unavailable("the server is shutting down"));
        }
        self.provider.as_ref().map_err(|error| error.clone().into())
    }

    /// The workspace's settings. One that is gone has none; one whose row is not the one that was sealed is refused.
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

/// Whether the provider has made the sandbox of a row at some time: only then is what is missing lost.
fn has_run(row: &SandboxRow) -> bool {
    row.limit.is_some()
}

/// What a provider did within `max`; one that takes longer cannot be used at present.
async fn within<T>(
    max: Duration,
    what: &str,
    work: impl Future<Output = Result<T, SandboxError>>,
) -> Result<T, SandboxError> {
    let late = || SandboxError::unavailable(format!("the sandbox was not {what} within {} s", max.as_secs()));
    tokio::time::timeout(max, work).await.unwrap_or_else(|_| Err(late()))
}

/// An error with its causes as rows and the log have it: bounded and without control characters, since it may quote the
/// output of a program in a sandbox.
fn described(error: &SandboxError) -> String {
    const CHARS_MAX: usize = 300;
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    with_causes(error).chars().take(CHARS_MAX).map(plain).collect()
}

/// A name for an operation that nobody else has.
fn operation() -> String {
    uuid::Uuid::now_v7().to_string()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn error_of_a_row_has_its_causes_and_is_bounded() {
        let error = SandboxError::unavailable_because("the sandbox did not start", io::Error::other("no\nspace"));
        assert_eq!(described(&error), "the sandbox did not start: no space");
        assert_eq!(described(&SandboxError::Exhausted("x".repeat(400))).len(), 300);
    }
}
