//! MCP servers whose tools bots may call: connections, discoveries and calls.
//!
//! A server is the `url` of a resource of type `mcp`. All requests go through egress, with the network rules of the
//! resource, and with its credential or the credential of the user of the call. A discovery reads the tools that the
//! server declares, and `pins` decides which of them serve. This module never decides whether a call may run.

mod access;
mod calling;
mod discovery;
mod listening;
mod schedule;
mod sessions;
mod wire;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use monstrum_egress::Egress;
use monstrum_mcp::client::Connection;
use monstrum_types::{Clock, ResourceId, WorkspaceId};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pins::Pins;
use crate::plugins::built_in::{MCP, MCP_URL};
use crate::policy::{Policy, Resource};

use access::{Identity, LinkPlace};

pub use access::Access;
pub use calling::McpCall;
pub use discovery::{DISCOVERY_MAX, DiscoveryError};

/// The maximum number of discoveries that requests of the API run at once, and of one workspace, which includes the
/// requests that wait. A workspace whose servers hang must not delay the requests of others. The schedule has limits of its
/// own.
const ASKED_AT_ONCE: usize = 32;
const ASKED_OF_WORKSPACE: usize = 8;
/// The maximum number of servers whose notifications this host reads. Changes at other servers are seen at the next
/// scheduled discovery.
const LISTENERS_MAX: usize = 256;
/// The number of connections at which idle connections of users are removed. Their next calls agree on a revision anew.
const LINKS_SWEEP_AT: usize = 1024;
/// The time limit, at shutdown, for storing discoveries and telling servers about cancelled calls.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The MCP servers of this host's resources.
pub struct Mcp {
    egress: Egress,
    policy: Arc<Policy>,
    pins: Arc<Pins>,
    clock: Arc<dyn Clock>,
    links: Mutex<HashMap<LinkPlace, Arc<Link>>>,
    /// Connections that were replaced or whose resource was deleted, until their sessions have ended.
    replaced: Mutex<Vec<Arc<Link>>>,
    /// The resources whose tools may have changed, so that the schedule must discover them soon.
    nudged: Mutex<HashSet<ResourceId>>,
    has_nudges: Notify,
    asked: Semaphore,
    /// The number of requests of each workspace that run or wait.
    asked_of_workspaces: Mutex<HashMap<WorkspaceId, usize>>,
    listeners: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The connection to the server of one resource, with one credential.
pub(crate) struct Link {
    identity: Identity,
    /// The access as it was when the connection was created.
    access: Access,
    connection: Connection,
    /// Held during a discovery, so that two discoveries of this host do not run at once.
    discovering: tokio::sync::Mutex<()>,
    /// Whether a task reads the notifications of the server.
    is_listening: AtomicBool,
}

/// The place of a request among the requests of its workspace. Dropping it releases the place.
struct AskedPlace<'a> {
    mcp: &'a Mcp,
    workspace: WorkspaceId,
}

impl Drop for AskedPlace<'_> {
    fn drop(&mut self) {
        let mut asked = self.mcp.asked_of_workspaces.lock();
        if let Some(count) = asked.get_mut(&self.workspace) {
            *count -= 1;
            if *count == 0 {
                asked.remove(&self.workspace);
            }
        }
    }
}

/// Returns the URL of the server.
fn url(resource: &Resource) -> &str {
    resource.config.get(MCP_URL).and_then(Value::as_str).unwrap_or_default()
}

/// Returns whether the tools of the resource come from an MCP server.
pub fn is_of_server(resource: &Resource) -> bool {
    resource.plugin.name.as_str() == MCP
}

impl Mcp {
    /// Creates the MCP servers of a host.
    pub fn new(egress: Egress, policy: Arc<Policy>, pins: Arc<Pins>, clock: Arc<dyn Clock>) -> Mcp {
        Mcp {
            egress,
            policy,
            pins,
            clock,
            links: Mutex::default(),
            replaced: Mutex::default(),
            nudged: Mutex::default(),
            has_nudges: Notify::new(),
            asked: Semaphore::new(ASKED_AT_ONCE),
            asked_of_workspaces: Mutex::default(),
            listeners: Arc::new(Semaphore::new(LISTENERS_MAX)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Returns the connection of an access. A resource with another URL, network or credential gets a new connection.
    fn link(&self, access: &Access) -> Arc<Link> {
        let place = access.place();
        let mut links = self.links.lock();
        if let Some(link) = links.get(&place).filter(|link| link.identity.is_of(access)) {
            return Arc::clone(link);
        }
        if links.len() >= LINKS_SWEEP_AT {
            let is_idle = |place: &LinkPlace, link: &Arc<Link>| place.user.is_some() && Arc::strong_count(link) == 1;
            let idle = links.extract_if(|place, link| is_idle(place, link)).map(|(_, link)| link);
            self.replaced.lock().extend(idle);
        }
        let link = Arc::new(Link {
            identity: access.identity(),
            access: access.clone(),
            connection: Connection::default(),
            discovering: tokio::sync::Mutex::default(),
            is_listening: AtomicBool::new(false),
        });
        let replaced = links.insert(place, Arc::clone(&link));
        self.replaced.lock().extend(replaced);
        link
    }

    /// Returns a place for a request to discover tools, or `None` if the workspace has too many such requests.
    fn asked_place(&self, workspace: WorkspaceId) -> Option<AskedPlace<'_>> {
        let mut asked = self.asked_of_workspaces.lock();
        let count = asked.entry(workspace).or_default();
        if *count >= ASKED_OF_WORKSPACE {
            return None;
        }
        *count += 1;
        Some(AskedPlace { mcp: self, workspace })
    }

    /// Requests a discovery of a resource soon. At most one discovery runs in ten seconds because of such requests.
    pub fn nudge(&self, resource: ResourceId) {
        self.nudged.lock().insert(resource);
        self.has_nudges.notify_one();
    }

    /// Ends the background work. Waits a short time until discoveries are stored and servers know about cancelled calls.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(SHUTDOWN_MAX, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "the work for MCP servers did not end in time");
        }
    }
}
