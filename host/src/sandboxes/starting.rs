//! Finding or creating the sandbox of a conversation, and starting it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use monstrum_sandbox::{Ensured, Network, SandboxError, SandboxProvider, Spec};
use monstrum_store::{SandboxRow, SandboxSettled, SandboxStatus, StoreError};
use monstrum_types::{BotId, SandboxInstanceId, WorkspaceId};
use tokio::time::{Instant, timeout};

use super::activity::Activity;
use super::open::taken_away;
use super::room::Claimed;
use super::settings::{told, word};
use super::{Conversation, Fault, LEASE_MS, Open, Sandboxes, has_run, name, operation, within};

/// How long a provider may take to start a sandbox, far longer than any needs.
const START_MAX: Duration = Duration::from_secs(60);
/// How long a provider may take to report whether it has the files of a sandbox.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How long a call waits for other operations on its sandbox: one start, and what precedes it.
const WAIT_MAX: Duration = Duration::from_secs(75);
/// The poll interval while waiting, unless a change is reported earlier.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How old the recorded activity may be when a sandbox is used again.
const TOUCH_AGAIN_MS: i64 = 200;
/// How old the recorded activity may be during a use: less than half of the shortest idle time, so that no sweep treats
/// a sandbox in use as idle.
pub(super) const TOUCH_MS: i64 = 2000;

/// The requested sandbox.
#[derive(Clone)]
enum Sought {
    Conversation { workspace: WorkspaceId, bot: BotId, of: Conversation },
    Row { workspace: WorkspaceId, id: SandboxInstanceId },
}

/// The result of one step.
enum Step {
    Entered(Box<SandboxRow>, Activity),
    /// The row has changed.
    Again,
    /// The sandbox was started.
    Started,
    /// Another operation is in progress.
    Wait,
}

impl Sandboxes {
    /// The sandbox of a conversation, running. It is created if necessary.
    pub async fn of_conversation(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        of: &Conversation,
    ) -> Result<Open, Fault> {
        self.enter(Sought::Conversation { workspace, bot, of: of.clone() }).await
    }

    /// An existing sandbox, running.
    pub async fn open(self: &Arc<Self>, row: &SandboxRow) -> Result<Open, Fault> {
        self.enter(Sought::Row { workspace: row.workspace_id, id: row.id }).await
    }

    /// Starts a sandbox that the provider reports as stopped, even if its row says that it runs.
    pub(super) async fn revive(self: &Arc<Self>, row: &SandboxRow) -> Result<(), Fault> {
        let sought = Sought::Row { workspace: row.workspace_id, id: row.id };
        if let Some(row) = self.store.sandbox(row.workspace_id, row.id).await?
            && row.status == SandboxStatus::Running
            && !row.is_claimed(self.clock.now())
        {
            self.start(row, false).await?;
        }
        match self.enter(sought).await {
            Err(Fault::NotFound) => Err(taken_away().into()),
            entered => entered.map(drop),
        }
    }

    async fn enter(self: &Arc<Self>, sought: Sought) -> Result<Open, Fault> {
        let until = Instant::now() + WAIT_MAX;
        let mut has_started = false;
        loop {
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            match self.step(&sought).await? {
                Step::Entered(row, activity) => {
                    // Counting is too slow for every use.
                    let warning = if has_started { self.warning(row.workspace_id).await } else { None };
                    return Ok(Open::new(Arc::clone(self), *row, activity, warning));
                }
                _ if Instant::now() >= until => {
                    let words = "others start, stop or delete this sandbox at present; try again";
                    return Err(Fault::unavailable(words));
                }
                Step::Again => {}
                Step::Started => has_started = true,
                // Looks again after a notification or the interval.
                Step::Wait => drop(timeout(LOOK_AGAIN, moved).await),
            }
        }
    }

