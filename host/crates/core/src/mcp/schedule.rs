//! When the tools of each resource are discovered: at the start, after a change of the configuration or the credential,
//! when the server says that its list has changed, and at an interval.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use monstrum_types::{CredentialId, DiscoveryStatus, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::discovery::{Discovered, DiscoveryError};
use super::sessions::interval_of_checks;
use super::{Mcp, is_of_server};
use crate::policy::Resource;

/// The maximum number of scheduled discoveries at once on a host, and of one workspace. A workspace with many servers
/// that hang must not delay the discoveries of others.
const AT_ONCE: usize = 32;
const AT_ONCE_OF_WORKSPACE: usize = 8;
/// The minimum time between the starts of two discoveries that a server or a call causes.
const NUDGE_GAP: Duration = Duration::from_secs(10);
/// The time for which renewals of the policy are collected before the resources are compared.
const MERGE: Duration = Duration::from_millis(200);
/// The time after which a discovery is attempted again that another host was running.
const CLAIMED_RETRY: Duration = Duration::from_secs(30);
/// The first and the last delay after failures, which doubles.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(900);
/// The default interval.
const REFRESH_S: u64 = 900;
/// The longest time for which the schedule waits.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// What a discovery depends on. If it changes, the tools are discovered anew.
#[derive(Clone, PartialEq)]
struct Basis {
    config: String,
    network: Value,
    credential: Option<(CredentialId, UtcMillis)>,
}

impl Basis {
    fn of(resource: &Resource) -> Basis {
        Basis {
            config: resource.config_text.clone(),
            network: resource.row.network.clone(),
            credential: resource.credential.as_ref().map(|held| (held.row.id, held.row.updated_at)),
        }
    }
}

struct Planned {
    workspace: WorkspaceId,
    basis: Basis,
    due: Instant,
    /// Whether the discovery is due because the interval has passed, so that a recent one of another host is enough.
    is_refresh: bool,
    started: Option<Instant>,
    is_running: bool,
    /// The time from which another discovery is due, if one was requested while a discovery is running.
    again: Option<Instant>,
    failures: u32,
    interval: Duration,
}

type Ended = (ResourceId, Result<Discovered, DiscoveryError>);

