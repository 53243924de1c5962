//! Queries for the maintenance of sandboxes by their host.

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};

use super::{SandboxRow, columns};
use crate::db::{args, from_row, values};
use crate::{Store, StoreError};

/// The number of sandboxes of a bot that are starting, running or stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningSandboxes {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub count: u64,
}

from_row! { RunningSandboxes { workspace, bot, count } }

// Sandboxes that may be running, and those whose start or stop an operation with an expired lease has left unfinished.
const IDLE: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where (node is null or node = $1) and last_active_at <= $2 \
     and (status = 'running' or (status = 'error' and not lost) or (status in ('creating', 'stopping') \
     and (operation is null or operation_until <= $3))) and id > $4 order by id limit $5"
);
const OF_NODE: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where (node is null or node = $1) and id > $2 order by id limit $3"
);
const RUNNING_WITH: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where (node is null or node = $1) and status = 'running' and network = $2 \
     and id > $3 order by id limit $4"
);

const SWITCHED_OFF: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where (node is null or node = $1) and status = 'running' and id > $2 \
     and not exists (select 1 from bots where bots.id = sandbox_instances.bot_id and bots.use_agent_sandbox = $3) \
     order by id limit $4"
);

struct KeptSandboxes {
    workspace: WorkspaceId,
    count: u64,
}

from_row! { KeptSandboxes { workspace, count } }

/// The cursor of a list: every id is greater than the empty text.
fn after(id: Option<SandboxInstanceId>) -> String {
    id.map(String::from).unwrap_or_default()
}

impl Store {
    /// Sandboxes of this node, or of all, that were last active at `active` or earlier and may still be running, in the
    /// order of their ids.
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

    /// Sandboxes of this node, or of all, in the order of their ids.
    pub async fn sandboxes_of_node(
        &self,
        node: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(OF_NODE, values![node, &after(from)], limit).await
    }

    /// Running sandboxes of this node, or of all, with this network, in the order of their ids.
    pub async fn sandboxes_with_network(
        &self,
        node: &str,
        network: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(RUNNING_WITH, values![node, network, &after(from)], limit).await
    }

    /// Running sandboxes of this node, or of all, whose bot may no longer use sandboxes, in the order of their ids.
    pub async fn sandboxes_switched_off(
        &self,
        node: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(SWITCHED_OFF, values![node, &after(from), true], limit).await
    }

    /// The number of starting, running and stopping sandboxes of this node, or of all, per bot, except for `but`.
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

    /// The number of sandboxes of a workspace on all hosts, except for those that are being deleted.
    pub async fn count_kept_sandboxes(&self, workspace: WorkspaceId) -> Result<u64, StoreError> {
        let sql = "select count(*) as value from sandbox_instances where workspace_id = $1 and status <> 'deleting'";
        let count: Option<i64> = self.db.one(sql, args![workspace]).await?;
        Ok(u64::try_from(count.unwrap_or(0)).unwrap_or(0))
    }

    /// The workspaces with at least `least` sandboxes, and how many they have, without those that are being deleted.
    pub async fn workspaces_with_sandboxes(&self, least: u32) -> Result<Vec<(WorkspaceId, u64)>, StoreError> {
        let sql = "select workspace_id as workspace, count(*) as count from sandbox_instances where status <> 'deleting' \
                   group by workspace_id having count(*) >= $1 order by workspace_id";
        let rows: Vec<KeptSandboxes> = self.db.all(sql, args![i64::from(least)]).await?;
        Ok(rows.into_iter().map(|row| (row.workspace, row.count)).collect())
    }

    /// Whether a bot of another workspace may use sandboxes.
    pub async fn other_workspaces_may_use_sandboxes(&self, workspace: WorkspaceId) -> Result<bool, StoreError> {
        let sql = "select count(*) as value from (select 1 as found from bots where use_agent_sandbox = $1 \
                   and workspace_id <> $2 limit 1) as others";
        let found: Option<i64> = self.db.one(sql, args![true, workspace]).await?;
        Ok(found.unwrap_or(0) > 0)
    }

    /// Whether another bot of any workspace may use sandboxes.
    pub async fn other_bots_may_use_sandboxes(&self, bot: BotId) -> Result<bool, StoreError> {
        let sql = "select count(*) as value from (select 1 as found from bots where use_agent_sandbox = $1 \
                   and id <> $2 limit 1) as others";
        let found: Option<i64> = self.db.one(sql, args![true, bot]).await?;
        Ok(found.unwrap_or(0) > 0)
    }

    /// Sets all sandboxes of this node to stopped, when its host starts.
    pub async fn stop_sandboxes_of_node(&self, node: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set status = 'stopped', operation = null, operation_until = null \
                   where node = $1 and status in ('creating', 'running', 'stopping')";
        self.db.run(sql, args![node]).await?;
        Ok(())
    }

    /// Ends all leases on the sandboxes of this node, when its host starts: a node has one host at a time.
    pub async fn release_sandboxes_of_node(&self, node: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set operation = null, operation_until = null \
                   where node = $1 and operation is not null";
        self.db.run(sql, args![node]).await?;
        Ok(())
    }
}
