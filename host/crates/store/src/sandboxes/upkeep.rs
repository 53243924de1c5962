//! What a host looks through: sandboxes that are idle, and all that it has.

use monstrum_types::{SandboxInstanceId, UtcMillis};

use super::{SandboxRow, columns};
use crate::db::{args, values};
use crate::{Store, StoreError};

// What should run or may run, and what a host that is gone was about to start or to stop.
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

/// The id after which a list begins: every id is greater than the empty text.
fn after(id: Option<SandboxInstanceId>) -> String {
    id.map(String::from).unwrap_or_default()
}

impl Store {
    /// Sandboxes of this node, or of all, that were last active at `active` or before and are not known to be stopped,
    /// in the order of their ids.
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

    /// Sandboxes of this node, or of all, that run with this network, in the order of their ids.
    pub async fn sandboxes_with_network(
        &self,
        node: &str,
        network: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(RUNNING_WITH, values![node, network, &after(from)], limit).await
    }

    /// Sandboxes of this node, or of all, that run although the switch of their bot is off, in the order of their ids.
    pub async fn sandboxes_switched_off(
        &self,
        node: &str,
        from: Option<SandboxInstanceId>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(SWITCHED_OFF, values![node, &after(from), true], limit).await
    }

    /// How many sandboxes of this node, or of all, run or are about to, `but` this one.
    pub async fn count_running_sandboxes(&self, node: &str, but: SandboxInstanceId) -> Result<u64, StoreError> {
        let sql = "select count(*) as value from sandbox_instances where (node is null or node = $1) \
                   and status in ('creating', 'running', 'stopping') and id <> $2";
        let count: i64 = self.db.read().await?.one(sql, args![node, but]).await?.unwrap_or(0);
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Voids what was claimed by the host of this node: there is one at a time, and it has just begun.
    pub async fn release_sandboxes_of_node(&self, node: &str) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set operation = null, operation_until = null \
                   where node = $1 and operation is not null";
        self.db.run(sql, args![node]).await?;
        Ok(())
    }
}
