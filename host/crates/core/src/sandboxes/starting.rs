//! Finds or creates the sandbox of a conversation and starts it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use monstrum_sandbox::{Ensured, Network, SandboxError, SandboxProvider, Spec};
use monstrum_store::{SandboxRow, SandboxSettled, SandboxStatus, StoreError};
use monstrum_types::{BotId, Labels, SandboxInstanceId, WorkspaceId};
use tokio::time::{Instant, timeout};

use super::activity::Activity;
use super::open::cut_off;
use super::room::Claimed;
use super::settings::{limits_json, spec, word};
use super::{AccessError, Conversation, LEASE_MS, Open, Sandboxes, has_run, name, operation, within};

/// The time-out of a start. A working provider needs far less time.
const START_MAX: Duration = Duration::from_secs(60);
/// The time-out of the check whether the provider has the files of a sandbox.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// The maximum time for which a call waits for other operations on its sandbox. It covers one start and the steps
/// before the start.
const WAIT_MAX: Duration = Duration::from_secs(75);
/// The time after which a waiting call reads the row again if it receives no notification of a change.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The minimum age in milliseconds at which a new use replaces the stored time of the last use.
const TOUCH_AGAIN_MS: i64 = 200;
/// The maximum age in milliseconds of the stored time while the sandbox is in use. This age is less than half of the
/// minimum idle time, so that no sweep stops a sandbox in use.
pub(super) const TOUCH_MS: i64 = 2000;

/// The sandbox that a caller requests.
#[derive(Clone)]
enum Sought {
    Conversation { workspace: WorkspaceId, bot: BotId, of: Conversation },
    Row { workspace: WorkspaceId, id: SandboxInstanceId },
}

/// The result of one step towards a running sandbox.
enum Step {
    Entered(Box<SandboxRow>, Activity),
    /// The row has changed.
    Again,
    /// The sandbox was started.
    Started,
    /// Another operation on the sandbox is in progress.
    Wait,
}

impl Sandboxes {
    /// Opens the sandbox of a conversation. Creates or starts the sandbox if necessary.
    pub async fn of_conversation(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        of: &Conversation,
    ) -> Result<Open, AccessError> {
        self.enter(Sought::Conversation { workspace, bot, of: of.clone() }).await
    }

    /// Opens an existing sandbox. Starts the sandbox if necessary.
    pub async fn open(self: &Arc<Self>, row: &SandboxRow) -> Result<Open, AccessError> {
        self.enter(Sought::Row { workspace: row.workspace_id, id: row.id }).await
    }

    /// Starts a sandbox that the provider reports as not running, even if its row says that it runs.
    pub(super) async fn revive(self: &Arc<Self>, row: &SandboxRow) -> Result<(), AccessError> {
        let sought = Sought::Row { workspace: row.workspace_id, id: row.id };
        if let Some(row) = self.store.sandbox(row.workspace_id, row.id).await?
            && row.status == SandboxStatus::Running
            && !row.is_claimed(self.clock.now())
        {
            self.start(row, false).await?;
        }
        match self.enter(sought).await {
            Err(AccessError::NotFound) => Err(cut_off().into()),
            entered => entered.map(drop),
        }
    }

    async fn enter(self: &Arc<Self>, sought: Sought) -> Result<Open, AccessError> {
        let until = Instant::now() + WAIT_MAX;
        let mut has_started = false;
        loop {
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            match self.step(&sought).await? {
                Step::Entered(row, activity) => {
                    // Only a use that started the sandbox counts the kept sandboxes, because the count takes too long
                    // to run for every use.
                    let warning = if has_started { self.warning(row.workspace_id).await } else { None };
                    return Ok(Open::new(Arc::clone(self), *row, activity, warning));
                }
                _ if Instant::now() >= until => {
                    let words = "another request is starting, stopping or deleting this sandbox; try again";
                    return Err(AccessError::unavailable(words));
                }
                Step::Again => {}
                Step::Started => has_started = true,
                // The row is read again after a notification or the time-out.
                Step::Wait => drop(timeout(POLL_INTERVAL, moved).await),
            }
        }
    }

