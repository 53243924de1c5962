//! The sandboxes of conversations. The host creates a sandbox when it is first used, stops it when it is idle, and
//! deletes it on request.
//!
//! The rows of the database contain the decisions about sandboxes. Each row changes by compare-and-swap, so that
//! several hosts on one database agree. The provider carries out these decisions. The policy decides whether a bot may
//! have a sandbox.

mod activity;
mod conversation;
mod deletion;
mod file_turns;
mod kept;
mod open;
pub mod options;
pub mod outputs;
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

use monstrum_sandbox::{
    Capabilities, ExecOutput, ExecRequest, Feed, SandboxError, SandboxName, SandboxProvider, Spec, Unavailable,
};
use monstrum_store::{Listed, Page, SandboxFilter, SandboxRow, Store, StoreError};
use monstrum_types::{BotId, Clock, Labels, SandboxInstanceId, WorkspaceId, WorkspaceSandbox, with_causes};
use tokio::sync::{Mutex, Notify, RwLock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use activity::Activities;
use room::RoomLocks;

pub use conversation::{Conversation, InvalidConversation, PART_BYTES_MAX};
pub use file_turns::{FileTurns, Turn, needs_turn};
pub use kept::Kept;
pub use open::Open;
pub use options::Options;
pub use reconcile::ASIDE_KEPT_MS;
pub use settings::out_of_range;

/// The duration of the lease of one operation on a sandbox, in milliseconds. No operation takes this long, so a host
/// whose lease has expired must have ended.
const LEASE_MS: i64 = 90_000;

/// The reason why a sandbox did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No provider is available. The same request may succeed later.
    #[error(transparent)]
    Unavailable(Unavailable),
    #[error("the sandbox does not exist")]
    NotFound,
    /// The conversation belongs to another user.
    #[error("the sandbox of this conversation belongs to another user")]
    OtherUser,
    /// The sandbox of this name belongs to another conversation or bot.
    #[error("{0}")]
    Conflict(&'static str),
    /// The sandbox ran before, but the provider no longer has its files. The host does not replace it with an empty
    /// sandbox.
    #[error("the files of the sandbox are missing on the server")]
    Lost,
    /// The workspace has reached its limit of sandboxes or disk space.
    #[error("{0}")]
    Limit(String),
    #[error(transparent)]
    Provider(SandboxError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

impl AccessError {
    fn unavailable(message: impl Into<String>) -> AccessError {
        AccessError::Unavailable(Unavailable::new(message))
    }
}

impl From<SandboxError> for AccessError {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unavailable(reason) => AccessError::Unavailable(reason),
            other => AccessError::Provider(other),
        }
    }
}

/// The sandboxes of this host.
pub struct Sandboxes {
    provider: Result<Arc<dyn SandboxProvider>, SandboxError>,
    /// The id of this host's data folder.
    node: String,
    /// Whether every host on the database can reach the provider's sandboxes.
    is_shared: bool,
    store: Store,
    clock: Arc<dyn Clock>,
    options: Options,
    activities: Activities,
    /// The sandboxes in which no command has run since the start of the sandbox. Callers have only accessed their
    /// files.
    quiet: parking_lot::Mutex<HashSet<SandboxInstanceId>>,
    /// A lock that a claim holds while it counts running sandboxes and claims a place, so that concurrent claims do not
    /// exceed the limit.
    claiming: Mutex<()>,
    /// The locks for claims that found no place. A claim holds a lock until it has a place or gives up.
    making_room: RoomLocks,
    /// A lock that is held for writing while rows are compared with the provider, so that no sandbox starts during the
    /// comparison.
    comparing: RwLock<()>,
    /// A notification that a row has changed.
    moved: Notify,
    /// A notification that a deletion is due.
    deletion: Notify,
    /// A notification that the next sweep must not wait for its interval.
    sweep: Notify,
    /// A notification that switches of bots may have changed.
    switched: Notify,
    /// The tasks that no caller can cancel.
    running: TaskTracker,
    closing: CancellationToken,
}

/// The location of a host's sandboxes.
pub struct Place {
    /// The id of this host's data folder.
    pub node: String,
    /// Whether every host on the database can reach the provider's sandboxes.
    pub is_shared: bool,
}

impl Sandboxes {
    /// Creates the service for a provider's sandboxes. If the host has no provider, `provider` is an error with the
    /// reason.
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
            quiet: parking_lot::Mutex::default(),
            claiming: Mutex::new(()),
            making_room: RoomLocks::default(),
            comparing: RwLock::new(()),
            moved: Notify::new(),
            deletion: Notify::new(),
            sweep: Notify::new(),
            switched: Notify::new(),
            running: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Returns the capabilities of the provider. If no provider is available, returns an error with the reason.
    pub fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        match &self.provider {
            Ok(provider) => provider.capabilities(),
            Err(error) => Err(error.clone()),
        }
    }

    /// Runs a command in the sandbox of a conversation. Creates or resumes the sandbox if necessary.
    pub async fn exec(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        of: &Conversation,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, AccessError> {
        self.of_conversation(workspace, bot, of).await?.exec(request, feed).await
    }

    /// Finds the sandbox of a conversation in this workspace. If `bot` is set, the sandbox must belong to that bot.
    pub async fn find(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
        chat_id: &str,
    ) -> Result<Option<SandboxRow>, AccessError> {
        let row = self.store.sandbox_of_conversation(workspace, app_id, chat_id).await?;
        Ok(row.filter(|row| bot.is_none_or(|bot| row.bot_id == bot)))
    }

    /// Adds to the labels of a sandbox, before something with these labels is written to it.
    pub async fn add_labels(&self, row: &SandboxRow, labels: &Labels) -> Result<(), StoreError> {
        // Labels only grow, so the row may be older.
        let known = row.known_labels();
        if known == known.clone().with(labels) { Ok(()) } else { self.store.add_sandbox_labels(row, labels).await }
    }

    /// Returns the labels of what was written to a sandbox: every label if it was deleted.
    pub async fn labels(&self, row: &SandboxRow) -> Result<Labels, StoreError> {
        let row = self.store.sandbox(row.workspace_id, row.id).await?;
        Ok(row.map_or(Labels::ALL, |row| row.known_labels()))
    }

    /// Finds a sandbox of this workspace by its id. If `bot` is set, the sandbox must belong to that bot.
    pub async fn get(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        id: SandboxInstanceId,
    ) -> Result<SandboxRow, AccessError> {
        let row = self.store.sandbox(workspace, id).await?;
        row.filter(|row| bot.is_none_or(|bot| row.bot_id == bot)).ok_or(AccessError::NotFound)
    }

    /// Lists a page of the workspace's sandboxes.
    pub async fn list(
        &self,
        workspace: WorkspaceId,
        filter: &SandboxFilter,
        page: &Page<SandboxInstanceId>,
    ) -> Result<Listed<SandboxRow, SandboxInstanceId>, AccessError> {
        Ok(self.store.sandboxes(workspace, filter, page).await?)
    }

    /// Returns the parameters with which a sandbox of this workspace would start.
    pub async fn spec(&self, workspace: WorkspaceId) -> Result<Spec, StoreError> {
        Ok(settings::spec(&self.settings_of(workspace).await?, &self.options))
    }

    fn provider(&self) -> Result<&Arc<dyn SandboxProvider>, AccessError> {
        if self.closing.is_cancelled() {
            return Err(AccessError::unavailable("the server is shutting down"));
        }
        self.provider.as_ref().map_err(|error| error.clone().into())
    }

    /// Reads the settings of a workspace. Returns the defaults if the workspace was deleted, and an error if its row
    /// fails verification.
    async fn settings_of(&self, workspace: WorkspaceId) -> Result<WorkspaceSandbox, StoreError> {
        let row = self.store.verified_workspace(workspace).await?;
        let Some(settings) = row.and_then(|row| row.sandbox) else { return Ok(WorkspaceSandbox::default()) };
        serde_json::from_value(settings)
            .map_err(|error| StoreError::Corrupt { what: format!("the workspace's sandbox settings: {error}") })
    }
}

/// Returns the provider's name for the sandbox of a row.
fn name(row: &SandboxRow) -> SandboxName {
    SandboxName::new(row.workspace_id, &row.sandbox_id)
}

/// Returns whether the provider has ever created the sandbox of a row. Only such a sandbox is lost if its files are
/// missing.
fn has_run(row: &SandboxRow) -> bool {
    row.limit.is_some()
}

/// Waits for a provider for at most `max`. After that time, returns the error for an unavailable provider.
async fn within<T>(
    max: Duration,
    what: &str,
    work: impl Future<Output = Result<T, SandboxError>>,
) -> Result<T, SandboxError> {
    let late = || SandboxError::unavailable(format!("the sandbox provider did not {what} within {} s", max.as_secs()));
    tokio::time::timeout(max, work).await.unwrap_or_else(|_| Err(late()))
}

/// Formats an error and its causes for the row and the log. Truncates the text and removes control characters, because
/// the text may quote the output of a program in a sandbox.
fn described(error: &SandboxError) -> String {
    const CHARS_MAX: usize = 300;
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    with_causes(error).chars().take(CHARS_MAX).map(plain).collect()
}

/// Returns a unique name for an operation.
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
