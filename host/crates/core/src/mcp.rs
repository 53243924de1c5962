//! MCP servers whose tools bots may call: connections, discoveries and calls.
//!
//! A server is the `url` of a resource of type `mcp`. All requests go through egress, with the network rules and the
//! credential of the resource. A discovery reads the tools that the server declares, and `pins` decides which of them
//! serve. This module never decides whether a call may run.

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
use monstrum_types::{Clock, CredentialId, ResourceId, UtcMillis};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pins::Pins;
use crate::plugins::built_in::{MCP, MCP_URL};
use crate::policy::{Policy, Resource};

pub use calling::McpCall;
pub use discovery::{DISCOVERY_MAX, DiscoveryError};

/// The maximum number of discoveries that requests of the API run at once. The schedule has a limit of its own.
const ASKED_AT_ONCE: usize = 32;
/// The maximum number of servers whose notifications this host reads. Changes at other servers are seen at the next
/// scheduled discovery.
const LISTENERS_MAX: usize = 256;
/// The time limit, at shutdown, for storing discoveries and telling servers about cancelled calls.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The MCP servers of this host's resources.
pub struct Mcp {
    egress: Egress,
    policy: Arc<Policy>,
    pins: Arc<Pins>,
    clock: Arc<dyn Clock>,
    links: Mutex<HashMap<ResourceId, Arc<Link>>>,
    /// Connections that were replaced or whose resource was deleted, until their sessions have ended.
    replaced: Mutex<Vec<Arc<Link>>>,
    /// The resources whose tools may have changed, so that the schedule must discover them soon.
    nudged: Mutex<HashSet<ResourceId>>,
    has_nudges: Notify,
    asked: Semaphore,
    listeners: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The connection to the server of one resource.
pub(crate) struct Link {
    identity: Identity,
    /// The resource as it was when the connection was created.
    resource: Arc<Resource>,
    connection: Connection,
    /// Held during a discovery, so that two discoveries of this host do not run at once.
    discovering: tokio::sync::Mutex<()>,
    /// Whether a task reads the notifications of the server.
    is_listening: AtomicBool,
}

/// What a connection depends on. A session belongs to one server and one credential.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    url: String,
    network: Value,
    credential: Option<(CredentialId, UtcMillis)>,
}

impl Identity {
    fn of(resource: &Resource) -> Identity {
        let credential = resource.credential.as_ref().map(|held| (held.row.id, held.row.updated_at));
        Identity { url: url(resource).to_owned(), network: resource.row.network.clone(), credential }
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
            listeners: Arc::new(Semaphore::new(LISTENERS_MAX)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Returns the connection of a resource. A resource with another URL, network or credential gets a new connection.
    fn link(&self, resource: &Arc<Resource>) -> Arc<Link> {
        let identity = Identity::of(resource);
        let mut links = self.links.lock();
        if let Some(link) = links.get(&resource.row.id).filter(|link| link.identity == identity) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link {
            identity,
            resource: Arc::clone(resource),
            connection: Connection::default(),
            discovering: tokio::sync::Mutex::default(),
            is_listening: AtomicBool::new(false),
        });
        let replaced = links.insert(resource.row.id, Arc::clone(&link));
        self.replaced.lock().extend(replaced);
        link
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
