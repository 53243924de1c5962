//! Sandboxes: which conversation has which, in what state it is, and who works on it.
//!
//! A row changes by compare-and-swap on its status, its operation and its last activity, so that of several hosts one
//! goes ahead and the others look again. It stays until the provider has deleted the sandbox, whatever becomes of its
//! bot and its workspace.

mod deletion;
mod upkeep;

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{ATTEMPTS_MAX, Arg, FromRow, Row, args, unfit, values};
use crate::rows::{Authentic, Scope, Table, insert};
use crate::{Listed, Page, Store, StoreError};

pub use upkeep::RunningSandboxes;

/// Where a sandbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxStatus {
    /// On its way to running, for the first time or again.
    Creating,
    Running,
    Stopping,
    Stopped,
    /// Its deletion is a job, which is tried until it is done.
    Deleting,
    /// The provider has not made it run; what it has of it is not known.
    Error,
    /// It ran once, and the provider no longer has its files. It is not made anew: a caller would take the empty sandbox
    /// for the one that it knows.
    Lost,
}

impl SandboxStatus {
    /// The word for it in every answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SandboxStatus::Creating => "creating",
            SandboxStatus::Running => "running",
            SandboxStatus::Stopping => "stopping",
            SandboxStatus::Stopped => "stopped",
            SandboxStatus::Deleting => "deleting",
            SandboxStatus::Error => "error",
            SandboxStatus::Lost => "lost",
        }
    }

    /// The word for it in the column `status`; `lost` is a column of its own.
    fn stored(self) -> &'static str {
        match self {
            SandboxStatus::Lost => SandboxStatus::Error.as_str(),
            status => status.as_str(),
        }
    }

    /// The status that goes by `word`.
    #[must_use]
    pub fn of_word(word: &str) -> Option<SandboxStatus> {
        Some(match word {
            "creating" => SandboxStatus::Creating,
            "running" => SandboxStatus::Running,
            "stopping" => SandboxStatus::Stopping,
            "stopped" => SandboxStatus::Stopped,
            "deleting" => SandboxStatus::Deleting,
            "error" => SandboxStatus::Error,
            "lost" => SandboxStatus::Lost,
            _ => return None,
        })
    }

    fn from_word(word: &str) -> Result<SandboxStatus, StoreError> {
        SandboxStatus::of_word(word).ok_or_else(|| unfit("status", "no status of a sandbox"))
    }
}

/// Which sandboxes to list. None means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    pub bot: Option<BotId>,
    pub status: Option<SandboxStatus>,
    pub app_id: Option<String>,
    pub chat_id: Option<String>,
}

/// A row of `sandbox_instances`.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxInstanceId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The provider's name.
    pub provider: String,
    /// 16 hex digits, unique in the workspace and for the provider.
    pub sandbox_id: String,
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    pub chat_id: Option<String>,
    /// The data folder whose host has the sandbox; `None` where every host reaches it.
    pub node: Option<String>,
    pub status: SandboxStatus,
    /// Who is working on it.
    pub operation: Option<String>,
    /// Until when that counts.
    pub operation_until: Option<UtcMillis>,
    pub last_active_at: UtcMillis,
    pub created_at: UtcMillis,
    /// The limits that it was last started with.
    pub limit: Option<Value>,
    /// The network that it was last started with.
    pub network: Option<String>,
    /// Why it is in error, or why it was not stopped or deleted yet.
    pub error: Option<String>,
    /// How often its deletion was tried.
    pub attempts: i64,
    /// When its deletion is tried again.
    pub next_attempt_at: Option<UtcMillis>,
}

impl SandboxRow {
    /// Whether somebody works on it at `now`. Whoever claimed it and has not been heard of since is taken for dead.
    #[must_use]
    pub fn is_claimed(&self, now: UtcMillis) -> bool {
        self.operation.is_some() && self.operation_until.is_some_and(|until| now < until)
    }
}