    async fn step(self: &Arc<Self>, sought: &Sought) -> Result<Step, AccessError> {
        self.provider()?;
        let row = match sought {
            Sought::Row { workspace, id } => self.store.sandbox(*workspace, *id).await?.ok_or(AccessError::NotFound)?,
            Sought::Conversation { workspace, bot, of } => match self.look_for(*workspace, of).await? {
                Some(row) => {
                    belongs(&row, *bot, of)?;
                    row
                }
                None => return self.start(self.new_row(*workspace, *bot, of)?, true).await,
            },
        };
        self.is_in_reach(&row)?;
        match row.status {
            SandboxStatus::Deleting => self.wait_for_deletion(row).await,
            _ if row.is_claimed(self.clock.now()) => Ok(Step::Wait),
            SandboxStatus::Running if self.has_to_stop(&row).await? => {
                self.activities.cut(row.id);
                self.stop_row(row).await?;
                Ok(Step::Again)
            }
            SandboxStatus::Running => self.use_running(row).await,
            _ => self.start(row, false).await,
        }
    }

    async fn wait_for_deletion(self: &Arc<Self>, row: SandboxRow) -> Result<Step, AccessError> {
        let now = self.clock.now();
        if !row.is_claimed(now) && row.next_attempt_at.is_some_and(|at| now < at) {
            let words = "the previous sandbox of this conversation is not deleted yet; try again later";
            return Err(AccessError::unavailable(words));
        }
        self.delete_if_due(row).await;
        Ok(Step::Wait)
    }

    /// Finds the row of the conversation, or the row of another conversation whose sandbox has the same name.
    async fn look_for(&self, workspace: WorkspaceId, of: &Conversation) -> Result<Option<SandboxRow>, AccessError> {
        let provider = self.provider()?.name();
        let named = self.store.sandbox_of_provider(workspace, provider, &of.sandbox_id()).await?;
        match named {
            Some(row) => Ok(Some(row)),
            None => Ok(self.store.sandbox_of_conversation(workspace, of.app_id(), of.chat_id()).await?),
        }
    }

