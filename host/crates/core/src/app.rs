//! The state of a running host: the pipeline of calls, the database and all state that outlives a request.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use monstrum_store::{RunStatus, Store, StoreError, TaskStatus};
use monstrum_types::{Clock, UtcMillis, with_causes};
use monstrum_vault::Vault;

use crate::access_tokens::AccessTokens;
use crate::approvals::Approvals;
use crate::audit::{Auditor, Feed, KeyRing};
use crate::call::Calls;
use crate::call::ledger::Ledger;
use crate::console_sessions::ConsoleSessions;
use crate::credentials::Refresher;
use crate::emitter::Emitter;
use crate::mcp::Mcp;
use crate::meters;
use crate::oauth::{Oauth, ReturnOrigin};
use crate::pins::Pins;
use crate::plugins::Plugins;
use crate::plugins::packages::Packages;
use crate::policy::Policy;
use crate::policy::pattern_limits::PatternRoom;
use crate::remote_agents::RemoteAgents;
use crate::sandboxes::outputs::Outputs;
use crate::sandboxes::{FileTurns, Sandboxes};
use crate::webhooks::Receiver;

/// The ranges of ages of approvals in metrics, each with its upper bound in milliseconds.
const APPROVAL_AGES: [(&str, Option<i64>); 4] =
    [("to_1m", Some(60_000)), ("to_1h", Some(3_600_000)), ("to_1d", Some(86_400_000)), ("over_1d", None)];

/// One running host.
pub struct App {
    /// The data folder, which holds the signed heads of the audit.
    pub data_dir: PathBuf,
    pub store: Store,
    pub vault: Arc<Vault>,
    pub audit_keys: KeyRing,
    pub auditor: Auditor,
    pub audit_feed: Feed,
    pub plugins: Arc<Plugins>,
    pub packages: Packages,
    pub oauth: Arc<Oauth>,
    /// The origins to which browsers may return after the authorization of a user.
    pub return_origins: Vec<ReturnOrigin>,
    pub refresher: Arc<Refresher>,
    pub policy: Arc<Policy>,
    pub sandboxes: Arc<Sandboxes>,
    pub sandbox_outputs: Arc<Outputs>,
    pub file_turns: FileTurns,
    pub pattern_room: PatternRoom,
    pub approvals: Arc<Approvals>,
    pub emitter: Arc<Emitter>,
    pub ledger: Arc<Ledger>,
    pub pins: Arc<Pins>,
    pub agents: Arc<RemoteAgents>,
    pub mcp: Arc<Mcp>,
    /// The verifier of access tokens, if the host has an issuer.
    pub access_tokens: Option<AccessTokens>,
    pub calls: Arc<Calls>,
    pub console_sessions: ConsoleSessions,
    /// The requests to webhooks.
    pub webhooks: Receiver,
    pub clock: Arc<dyn Clock>,
    /// Whether the start-up scan has finished. The value is also true if some plugins failed to load.
    pub scanned: tokio::sync::watch::Sender<bool>,
}

impl App {
    /// Renews the policy after a change of the database or of the plugins. If the renewal fails, no new call runs until
    /// a later renewal succeeds.
    pub(crate) async fn changed(&self) -> Result<(), StoreError> {
        self.policy.renew().await?;
        self.sign_policy();
        Ok(())
    }

    /// Loads the folders of the plugins `names` again and renews the policy.
    pub async fn load_plugins(&self, names: &[String]) -> Result<(), StoreError> {
        for name in names {
            self.plugins.load(name).await;
        }
        self.changed().await
    }

    /// Runs the start-up scan and renews the policy. If the renewal fails, repeats it after the time `retry` until it
    /// succeeds. The host is then ready, even if plugins failed to load.
    pub async fn scan_plugins(&self, retry: Duration) {
        if let Err(error) = self.plugins.scan().await {
            tracing::error!(error = %error, "failed to read the plugins folder");
        }
        while let Err(error) = self.changed().await {
            tracing::error!(error = %error, "failed to activate the plugins; retrying");
            tokio::time::sleep(retry).await;
        }
        self.scanned.send_replace(true);
        tracing::info!("ready");
    }

    /// Requests a signed audit head for the policy in force, if the last head covers an older policy.
    pub fn sign_policy(&self) {
        self.auditor.policy_is_at(self.policy.load().verification.generations_total());
    }

    /// Updates the gauges of `/metrics`. Those of the database keep their values while it fails.
    pub async fn measure(&self) {
        let lanes = self.calls.executor.lanes();
        meters::pool(lanes.running(), lanes.room());
        meters::queues(lanes.waiting(), self.auditor.rows_waiting());
        if let Err(error) = self.measure_stored().await {
            tracing::warn!(error = %with_causes(&error), "tasks, runs and approvals could not be counted");
        }
    }

    async fn measure_stored(&self) -> Result<(), StoreError> {
        let counts = self.store.count_unended_tasks().await?;
        for status in [TaskStatus::Queued, TaskStatus::Running, TaskStatus::Waiting] {
            let count = counts.iter().find(|(counted, _)| *counted == status).map_or(0, |(_, count)| *count);
            meters::tasks(status.as_str(), count);
        }
        let counts = self.store.count_unended_runs().await?;
        for status in RunStatus::ALL.iter().filter(|status| !status.has_ended()) {
            let count = counts.iter().find(|(counted, _)| counted == status).map_or(0, |(_, count)| *count);
            meters::runs(status.as_str(), count);
        }
        let now = self.clock.now();
        let mut until = UtcMillis(i64::MAX);
        for (age, ms) in APPROVAL_AGES {
            let after = ms.map_or(UtcMillis(0), |ms| now.plus_ms(-ms));
            meters::approvals(age, self.store.count_pending_approvals(after, until).await?);
            until = after;
        }
        Ok(())
    }

    /// Returns whether the host can serve calls: the start-up scan has finished, the audit and the database work, and
    /// the policy is current and verified.
    pub async fn is_ready(&self) -> bool {
        *self.scanned.borrow()
            && self.auditor.is_healthy()
            && !self.policy.is_stale()
            && self.policy.load().verification.is_instance_verified()
            && self.store.generation().await.is_ok()
    }
}