    async fn step(self: &Arc<Self>, sought: &Sought) -> Result<Step, Fault> {
        self.provider()?;
        let row = match sought {
            Sought::Row { workspace, id } => self.store.sandbox(*workspace, *id).await?.ok_or(Fault::NotFound)?,
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

    async fn wait_for_deletion(self: &Arc<Self>, row: SandboxRow) -> Result<Step, Fault> {
        let now = self.clock.now();
        if !row.is_claimed(now) && row.next_attempt_at.is_some_and(|at| now < at) {
            let words = "the sandbox that this conversation had is not deleted yet; try again later";
            return Err(Fault::unavailable(words));
        }
        self.delete_if_due(row).await;
        Ok(Step::Wait)
    }

    /// The sandbox of the conversation, or another one with its name.
    async fn look_for(&self, workspace: WorkspaceId, of: &Conversation) -> Result<Option<SandboxRow>, Fault> {
        let provider = self.provider()?.name();
        let named = self.store.sandbox_of_provider(workspace, provider, &of.sandbox_id()).await?;
        match named {
            Some(row) => Ok(Some(row)),
            None => Ok(self.store.sandbox_of_conversation(workspace, of.app_id(), of.chat_id()).await?),
        }
    }

    fn is_in_reach(&self, row: &SandboxRow) -> Result<(), Fault> {
        let provider = self.provider()?.name();
        if row.provider != provider {
            let own = &row.provider;
            let words = format!("this sandbox is one of the provider `{own}`, and this server uses `{provider}`");
            return Err(Fault::unavailable(words));
        }
        match &row.node {
            Some(node) if *node != self.node => {
                let words = format!("this sandbox is on the server whose node.id is {node}; ask that one");
                Err(Fault::unavailable(words))
            }
            _ => Ok(()),
        }
    }

    /// Whether the sandbox has a network that its workspace no longer has.
    pub(super) async fn has_to_stop(&self, row: &SandboxRow) -> Result<bool, StoreError> {
        if row.network.as_deref() != Some(word(Network::Full)) {
            return Ok(false);
        }
        match self.settings_of(row.workspace_id).await {
            Ok(settings) => Ok(settings.network != Some(Network::Full)),
            // Settings that cannot be read permit nothing.
            Err(StoreError::Corrupt { .. } | StoreError::Unverified { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Marks the sandbox as in use, unless it was stopped or deleted at this moment. The row is read again after that:
    /// a later deletion finds this use and cuts it off, so that the use never continues in a new sandbox of the same
    /// name.
    async fn use_running(&self, row: SandboxRow) -> Result<Step, Fault> {
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

    fn new_row(&self, workspace: WorkspaceId, bot: BotId, of: &Conversation) -> Result<SandboxRow, Fault> {
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
        })
    }

    /// Starts the sandbox of a row, or of a new row. The start continues if the caller goes away, so that no unfinished
    /// row is left.
    async fn start(self: &Arc<Self>, row: SandboxRow, is_new: bool) -> Result<Step, Fault> {
        let this = Arc::clone(self);
        let task = self.running.spawn(async move { this.claim_and_start(row, is_new).await });
        task.await.unwrap_or_else(|error| {
            Err(SandboxError::unavailable_because("the start of the sandbox was given up", error).into())
        })
    }

    async fn claim_and_start(&self, row: SandboxRow, is_new: bool) -> Result<Step, Fault> {
        let _comparing = self.comparing.read().await;
        // Nothing is written for a provider that cannot start the sandbox.
        let provider = self.provider()?;
        provider.capabilities()?;
        // Checked before a place is claimed: the claim might stop another sandbox for one that cannot run.
        if has_run(&row) && within(LOOK_MAX, "looked for", provider.inspect(&name(&row))).await?.is_none() {
            return self.find_files(provider.as_ref(), &row).await;
        }
        let settings = self.settings_of(row.workspace_id).await?;
        let operation = operation();
        match self.claim(&row, is_new, &operation).await? {
            Claimed::Mine => {}
            Claimed::Moved => return Ok(Step::Again),
            Claimed::NoPlace(why) => {
                return Err(Fault::Provider(SandboxError::Exhausted(why.words(&self.settings))));
            }
            Claimed::Limit(words) => return Err(Fault::Limit(words)),
        }
        let started = self.have_it_run(provider.as_ref(), &row, &operation, settings.spec(&self.settings)).await;
        self.moved.notify_waiters();
        started
    }

    /// Restores files that were set aside. If there are none, the sandbox is lost.
    async fn find_files(&self, provider: &dyn SandboxProvider, row: &SandboxRow) -> Result<Step, Fault> {
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if !self.store.claim_sandbox(row, row.status, &operation, until).await? {
            return Ok(Step::Again);
        }
        let taken = within(START_MAX, "looked for", provider.restore(&name(row), row.created_at)).await;
        if matches!(taken, Ok(false)) {
            self.settle(row, &operation, row.status, &lost()).await?;
        } else {
            self.store.release_sandbox(row.id, &operation).await?;
        }
        self.moved.notify_waiters();
        if taken? {
            return Ok(Step::Again);
        }
        tell_lost(row);
        Err(Fault::Lost)
    }

    /// Finishes an operation that brought a sandbox to `from`.
    async fn settle(
        &self,
        row: &SandboxRow,
        operation: &str,
        from: SandboxStatus,
        settled: &SandboxSettled,
    ) -> Result<(), StoreError> {
        if !self.store.settle_sandbox(row.id, operation, from, settled).await? {
            // The row is being deleted by now, and the deletion may proceed.
            self.store.release_sandbox(row.id, operation).await?;
            self.deletion.notify_one();
        }
        Ok(())
    }

    async fn have_it_run(
        &self,
        provider: &dyn SandboxProvider,
        row: &SandboxRow,
        operation: &str,
        spec: Spec,
    ) -> Result<Step, Fault> {
        let started = within(START_MAX, "started", ensure(provider, row, spec)).await;
        let settled = match &started {
            Ok(None) => lost(),
            Ok(Some(_)) => SandboxSettled {
                status: SandboxStatus::Running,
                last_active_at: Some(self.clock.now()),
                error: None,
                limit: Some(told(&spec.limits)),
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
            self.quiet().insert(row.id);
        }
        self.settle(row, operation, SandboxStatus::Creating, &settled).await?;
        match started {
            Ok(None) => {
                tell_lost(row);
                Err(Fault::Lost)
            }
            Ok(Some(ensured)) => {
                tracing::info!(sandbox.id = %row.id, ?ensured, "a sandbox runs");
                Ok(Step::Started)
            }
            // Another operation has changed the sandbox: its state is read again.
            Err(SandboxError::Conflict(_)) => Ok(Step::Wait),
            Err(error) => {
                tracing::warn!(sandbox.id = %row.id, error = super::described(&error), "a sandbox was not started");
                Err(error.into())
            }
        }
    }
}

/// The row of a sandbox whose files are missing.
fn lost() -> SandboxSettled {
    SandboxSettled {
        status: SandboxStatus::Lost,
        last_active_at: None,
        error: Some(Fault::Lost.to_string()),
        limit: None,
        network: None,
    }
}

/// Logs a lost sandbox once.
fn tell_lost(row: &SandboxRow) {
    if row.status != SandboxStatus::Lost {
        tracing::error!(sandbox.id = %row.id, "the files of a sandbox are missing; it is not made anew");
    }
}

/// Starts the sandbox of a row; `None` if it ran before and its files are missing. A new sandbox in its place would
/// look like the one that the caller knows.
async fn ensure(provider: &dyn SandboxProvider, row: &SandboxRow, spec: Spec) -> Result<Option<Ensured>, SandboxError> {
    let name = name(row);
    if has_run(row) && provider.inspect(&name).await?.is_none() && !provider.restore(&name, row.created_at).await? {
        return Ok(None);
    }
    provider.ensure_running(&name, spec).await.map(Some)
}

/// Names of sandboxes are ambiguous: checks that this one belongs to the conversation and the bot.
fn belongs(row: &SandboxRow, bot: BotId, of: &Conversation) -> Result<(), Fault> {
    let is = |own: &Option<String>, named: &str| own.as_deref() == Some(named);
    let is_same_chat = is(&row.app_id, of.app_id()) && is(&row.chat_id, of.chat_id());
    if is_same_chat && !is(&row.user_id, of.user_id()) {
        return Err(Fault::OtherUser);
    }
    if !is_same_chat {
        return Err(Fault::Conflict("another conversation has the name that the sandbox of this one would have"));
    }
    if row.bot_id != bot {
        return Err(Fault::Conflict("this conversation has a sandbox with another bot"));
    }
    Ok(())
}