    fn is_in_reach(&self, row: &SandboxRow) -> Result<(), AccessError> {
        let provider = self.provider()?.name();
        if row.provider != provider {
            let own = &row.provider;
            let words = format!("this sandbox belongs to the provider `{own}`, but this server uses `{provider}`");
            return Err(AccessError::unavailable(words));
        }
        match &row.node {
            Some(node) if *node != self.node => {
                let words =
                    format!("this sandbox is on the server whose `node.id` is {node}; send the request to that server");
                Err(AccessError::unavailable(words))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the sandbox runs with a network that its workspace no longer allows.
    pub(super) async fn has_to_stop(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        if row.network.as_deref() != Some(word(Network::Full)) {
            return Ok(false);
        }
        match self.settings_of(row.workspace_id).await {
            Ok(settings) => Ok(settings.network != Some(Network::Full)),
            // If the settings are unreadable, the workspace allows no network.
            Err(StoreError::Corrupt { .. } | StoreError::Unverified { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Begins a use of a running sandbox. Registers the use and then reads the row again. A later deletion thus finds
    /// this use and cuts it off, so that the use never reaches a new sandbox of the same name.
    async fn use_running(&self, row: SandboxRow) -> Result<Step, AccessError> {
        let activity = self.activities.begin(row.id);
        let now = self.clock.now();
        let still_runs = if now.since_ms(row.last_active_at) >= TOUCH_AGAIN_MS {
            self.store.touch_sandbox(row.id, now).await?
        } else {
            let again = self.store.sandbox(row.workspace_id, row.id).await?;
            again.is_some_and(|row| row.status == SandboxStatus::Running)
        };
        Ok(if still_runs { Step::Entered(Box::new(row), activity) } else { Step::Again })
    }

    fn new_row(&self, workspace: WorkspaceId, bot: BotId, of: &Conversation) -> Result<SandboxRow, AccessError> {
        let now = self.clock.now();
        Ok(SandboxRow {
            id: SandboxInstanceId::new(),
            workspace_id: workspace,
            bot_id: bot,
            provider: self.provider()?.name().to_owned(),
            sandbox_id: of.sandbox_id(),
            app_id: Some(of.app_id().to_owned()),
            user_id: Some(of.user_id().to_owned()),
            chat_id: Some(of.chat_id().to_owned()),
            node: (!self.is_shared).then(|| self.node.clone()),
            status: SandboxStatus::Creating,
            operation: None,
            operation_until: None,
            last_active_at: now,
            created_at: now,
            limit: None,
            network: None,
            error: None,
            attempts: 0,
            next_attempt_at: None,
            labels: Some(Labels::none()),
        })
    }

    /// Claims `row`, or inserts it if `is_new` is true, and starts its sandbox. Returns [`Step::Again`] if the stored row
    /// has changed since the caller read `row`. The start continues if the caller is cancelled, so that no row stays
    /// claimed.
    async fn start(self: &Arc<Self>, row: SandboxRow, is_new: bool) -> Result<Step, AccessError> {
        let this = Arc::clone(self);
        let task = self.running.spawn(async move { this.claim_and_start(row, is_new).await });
        task.await.unwrap_or_else(|error| {
            Err(SandboxError::unavailable_because("the task that starts the sandbox failed", error).into())
        })
    }

    async fn claim_and_start(&self, row: SandboxRow, is_new: bool) -> Result<Step, AccessError> {
        let _comparing = self.comparing.read().await;
        // The row must not change if the provider is unavailable.
        let provider = self.provider()?;
        provider.capabilities()?;
        // This check precedes the claim, because the claim could stop another sandbox in favour of a sandbox that
        // cannot run.
        if has_run(&row) && within(LOOK_MAX, "find the sandbox", provider.inspect(&name(&row))).await?.is_none() {
            return self.find_files(provider.as_ref(), &row).await;
        }
        let settings = self.settings_of(row.workspace_id).await?;
        let operation = operation();
        match self.claim(&row, is_new, &operation).await? {
            Claimed::Mine => {}
            Claimed::Moved => return Ok(Step::Again),
            Claimed::NoPlace(why) => {
                return Err(AccessError::Provider(SandboxError::Exhausted(why.words(&self.options))));
            }
            Claimed::Limit(words) => return Err(AccessError::Limit(words)),
        }
        let started = self.run_claimed(provider.as_ref(), &row, &operation, spec(&settings, &self.options)).await;
        self.moved.notify_waiters();
        started
    }

    /// Restores the files of a sandbox that were set aside. Marks the sandbox as lost if no such files exist.
    async fn find_files(&self, provider: &dyn SandboxProvider, row: &SandboxRow) -> Result<Step, AccessError> {
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if !self.store.claim_sandbox(row, row.status, &operation, until).await? {
            return Ok(Step::Again);
        }
        let restored = within(START_MAX, "restore the sandbox", provider.restore(&name(row), row.created_at)).await;
        if matches!(restored, Ok(false)) {
            self.settle(row, &operation, row.status, &lost()).await?;
        } else {
            self.store.release_sandbox(row.id, &operation).await?;
        }
        self.moved.notify_waiters();
        if restored? {
            return Ok(Step::Again);
        }
        log_lost(row);
        Err(AccessError::Lost)
    }

    /// Stores the result of an operation that set the sandbox to the status `from`.
    async fn settle(
        &self,
        row: &SandboxRow,
        operation: &str,
        from: SandboxStatus,
        settled: &SandboxSettled,
    ) -> Result<(), StoreError> {
        if !self.store.settle_sandbox(row.id, operation, from, settled).await? {
            // The sandbox was marked for deletion during the operation. The release lets the deletion continue.
            self.store.release_sandbox(row.id, operation).await?;
            self.deletion.notify_one();
        }
        Ok(())
    }

    async fn run_claimed(
        &self,
        provider: &dyn SandboxProvider,
        row: &SandboxRow,
        operation: &str,
        spec: Spec,
    ) -> Result<Step, AccessError> {
        let started = within(START_MAX, "start the sandbox", ensure(provider, row, spec)).await;
        let settled = match &started {
            Ok(None) => lost(),
            Ok(Some(_)) => SandboxSettled {
                status: SandboxStatus::Running,
                last_active_at: Some(self.clock.now()),
                error: None,
                limit: Some(limits_json(&spec.limits)),
                network: Some(word(spec.network).to_owned()),
            },
            Err(error) => SandboxSettled {
                status: SandboxStatus::Error,
                last_active_at: None,
                error: Some(super::described(error)),
                limit: None,
                network: None,
            },
        };
        if matches!(started, Ok(Some(Ensured::Created | Ensured::Resumed))) {
            self.quiet.lock().insert(row.id);
        }
        self.settle(row, operation, SandboxStatus::Creating, &settled).await?;
        match started {
            Ok(None) => {
                log_lost(row);
                Err(AccessError::Lost)
            }
            Ok(Some(ensured)) => {
                tracing::info!(sandbox.id = %row.id, ?ensured, "a sandbox was started");
                Ok(Step::Started)
            }
            // Another request has changed the sandbox during the start, so the row is read again.
            Err(SandboxError::Conflict(_)) => Ok(Step::Wait),
            Err(error) => {
                tracing::warn!(sandbox.id = %row.id, error = super::described(&error), "failed to start a sandbox");
                Err(error.into())
            }
        }
    }
}

/// Returns the state of a sandbox whose files are missing.
fn lost() -> SandboxSettled {
    SandboxSettled {
        status: SandboxStatus::Lost,
        last_active_at: None,
        error: Some(AccessError::Lost.to_string()),
        limit: None,
        network: None,
    }
}

/// Logs the loss of a sandbox, unless the loss is already known.
fn log_lost(row: &SandboxRow) {
    if row.status != SandboxStatus::Lost {
        tracing::error!(sandbox.id = %row.id, "a sandbox is lost, because its files are missing");
    }
}

/// Starts the sandbox of a row. Returns `None` if the sandbox has run before and its files are missing, because the
/// caller would mistake a new sandbox for the old sandbox.
async fn ensure(provider: &dyn SandboxProvider, row: &SandboxRow, spec: Spec) -> Result<Option<Ensured>, SandboxError> {
    let name = name(row);
    if has_run(row) && provider.inspect(&name).await?.is_none() && !provider.restore(&name, row.created_at).await? {
        return Ok(None);
    }
    provider.ensure_running(&name, spec).await.map(Some)
}

/// Checks that a sandbox belongs to the conversation and the bot. The name of the sandbox does not prove this, because
/// two conversations can have the same name.
fn belongs(row: &SandboxRow, bot: BotId, of: &Conversation) -> Result<(), AccessError> {
    let is = |own: &Option<String>, named: &str| own.as_deref() == Some(named);
    let is_same_chat = is(&row.app_id, of.app_id()) && is(&row.chat_id, of.chat_id());
    if is_same_chat && !is(&row.user_id, of.user_id()) {
        return Err(AccessError::OtherUser);
    }
    if !is_same_chat {
        return Err(AccessError::Conflict("another conversation's sandbox has the same name"));
    }
    if row.bot_id != bot {
        return Err(AccessError::Conflict("the sandbox of this conversation belongs to another bot"));
    }
    Ok(())
}
