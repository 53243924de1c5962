//! Sandboxes: their conversations, states and leases.
//!
//! An operation leases a sandbox with a compare-and-swap on its status, its current operation and its last activity. If
//! several hosts try concurrently, one host succeeds and all other hosts must read the row again. A row is kept until
//! the provider has deleted the sandbox, even if the bot or workspace of the sandbox is deleted earlier.

mod deletion;
mod outputs;
mod upkeep;

use monstrum_types::{BotId, Labels, SandboxInstanceId, UtcMillis, WorkspaceId, words};
use serde_json::Value;

use crate::db::{Arg, ColumnValue, Row, args, retry, values};
use crate::rows::{Scope, authentic, change, insert};
use crate::{Listed, Page, Store, StoreError};

pub use outputs::{SandboxOutputRow, SandboxOutputsMax};
pub use upkeep::RunningSandboxes;

words! {
    /// The state of a sandbox.
    pub enum SandboxStatus {
        /// The sandbox is starting, either for the first time or again.
        Creating = "creating",
        Running = "running",
        Stopping = "stopping",
        Stopped = "stopped",
        /// The sandbox is marked for deletion. The deletion is retried until it succeeds.
        Deleting = "deleting",
        /// The provider failed to start the sandbox, and the actual state of the sandbox is unknown.
        Error = "error",
        /// The sandbox ran before, but the provider has lost its files. The host does not create the sandbox again,
        /// because callers would mistake the empty sandbox for the old sandbox.
        Lost = "lost",
    }
}

impl SandboxStatus {
    /// Returns the value of the `status` column. The status `lost` is stored in the column `lost`.
    fn stored(self) -> &'static str {
        match self {
            SandboxStatus::Lost => SandboxStatus::Error.as_str(),
            status => status.as_str(),
        }
    }
}

/// A filter for a list of sandboxes. A field that is `None` matches every sandbox.
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
    /// The name of the provider.
    pub provider: String,
    /// The provider's id of the sandbox: 16 hex digits, unique per workspace and provider.
    pub sandbox_id: String,
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    pub chat_id: Option<String>,
    /// The data folder of the host that runs the sandbox; `None` if all hosts can reach the sandbox.
    pub node: Option<String>,
    pub status: SandboxStatus,
    /// The operation that holds the lease on the sandbox.
    pub operation: Option<String>,
    /// The time when the lease expires.
    pub operation_until: Option<UtcMillis>,
    pub last_active_at: UtcMillis,
    pub created_at: UtcMillis,
    /// The resource limits of the sandbox's last start.
    pub limit: Option<Value>,
    /// The network configuration of the sandbox's last start.
    pub network: Option<String>,
    /// The reason for the `error` status, or for a failed stop or deletion.
    pub error: Option<String>,
    /// The number of failed deletion attempts.
    pub attempts: i64,
    /// The time of the next deletion attempt.
    pub next_attempt_at: Option<UtcMillis>,
    /// The labels of what was written to the sandbox; `None` for a sandbox of an earlier release, of which nothing is known.
    pub labels: Option<Labels>,
}

impl SandboxRow {
    /// Returns the labels of what a reader of the sandbox may have read.
    #[must_use]
    pub fn known_labels(&self) -> Labels {
        self.labels.clone().unwrap_or(Labels::ALL)
    }

    /// Returns whether an operation holds an unexpired lease on the sandbox.
    #[must_use]
    pub fn is_claimed(&self, now: UtcMillis) -> bool {
        self.operation.is_some() && self.operation_until.is_some_and(|until| now < until)
    }
}

/// The result of an operation on a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxSettled {
    pub status: SandboxStatus,
    /// The new time of the last activity; `None` keeps the stored value.
    pub last_active_at: Option<UtcMillis>,
    pub error: Option<String>,
    /// The resource limits of the start; `None` keeps the stored value.
    pub limit: Option<Value>,
    pub network: Option<String>,
}

authentic! {
    SandboxRow in SandboxInstances("sandbox_instances"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, bot_id, provider, sandbox_id, app_id, user_id, chat_id, node],
    optional: [labels],
    // These columns record the state of the sandbox, which changes while the MAC stays the same.
    others: [
        status, operation, operation_until, last_active_at, created_at, limit, network, error, attempts,
        next_attempt_at,
    ],
    unread: [lost],
    spec: { is_counted: false },
}
#[expect(clippy::single_component_path_imports, reason = "exports a macro to the modules of this file")]
use select;