/// How an operation on a sandbox has ended.
#[derive(Clone, Debug)]
pub struct SandboxSettled {
    pub status: SandboxStatus,
    /// The row's own where it is `None`.
    pub last_active_at: Option<UtcMillis>,
    pub error: Option<String>,
    /// What it was started with; the row's own where it is `None`.
    pub limit: Option<Value>,
    pub network: Option<String>,
}

macro_rules! columns {
    () => {
        "id, workspace_id, bot_id, provider, sandbox_id, app_id, user_id, chat_id, node, status, operation, \
         operation_until, last_active_at, created_at, \"limit\", network, error, attempts, next_attempt_at, lost, \
         mac"
    };
}
pub(crate) use columns;

const BY_ID: &str = concat!("select ", columns!(), " from sandbox_instances where workspace_id = $1 and id = $2");
const BY_NAME: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where workspace_id = $1 and provider = $2 and sandbox_id = $3"
);
const BY_CONVERSATION: &str =
    concat!("select ", columns!(), " from sandbox_instances where workspace_id = $1 and app_id = $2 and chat_id = $3");
const PAGE: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 is null or $3 = case when status = 'error' and lost then 'lost' else status end) \
     and ($4 is null or app_id = $4) and ($5 is null or chat_id = $5) and id > $6 order by id limit $7"
);

impl FromRow for SandboxRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(SandboxRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            bot_id: row.id("bot_id")?,
            provider: row.text("provider")?,
            sandbox_id: row.text("sandbox_id")?,
            app_id: row.text_opt("app_id")?,
            user_id: row.text_opt("user_id")?,
            chat_id: row.text_opt("chat_id")?,
            node: row.text_opt("node")?,
            status: match SandboxStatus::from_word(&row.text("status")?)? {
                SandboxStatus::Error if row.flag("lost")? => SandboxStatus::Lost,
                status => status,
            },
            operation: row.text_opt("operation")?,
            operation_until: row.time_opt("operation_until")?,
            last_active_at: row.time("last_active_at")?,
            created_at: row.time("created_at")?,
            limit: row.json_opt("limit")?,
            network: row.text_opt("network")?,
            error: row.text_opt("error")?,
            attempts: row.int("attempts")?,
            next_attempt_at: row.time_opt("next_attempt_at")?,
        })
    }
}

impl Authentic for SandboxRow {
    const TABLE: Table = Table::SandboxInstances;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            self.bot_id,
            &self.provider,
            &self.sandbox_id,
            &self.app_id,
            &self.user_id,
            &self.chat_id,
            &self.node
        ]
    }
}

