//! One discovery: reads the tools that a server declares, and records them as pins.

use std::sync::Arc;
use std::time::Duration;

use monstrum_mcp::client::{ClientError, DeclaredList, ListLimits};
use monstrum_store::StoreError;
use monstrum_types::ResourceId;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::wire::ResourceWire;
use super::{Access, Link, Mcp};
use crate::meters;
use crate::pins::{DeclaredTool, Definitions, ServerInfo, TOOLS_MAX};
use crate::policy::Resource;

/// The time limit for reading all pages of a list. The claim of a discovery lasts longer.
pub const DISCOVERY_MAX: Duration = Duration::from_secs(20);
/// The maximum size of a list: as many definitions as a model can read, many times over.
const LIST_BYTES_MAX: usize = 2 << 20;
/// The minimum time between two discoveries that a server can ask for with `ttlMs`.
const TTL_MIN: Duration = Duration::from_secs(60);

/// The reason why no discovery has ended.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("another host is discovering the tools of this resource")]
    Claimed,
    #[error("the workspace has too many requests to discover tools; try again later")]
    Busy,
    #[error("the resource has changed during the discovery")]
    Changed,
    #[error("the server is shutting down")]
    Stopped,
    #[error("the result of the discovery could not be stored")]
    Store(#[from] StoreError),
}

/// The end of a discovery, whose result is stored.
pub(super) struct Discovered {
    /// The time for which the server says that its list is current, or `None` if the discovery failed.
    pub(super) ttl: Option<Option<Duration>>,
}

impl Discovered {
    pub(super) fn is_ok(&self) -> bool {
        self.ttl.is_some()
    }
}

impl Mcp {
    /// Discovers the tools of a resource for a request of the API. Returns when the result is stored, even if the
    /// discovery has failed.
    ///
    /// # Errors
    /// Fails if no result was stored.
    pub async fn discover(self: &Arc<Self>, resource: &Arc<Resource>) -> Result<(), DiscoveryError> {
        let _of_workspace = self.asked_place(resource.row.workspace_id).ok_or(DiscoveryError::Busy)?;
        let _place = self.asked.acquire().await.map_err(|_| DiscoveryError::Stopped)?;
        self.discovered(resource).await.map(drop)
    }

    /// Discovers the tools of a resource.
    pub(super) async fn discovered(self: &Arc<Self>, resource: &Arc<Resource>) -> Result<Discovered, DiscoveryError> {
        let link = self.link(&Access::shared(resource));
        let _turn = link.discovering.lock().await;
        let row = &resource.row;
        if !self.pins.claim(row).await? {
            return Err(DiscoveryError::Claimed);
        }
        let began = Instant::now();
        let discovered = self.claimed(resource, &link).await;
        meters::discovery(discovered.as_ref().is_ok_and(Discovered::is_ok), began.elapsed());
        if let Err(error) = self.pins.release(row).await {
            tracing::warn!(resource.id = %row.id, %error, "cannot release the claim of a discovery; it expires");
        }
        if discovered.as_ref().is_ok_and(Discovered::is_ok) {
            self.listen(resource, &link);
        }
        discovered
    }

    /// Discovers tools while this host holds the claim.
    async fn claimed(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        link: &Arc<Link>,
    ) -> Result<Discovered, DiscoveryError> {
        let row = &resource.row;
        let wire = ResourceWire::new(&self.egress, Access::shared(resource), Instant::now() + DISCOVERY_MAX);
        let limits = ListLimits { tools_max: TOOLS_MAX, bytes_max: LIST_BYTES_MAX };
        let listing = timeout(DISCOVERY_MAX, link.connection.list_tools(&wire, limits));
        let listed = self.stop.run_until_cancelled(listing).await.ok_or(DiscoveryError::Stopped)?;
        // A list that was read from another URL, or with another credential, must not be recorded.
        if !self.is_current(resource) {
            return Err(DiscoveryError::Changed);
        }
        match listed.unwrap_or_else(|_| Err(too_slow())) {
            Ok(list) => {
                let ttl = self.record(resource, list).await?;
                Ok(Discovered { ttl: Some(ttl) })
            }
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(resource.id = %row.id, "the discovery of the tools of an MCP server has failed");
                self.pins.discovered(row, Err(why)).await?;
                Ok(Discovered { ttl: None })
            }
        }
    }

    /// Records the declared tools and the result of the discovery. Returns the time for which the list is current.
    async fn record(&self, resource: &Resource, list: DeclaredList) -> Result<Option<Duration>, DiscoveryError> {
        let DeclaredList { tools, server, ttl } = list;
        let declared = tools.into_iter().map(|tool| DeclaredTool {
            original_name: tool.name,
            definition: tool.definition,
            effect_hint: None,
        });
        self.pins.record(resource, declared.collect(), definitions(resource)).await?;
        let shown = json!({ "name": server.name, "version": server.version });
        let info = ServerInfo { server: shown, protocol: server.revision };
        self.pins.discovered(&resource.row, Ok(info)).await?;
        Ok(ttl.filter(|ttl| !ttl.is_zero()).map(|ttl| ttl.max(TTL_MIN)))
    }

    /// Returns whether the policy has the resource with the same URL, network and credential.
    pub(super) fn is_current(&self, resource: &Arc<Resource>) -> bool {
        let now = self.current(resource);
        now.is_some_and(|now| Access::shared(resource).identity().is_of(&Access::shared(&now)))
    }

    pub(super) fn current(&self, resource: &Resource) -> Option<Arc<Resource>> {
        let (workspace, id): (_, ResourceId) = (resource.row.workspace_id, resource.row.id);
        self.policy.load().resource(workspace, id).cloned()
    }
}

fn too_slow() -> ClientError {
    ClientError::TooMuch(format!("the MCP server did not list its tools within {} s", DISCOVERY_MAX.as_secs()))
}

/// Returns which declared definitions need no decision of an admin.
fn definitions(resource: &Resource) -> Definitions {
    match resource.config.get("definitions").and_then(Value::as_str) {
        Some("first") => Definitions::First,
        _ => Definitions::Review,
    }
}
