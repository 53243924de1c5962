//! Queries that a host uses to maintain its sandboxes.

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};

use super::{SandboxRow, select};
use crate::db::{args, from_row, values};
use crate::{Store, StoreError};

/// The number of starting, running and stopping sandboxes of one bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningSandboxes {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub count: u64,
}

from_row! { RunningSandboxes { workspace, bot, count } }

// Matches sandboxes that may be running, including sandboxes whose start or stop did not finish before the lease
// expired.
const IDLE: &str = select!(
    "where (node is null or node = $1) and last_active_at <= $2 \
     and (status = 'running' or (status = 'error' and not lost) or (status in ('creating', 'stopping') \
     and (operation is null or operation_until <= $3))) and id > $4 order by id limit $5"
);
const OF_NODE: &str = select!("where (node is null or node = $1) and id > $2 order by id limit $3");
const RUNNING_WITH: &str = select!(
    "where (node is null or node = $1) and status = 'running' and network = $2 \
     and id > $3 order by id limit $4"
);

const SWITCHED_OFF: &str = select!(
    "where (node is null or node = $1) and status = 'running' and id > $2 \
     and not exists (select 1 from bots where bots.id = sandbox_instances.bot_id and bots.use_agent_sandbox = $3) \
     order by id limit $4"
);

struct KeptSandboxes {
    workspace: WorkspaceId,
    count: u64,
}

from_row! { KeptSandboxes { workspace, count } }

/// Returns the SQL cursor for the rows after `id`. If `id` is `None`, the cursor is the empty string, which sorts
/// before every id.
fn after(id: Option<SandboxInstanceId>) -> String {
    id.map(String::from).unwrap_or_default()
}

impl Store {
    /// Returns the sandboxes that are on this node or reachable from all hosts, that may still be running, and that
    /// were last active at or before `active`. The sandboxes are ordered by id.
    pub async fn idle_sandboxes(
        &self,
        node: &str,
        active: UtcMillis,
        now: UtcMillis,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(IDLE, values![node, active, now, &after(from)], limit).await
    }

    /// Returns the sandboxes that are on this node or reachable from all hosts, ordered by id.
    pub async fn sandboxes_of_node(
        &self,
        node: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(OF_NODE, values![node, &after(from)], limit).await
    }

    /// Returns the running sandboxes that are on this node or reachable from all hosts, and that use this network. The
    /// sandboxes are ordered by id.
    pub async fn sandboxes_with_network(
        &self,
        node: &str,
        network: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(RUNNING_WITH, values![node, network, &after(from)], limit).await
    }

    /// Returns the running sandboxes that are on this node or reachable from all hosts, and whose bot may no longer use
    /// sandboxes. The sandboxes are ordered by id.
    pub async fn sandboxes_switched_off(
        &self,
        node: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(SWITCHED_OFF, values![node, &after(from), true], limit).await
    }

    /// Counts, for each bot, the starting, running and stopping sandboxes that are on this node or reachable from all
    /// hosts. Does not count the sandbox `but`.
    pub async fn running_sandboxes_by_bot(
        &self,
        node: &str,
        but: SandboxInstanceId,
    ) -> Result<Vec<RunningSandboxes>, StoreError> {
        let sql = "select workspace_id as workspace, bot_id as bot, count(*) as count from sandbox_instances \
                   where (node is null or node = $1) and status in ('creating', 'running', 'stopping') and id <> $2 \
                   group by workspace_id, bot_id";
        self.db.all(sql, args![node, but]).await
    }

    /// Counts the sandboxes of a workspace on all hosts, except sandboxes that are being deleted.
    pub async fn count_kept_sandboxes(&self, workspace: WorkspaceId) -> Result<u64, StoreError> {
        let sql = "select count(*) as value from sandbox_instances where workspace_id = $1 and status <> 'deleting'";
        let count: Option<i64> = self.db.one(sql, args![workspace]).await?;
        Ok(u64::try_from(count.unwrap_or(0)).unwrap_or(0))
    }

    /// Returns the workspaces with at least `least` sandboxes, and the number of sandboxes of each. Sandboxes that
    /// are being deleted do not count.
    pub async fn workspaces_with_sandboxes(&self, least: u32) -> Result<Vec<(WorkspaceId, u64)>, StoreError> {
        let sql = "select workspace_id as workspace, count(*) as count from sandbox_instances where status <> 'deleting' \
                   group by workspace_id having count(*) >= $1 order by workspace_id";
        let rows: Vec<KeptSandboxes> = self.db.all(sql, args![i64::from(least)]).await?;
        Ok(rows.into_iter().map(|row| (row.workspace, row.count)).collect())
    }

    /// Returns whether any bot outside this workspace may use sandboxes.
    pub async fn other_workspaces_may_use_sandboxes(&self, workspace: WorkspaceId) -> Result<bool, StoreError> {
        let sql = "select count(*) as value from (select 1 as found from bots where use_agent_sandbox = $1 \
                   and workspace_id <> $2 limit 1) as others";
        let found: Option<i64> = self.db.one(sql, args![true, workspace]).await?;
        Ok(found.unwrap_or(0) > 0)
    }

    /// Returns whether any bot other than `bot` may use sandboxes, in any workspace.
    pub async fn other_bots_may_use_sandboxes(&self, bot: BotId) -> Result<bool, StoreError> {
        let sql = "select count(*) as value from (select 1 as found from bots where use_agent_sandbox = $1 \
                   and id <> $2 limit 1) as others";
        let found: Option<i64> = self.db.one(sql, args![true, bot]).await?;
        Ok(found.unwrap_or(0) > 0)
    }

    /// Marks all running, starting and stopping sandboxes of this node as stopped. Called when the node's host
    /// starts.
    pub async fn stop_sandboxes_of_node(&self, node: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set status = 'stopped', operation = null, operation_until = null \
                   where node = $1 and status in ('creating', 'running', 'stopping')";
        self.db.run(sql, args![node]).await?;
        Ok(())
    }

    /// Releases all leases on the sandboxes of this node. Called when the node's host starts, which is safe because a
    /// node has only one host at a time.
    pub async fn release_sandboxes_of_node(&self, node: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set operation = null, operation_until = null \
                   where node = $1 and operation is not null";
        self.db.run(sql, args![node]).await?;
        Ok(())
    }
}