/// The status `lost` is stored as `error`, with the column `lost`.
impl ColumnValue for SandboxStatus {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        Ok(match row.parse(column, SandboxStatus::from_word)? {
            Some(SandboxStatus::Error) if row.get("lost")? => Some(SandboxStatus::Lost),
            status => status,
        })
    }
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const BY_NAME: &str = select!("where workspace_id = $1 and provider = $2 and sandbox_id = $3");
const BY_CONVERSATION: &str = select!("where workspace_id = $1 and app_id = $2 and chat_id = $3");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 is null or $3 = case when status = 'error' and lost then 'lost' else status end) \
     and ($4 is null or app_id = $4) and ($5 is null or chat_id = $5) and id > $6 order by id limit $7"
);

impl Store {
    /// Inserts a sandbox. Returns `false` if its bot was deleted. The transaction locks the row of the bot. A
    /// concurrent deletion of the bot therefore either marks this sandbox for deletion or prevents its insertion.
    pub async fn insert_sandbox(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        retry!(self.insert_sandbox_once(row))
    }

    async fn insert_sandbox_once(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        let mut session = self.db.write().await?;
        let lock = "update bots set name = name where workspace_id = $1 and id = $2";
        if session.run(lock, args![row.workspace_id, row.bot_id]).await? == 0 {
            return Ok(false);
        }
        insert(&mut session, self.rows()?, row, left_out(row), Vec::new()).await?;
        session.commit().await?;
        Ok(true)
    }

    /// Returns the sandbox with this id in the workspace.
    pub async fn sandbox(
        &self,
        workspace: WorkspaceId,
        id: SandboxInstanceId,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Adds to the labels of a sandbox, in the transaction that replaces its MAC. Does nothing if the sandbox was deleted.
    pub async fn add_sandbox_labels(&self, row: &SandboxRow, labels: &Labels) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &SandboxRow| {
                let all = old.known_labels().with(labels);
                (old.labels.as_ref() != Some(&all)).then(|| SandboxRow { labels: Some(all), ..old.clone() })
            };
            change.update_uncounted(args![row.id], next).await.map(drop)
        })
    }

    /// Returns the sandbox that a provider identifies by `sandbox_id`.
    pub async fn sandbox_of_provider(
        &self,
        workspace: WorkspaceId,
        provider: &str,
        sandbox_id: &str,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_NAME, args![workspace, provider, sandbox_id]).await
    }

    /// Returns the sandbox of a conversation, regardless of its bot.
    pub async fn sandbox_of_conversation(
        &self,
        workspace: WorkspaceId,
        app_id: &str,
        chat_id: &str,
    ) -> Result<Option<SandboxRow>, StoreError> {
        self.authentic_one(BY_CONVERSATION, args![workspace, app_id, chat_id]).await
    }

    /// Returns a page of the sandboxes in a workspace that match a filter.
    pub async fn sandboxes(
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

    /// Leases a sandbox to `operation` until `until`, and sets its status. Returns `false` if its status, operation
    /// or last activity has changed since `row` was read, so only one of several concurrent requests succeeds.
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

    /// Records the result of an operation and releases its lease. Returns `false` without writing if `operation` has
    /// lost the lease, or if the status differs from `from` because the sandbox was marked for deletion.
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

    /// Releases the lease of an operation, and changes nothing else.
    pub async fn release_sandbox(&self, id: SandboxInstanceId, operation: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set operation = null, operation_until = null \
                   where id = $1 and operation = $2";
        self.db.run(sql, args![id, operation]).await?;
        Ok(())
    }

    /// Records that a sandbox is in use at `now`. Returns whether the sandbox is running.
    pub async fn touch_sandbox(&self, id: SandboxInstanceId, now: UtcMillis) -> Result<bool, StoreError> {
        Ok(self.db.run(TOUCH, args![id, now]).await? > 0)
    }

    /// Records in one transaction when sandboxes were last in use. Skips sandboxes that are not running.
    pub async fn touch_sandboxes(&self, uses: &[(SandboxInstanceId, UtcMillis)]) -> Result<(), StoreError> {
        let mut session = self.db.write().await?;
        for (id, at) in uses {
            session.run(TOUCH, args![*id, *at]).await?;
        }
        session.commit().await
    }
}

/// Sets the time of the last activity, but never to an earlier time, because the clocks of hosts may differ.
const TOUCH: &str = "update sandbox_instances set last_active_at = case when last_active_at < $2 then $2 \
                     else last_active_at end where id = $1 and status = 'running'";

/// Returns the values of the columns that the MAC does not cover, in the order of the table.
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