impl Store {
    /// Adds a sandbox; whether its bot is still there. The bot's row is held meanwhile: whoever deletes the bot finds this
    /// one among its sandboxes, or this one does not come to be.
    pub async fn insert_sandbox(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        let mut attempt = 1;
        loop {
            match self.try_insert_sandbox(row).await {
                Err(error) if error.is_contention() && attempt < ATTEMPTS_MAX => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_insert_sandbox(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        let mut session = self.db.write().await?;
        let hold = "update bots set name = name where workspace_id = $1 and id = $2";
        if session.run(hold, args![row.workspace_id, row.bot_id]).await? == 0 {
            return Ok(false);
        }
        insert(&mut session, self.rows()?, row, left_out(row), Vec::new()).await?;
        session.commit().await?;
        Ok(true)
    }

    /// The sandbox of this id.
    pub async fn sandbox(
        &self,
        workspace: WorkspaceId,
        id: SandboxInstanceId,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// The sandbox that a provider knows by `sandbox_id`.
    pub async fn sandbox_of_provider(
        &self,
        workspace: WorkspaceId,
        provider: &str,
        sandbox_id: &str,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_NAME, args![workspace, provider, sandbox_id]).await
    }

    /// The sandbox of a conversation, whoever it is with.
    pub async fn sandbox_of_conversation(
        &self,
        workspace: WorkspaceId,
        app_id: &str,
        chat_id: &str,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_CONVERSATION, args![workspace, app_id, chat_id]).await
    }

    /// A page of the workspace's sandboxes, of one bot or of all.
    pub async fn sandboxes(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        page: &Page<SandboxInstanceId>,
    ) -> Result<Listed<SandboxRow, SandboxInstanceId>, StoreError> {
        self.sandboxes_by(workspace, &SandboxFilter { bot, ..SandboxFilter::default() }, page).await
    }

    /// The same of those that fit a filter.
    pub async fn sandboxes_by(
        &self,
        workspace: WorkspaceId,
        filter: &SandboxFilter,
        page: &Page<SandboxInstanceId>,
    ) -> Result<Listed<SandboxRow, SandboxInstanceId>, StoreError> {
        let SandboxFilter { bot, status, app_id, chat_id } = filter;
        let status = status.map(SandboxStatus::as_str);
        let (app_id, chat_id) = (app_id.as_deref(), chat_id.as_deref());
        self.authentic_page(PAGE, values![workspace, *bot, status, app_id, chat_id], page).await
    }

    /// Takes it on oneself, as `operation`, to bring the sandbox to `status`, up to `until`. The row must stand as `row`
    /// says; of all that ask at once one may, and the others look again.
    pub async fn claim_sandbox(
        &self,
        row: &SandboxRow,
        status: SandboxStatus,
        operation: &str,
        until: UtcMillis,
    ) -> Result<bool, StoreError> {
        let sql = "update sandbox_instances set status = $5, operation = $6, operation_until = $7 \
                   where id = $1 and status = $2 and operation is not distinct from $3 and last_active_at = $4";
        let args =
            args![row.id, row.status.stored(), &row.operation, row.last_active_at, status.stored(), operation, until];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Ends an operation that brought the sandbox to `from`; whether it was still the one at work. Where the sandbox is to
    /// be deleted by now, or somebody else has taken over, nothing is written.
    pub async fn settle_sandbox(
        &self,
        id: SandboxInstanceId,
        operation: &str,
        from: SandboxStatus,
        settled: &SandboxSettled,
    ) -> Result<bool, StoreError> {
        let sql = "update sandbox_instances set status = $4, operation = null, operation_until = null, error = $6, \
                   lost = $9, \
                   last_active_at = case when $5 is null then last_active_at else $5 end, \
                   \"limit\" = case when $7 is null then \"limit\" else $7 end, \
                   network = case when $8 is null then network else $8 end \
                   where id = $1 and operation = $2 and status = $3";
        let args = args![
            id,
            operation,
            from.stored(),
            settled.status.stored(),
            settled.last_active_at,
            &settled.error,
            &settled.limit,
            &settled.network,
            settled.status == SandboxStatus::Lost,
        ];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Lets go of a sandbox as it stands.
    pub async fn release_sandbox(&self, id: SandboxInstanceId, operation: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set operation = null, operation_until = null \
                   where id = $1 and operation = $2";
        self.db.run(sql, args![id, operation]).await?;
        Ok(())
    }

    /// Notes that a sandbox is in use at `now`; whether it still runs.
    pub async fn touch_sandbox(&self, id: SandboxInstanceId, now: UtcMillis) -> Result<bool, StoreError> {
        Ok(self.db.run(TOUCH, args![id, now]).await? > 0)
    }

    /// Notes when sandboxes were last in use, all at once. Those that no longer run are left alone.
    pub async fn touch_sandboxes(&self, uses: &[(SandboxInstanceId, UtcMillis)]) -> Result<(), StoreError> {
        let mut session = self.db.write().await?;
        for (id, at) in uses {
            session.run(TOUCH, args![*id, *at]).await?;
        }
        session.commit().await
    }
}

/// Never back: hosts have clocks of their own.
const TOUCH: &str = "update sandbox_instances set last_active_at = case when last_active_at < $2 then $2 \
                     else last_active_at end where id = $1 and status = 'running'";

/// The columns that are not under the MAC, in the order of the table.
fn left_out(row: &SandboxRow) -> Vec<Arg<'_>> {
    values![
        row.status.stored(),
        &row.operation,
        row.operation_until,
        row.last_active_at,
        row.created_at,
        &row.limit,
        &row.network,
        &row.error,
        row.attempts,
        row.next_attempt_at,
        row.status == SandboxStatus::Lost,
    ]
}