impl Mcp {
    /// Runs scheduled discoveries until `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut planned = HashMap::new();
        let mut renewals = self.policy.renewals();
        // The number of waiting messages is the number of running discoveries, which is limited.
        let (ended, mut endings) = mpsc::unbounded_channel::<Ended>();
        let mut session_checks = interval_of_checks();
        self.compare(&mut planned);
        loop {
            self.take_nudges(&mut planned);
            self.start_due(&mut planned, &ended);
            let next = planned.values().filter(|one| !one.is_running).map(|one| one.due).min();
            let is_full = running(&planned) >= AT_ONCE;
            let wake = next.filter(|_| !is_full).unwrap_or_else(|| Instant::now() + IDLE_MAX);
            // A workspace at its limit has due discoveries that cannot start yet.
            let wake = wake.max(Instant::now() + MERGE);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = renewals.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    sleep(MERGE).await;
                    renewals.mark_unchanged();
                    self.compare(&mut planned);
                    self.end_unused_sessions();
                }
                _ = session_checks.tick() => self.end_unused_sessions(),
                () = self.has_nudges.notified() => {}
                Some((id, result)) = endings.recv() => {
                    if let Some(one) = planned.get_mut(&id) {
                        one.end(id, result);
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Plans discoveries of new and changed resources, and forgets deleted ones.
    fn compare(&self, planned: &mut HashMap<ResourceId, Planned>) {
        let snapshot = self.policy.load();
        let now = Instant::now();
        planned.retain(|id, one| snapshot.resource(one.workspace, *id).is_some_and(|resource| is_of_server(resource)));
        for resource in snapshot.resources().filter(|resource| is_of_server(resource)) {
            let basis = Basis::of(resource);
            match planned.get_mut(&resource.row.id) {
                Some(one) if one.basis == basis => {}
                Some(one) => {
                    (one.basis, one.failures, one.interval) = (basis, 0, interval(resource));
                    one.request(now);
                }
                None => {
                    let one = Planned {
                        workspace: resource.row.workspace_id,
                        basis,
                        due: now,
                        is_refresh: false,
                        started: None,
                        is_running: false,
                        again: None,
                        failures: 0,
                        interval: interval(resource),
                    };
                    planned.insert(resource.row.id, one);
                }
            }
        }
        self.replace_links(&snapshot);
    }

    fn take_nudges(&self, planned: &mut HashMap<ResourceId, Planned>) {
        for id in self.nudged.lock().drain() {
            if let Some(one) = planned.get_mut(&id) {
                one.request(one.started.map_or_else(Instant::now, |started| started + NUDGE_GAP));
            }
        }
    }

    /// Starts discoveries that are due, the oldest first.
    fn start_due(self: &Arc<Self>, planned: &mut HashMap<ResourceId, Planned>, ended: &mpsc::UnboundedSender<Ended>) {
        let now = Instant::now();
        let mut of_workspaces: HashMap<WorkspaceId, usize> = HashMap::new();
        for one in planned.values().filter(|one| one.is_running) {
            *of_workspaces.entry(one.workspace).or_default() += 1;
        }
        let mut room = AT_ONCE.saturating_sub(running(planned));
        let mut due: Vec<(Instant, ResourceId)> = planned
            .iter()
            .filter(|(_, one)| !one.is_running && one.due <= now)
            .map(|(id, one)| (one.due, *id))
            .collect();
        due.sort_unstable();
        let snapshot = self.policy.load();
        for (_, id) in due {
            if room == 0 {
                return;
            }
            let Some(one) = planned.get_mut(&id) else { continue };
            let of_workspace = of_workspaces.entry(one.workspace).or_default();
            let Some(resource) = snapshot.resource(one.workspace, id) else { continue };
            if *of_workspace >= AT_ONCE_OF_WORKSPACE {
                continue;
            }
            *of_workspace += 1;
            room -= 1;
            one.is_running = true;
            one.started = Some(now);
            let kept = one.is_refresh.then_some(one.interval);
            let (mcp, resource, ended) = (Arc::clone(self), Arc::clone(resource), ended.clone());
            self.tasks.spawn(async move {
                let result = mcp.unless_recent(&resource, kept).await;
                // The receiver is dropped when the schedule has stopped.
                drop(ended.send((id, result)));
            });
        }
    }

    /// Discovers the tools, unless another host has done so within the interval `kept`.
    async fn unless_recent(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        kept: Option<Duration>,
    ) -> Result<Discovered, DiscoveryError> {
        if let Some(kept) = kept
            && let Some(last) = self.pins.discovery(&resource.row).await?
            && last.status == DiscoveryStatus::Ok
            && let Some(at) = last.last_discovery_at
        {
            let age_ms = self.clock.now().since_ms(at);
            let kept_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
            if age_ms >= 0 && age_ms < kept_ms / 2 {
                return Ok(Discovered { ttl: Some(None) });
            }
        }
        self.discovered(resource).await
    }
}

fn running(planned: &HashMap<ResourceId, Planned>) -> usize {
    planned.values().filter(|one| one.is_running).count()
}

impl Planned {
    /// Requests a discovery at `at`, unless one is due earlier.
    fn request(&mut self, at: Instant) {
        if self.is_running {
            self.again = Some(self.again.map_or(at, |again| again.min(at)));
        } else if self.is_refresh || at < self.due {
            (self.due, self.is_refresh) = (at.min(self.due), false);
        }
    }

    /// Plans the next discovery after one has ended.
    fn end(&mut self, id: ResourceId, result: Result<Discovered, DiscoveryError>) {
        self.is_running = false;
        let now = Instant::now();
        let after = match result {
            Ok(Discovered { ttl: Some(ttl) }) => {
                self.failures = 0;
                ttl.map_or(self.interval, |ttl| ttl.min(self.interval))
            }
            Ok(Discovered { ttl: None }) => self.back_off(),
            Err(DiscoveryError::Claimed | DiscoveryError::Busy) => CLAIMED_RETRY,
            Err(DiscoveryError::Changed | DiscoveryError::Stopped) => BACKOFF_MIN,
            Err(DiscoveryError::Store(error)) => {
                tracing::warn!(resource.id = %id, %error, "the discovery of the tools of an MCP server was not stored");
                self.back_off()
            }
        };
        (self.due, self.is_refresh) = (now + after, self.failures == 0);
        if let Some(again) = self.again.take() {
            self.request(again);
        }
    }

    fn back_off(&mut self) -> Duration {
        let delay = BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        self.failures += 1;
        delay
    }
}

/// Returns the configured interval.
fn interval(resource: &Resource) -> Duration {
    Duration::from_secs(resource.config.get("refresh_s").and_then(Value::as_u64).unwrap_or(REFRESH_S))
}
