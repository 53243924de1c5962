//! The hosts with connected agents, and the resources that these agents serve. A host reads here for which resources
//! another host has an agent.
//!
//! A host that is killed leaves its rows, so they have an effect only while the host has a lease. A lease ends by the
//! clock of the database, because the clocks of the hosts may differ. The rows permit no call: they only make a host list
//! tools that are permitted and approved by other rows. They have a MAC because they name hosts in messages.

use std::collections::BTreeSet;

use monstrum_types::{ResourceId, UtcMillis, WorkspaceId};

use crate::db::{Session, args, retry};
use crate::rows::{Scope, authentic, insert};
use crate::{Store, StoreError};

/// The time after which the rows of a host without a lease are deleted.
const KEPT_MS: i64 = 24 * 3_600 * 1_000;

/// A row of `agent_hosts`: a host with connected agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentHostRow {
    /// The id of the host.
    pub node: String,
    /// Raised by each change of the host's rows in `agent_presences`.
    pub version: i64,
    /// The end of the lease, by the clock of the database.
    pub lease_until: UtcMillis,
}

authentic! {
    AgentHostRow in AgentHosts("agent_hosts"), select: select_hosts, scope: |_| Scope::Instance,
    covered: [node, version, lease_until],
    others: [],
    spec: { key: &["node"], is_counted: false },
}

/// A row of `agent_presences`: a resource that the agents of a host serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPresenceRow {
    pub node: String,
    pub resource_id: ResourceId,
    pub workspace_id: WorkspaceId,
}

authentic! {
    AgentPresenceRow in AgentPresences("agent_presences"), select: select_presences,
    scope: |row| Scope::from(row.workspace_id),
    covered: [node, resource_id, workspace_id],
    others: [],
    spec: { key: &["node", "resource_id"], is_counted: false },
}

/// Another host that has connected agents and a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentHost {
    pub node: String,
    /// Raised by each change of the resources that the host's agents serve.
    pub version: i64,
    /// The end of the lease, by the clock of the database.
    pub lease_until: UtcMillis,
    /// The time until the end of the lease in milliseconds.
    pub lease_left_ms: i64,
}

const HOSTS: &str = select_hosts!("order by node");
const HOST: &str = select_hosts!("where node = $1");
const PRESENCES: &str = select_presences!("where node = $1 order by resource_id");
const DELETE_HOST: &str = "delete from agent_hosts where node = $1";
const DELETE_PRESENCE: &str = "delete from agent_presences where node = $1 and resource_id = $2";
const DELETE_PRESENCES: &str = "delete from agent_presences where node = $1";
const RESOURCE_EXISTS: &str = "select id from resources where id = $1 and workspace_id = $2";
const DELETE_OLD_HOSTS: &str = "delete from agent_hosts where lease_until < $1";
const DELETE_ORPHANS: &str = "delete from agent_presences \
                              where not exists (select 1 from agent_hosts where agent_hosts.node = agent_presences.node)";

impl Store {
    /// Returns the hosts other than `node` that have connected agents and a lease.
    pub async fn agent_hosts(&self, node: &str) -> Result<Vec<AgentHost>, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.read().await?;
        let found = session.fetch(HOSTS, args![]).await?;
        let now = session.now().await?;
        let hosts = found.iter().filter_map(|row| rows.authentic::<AgentHostRow>(row));
        let others = hosts.filter(|host| host.node != node && now < host.lease_until);
        Ok(others
            .map(|AgentHostRow { node, version, lease_until }| {
                let lease_left_ms = lease_until.since_ms(now);
                AgentHost { node, version, lease_until, lease_left_ms }
            })
            .collect())
    }

    /// Returns the resources that the agents of a host serve.
    pub async fn agent_presences(&self, node: &str) -> Result<Vec<AgentPresenceRow>, StoreError> {
        self.authentic(PRESENCES, args![node]).await
    }

    /// Records that the agents of the host `node` serve exactly these resources, and renews the lease of the host. A
    /// resource that was deleted is left out. Without resources, the host needs no lease, and its rows are deleted.
    pub async fn share_agents(
        &self,
        node: &str,
        resources: &BTreeSet<(WorkspaceId, ResourceId)>,
        lease_ms: i64,
    ) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if resources.is_empty() {
                session.run(DELETE_PRESENCES, args![node]).await?;
                session.run(DELETE_HOST, args![node]).await?;
            } else {
                let is_changed = self.replace_presences(&mut session, node, resources).await?;
                self.renew_lease(&mut session, node, is_changed, lease_ms).await?;
            }
            session.commit().await
        })
    }

    /// Makes the rows of a host those of these resources. Returns whether a row has changed.
    async fn replace_presences(
        &self,
        session: &mut Session,
        node: &str,
        resources: &BTreeSet<(WorkspaceId, ResourceId)>,
    ) -> Result<bool, StoreError> {
        let rows = self.rows()?;
        let mut missing = resources.clone();
        let mut is_changed = false;
        for row in session.fetch(PRESENCES, args![node]).await? {
            let known = rows.authentic::<AgentPresenceRow>(&row);
            if known.is_some_and(|known| missing.remove(&(known.workspace_id, known.resource_id))) {
                continue;
            }
            let resource: String = row.get("resource_id")?;
            session.run(DELETE_PRESENCE, args![node, &resource]).await?;
            is_changed = true;
        }
        for (workspace_id, resource_id) in missing {
            if !session.fetch(RESOURCE_EXISTS, args![resource_id, workspace_id]).await?.is_empty() {
                let row = AgentPresenceRow { node: node.to_owned(), resource_id, workspace_id };
                insert(session, rows, &row, Vec::new(), Vec::new()).await?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    async fn renew_lease(
        &self,
        session: &mut Session,
        node: &str,
        is_changed: bool,
        lease_ms: i64,
    ) -> Result<(), StoreError> {
        let rows = self.rows()?;
        let now = session.now().await?;
        let found = session.fetch(HOST, args![node]).await?;
        let version = match found.first().and_then(|row| rows.authentic::<AgentHostRow>(row)) {
            Some(known) if !is_changed => known.version,
            Some(known) => now.0.max(known.version.saturating_add(1)),
            // The clock is later than the version of a row that was deleted.
            None => now.0,
        };
        // A row with a wrong MAC may exist.
        session.run(DELETE_HOST, args![node]).await?;
        let row = AgentHostRow { node: node.to_owned(), version, lease_until: now.plus_ms(lease_ms) };
        insert(session, rows, &row, Vec::new(), Vec::new()).await.map(drop)
    }

    /// Deletes the rows of hosts whose leases ended more than a day ago.
    pub async fn forget_agent_hosts(&self) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let now = session.now().await?;
            session.run(DELETE_OLD_HOSTS, args![now.plus_ms(-KEPT_MS)]).await?;
            session.run(DELETE_ORPHANS, args![]).await?;
            session.commit().await
        })
    }
}
