//! The subscriptions that plugins make during a call.
//!
//! A plugin subscribes the bot that calls it, to events of this bot and only through a binding that permits it. The tasks
//! can use nothing but the tools of the plugin and those that the binding lets the plugin call, and the subscription ends
//! after some time unless an admin confirms it. A plugin sees and removes only the subscriptions that it has made.

use std::sync::Arc;

use monstrum_api::tasks::Narrow;
use monstrum_store::{StoreError, SubscriptionMaker, SubscriptionRow};
use monstrum_types::{BotId, Code, PluginName, SubscriptionId, WorkspaceId};
use serde_json::{Value, json};

use super::Emitter;
use crate::audit::{AuditUnavailable, Change};
use crate::events::{EventSource, SUBSCRIPTIONS_MAX, subscription_faults};
use crate::policy::Subscription;

/// The time after which a subscription of a plugin ends, unless an admin confirms it: 30 days.
const ENDS_AFTER_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// A plugin that a bot calls, as far as its subscriptions are concerned.
#[derive(Clone, Debug)]
pub struct PluginSubscriber {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub plugin: PluginName,
    /// The tools that the tasks may use, as globs.
    pub tools: Vec<String>,
}

/// An error while a plugin changes its subscriptions.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    #[error("{0}")]
    Invalid(String),
    #[error("the bot has {SUBSCRIPTIONS_MAX} subscriptions, which is the maximum")]
    Full,
    #[error("the audit cannot be written")]
    Audit(#[from] AuditUnavailable),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

impl SubscribeError {
    fn code(&self) -> Code {
        match self {
            SubscribeError::Invalid(_) => Code::InvalidParams,
            SubscribeError::Full => Code::Limit,
            SubscribeError::Audit(_) | SubscribeError::Store(_) => Code::Unavailable,
        }
    }
}

impl PluginSubscriber {
    fn has_made(&self, row: &SubscriptionRow) -> bool {
        row.bot_id == self.bot
            && row.made_by_kind == SubscriptionMaker::Plugin
            && row.made_by_id == self.plugin.as_str()
    }
}

impl Emitter {
    /// Subscribes the bot to events of its own.
    ///
    /// # Errors
    ///
    /// The pattern or the instruction is invalid, or the bot has too many subscriptions.
    pub async fn subscribe(
        &self,
        by: &PluginSubscriber,
        pattern: String,
        instruction: String,
    ) -> Result<SubscriptionId, SubscribeError> {
        if let Some(fault) = subscription_faults(&pattern, &instruction).into_iter().next() {
            let field = fault.path.trim_start_matches('/');
            return Err(SubscribeError::Invalid(format!("{field}: {}", fault.message)));
        }
        let now = self.clock.now();
        let narrow = Narrow { allowed_tools: Some(by.tools.clone()), ..Narrow::default() };
        let row = SubscriptionRow {
            id: SubscriptionId::new(),
            workspace_id: by.workspace,
            bot_id: by.bot,
            pattern,
            instruction,
            sources: json!([EventSource::Own.to_string()]),
            narrow: Some(json!(narrow)),
            active: true,
            made_by_kind: SubscriptionMaker::Plugin,
            made_by_id: by.plugin.to_string(),
            starters: json!([]),
            expires_at: Some(now.plus_ms(ENDS_AFTER_MS)),
            created_at: now,
            updated_at: now,
        };
        let change = Change { after: shown(&row), ..self.change("subscription.create", &row) };
        let insert = async {
            match self.store.insert_subscription(&row, SUBSCRIPTIONS_MAX).await? {
                true => Ok(self.policy.renew().await?),
                false => Err(SubscribeError::Full),
            }
        };
        self.recorded(change, insert).await?;
        Ok(row.id)
    }

    /// Removes a subscription that the plugin has made for the bot. Returns `false` if the plugin has not made it.
    ///
    /// # Errors
    ///
    /// The audit or the database failed.
    pub async fn unsubscribe(&self, by: &PluginSubscriber, id: SubscriptionId) -> Result<bool, SubscribeError> {
        let found = self.store.subscription(by.workspace, id).await?;
        let Some(row) = found.filter(|row| by.has_made(row)) else { return Ok(false) };
        let change = Change { before: shown(&row), ..self.change("subscription.delete", &row) };
        let delete = async {
            let now = self.clock.now();
            let is_deleted = self.store.delete_subscription(by.workspace, id, row.updated_at, now).await?;
            self.policy.renew().await?;
            Ok(is_deleted)
        };
        self.recorded(change, delete).await
    }

    /// Returns the subscriptions that the plugin has made for the bot.
    pub fn subscriptions(&self, by: &PluginSubscriber) -> Vec<Arc<Subscription>> {
        let snapshot = self.policy.load();
        let of_workspace = snapshot.subscriptions().of_workspace(by.workspace);
        of_workspace.filter(|subscription| by.has_made(&subscription.row)).cloned().collect()
    }

    fn change(&self, what: &'static str, row: &SubscriptionRow) -> Change {
        Change { bot: Some(row.bot_id), ..Change::new(row.workspace_id, what, row.id.to_string()) }
    }

    async fn recorded<T>(
        &self,
        change: Change,
        work: impl Future<Output = Result<T, SubscribeError>>,
    ) -> Result<T, SubscribeError> {
        let (done, closed) = self.auditor.record(change, work, SubscribeError::code).await?;
        closed?;
        done
    }
}

/// Returns a subscription as the audit records it.
fn shown(row: &SubscriptionRow) -> Value {
    json!({
        "id": row.id,
        "bot_id": row.bot_id,
        "pattern": row.pattern,
        "instruction": row.instruction,
        "from": row.sources,
        "narrow": row.narrow,
        "active": row.active,
        "made_by": { "kind": row.made_by_kind.as_str(), "id": row.made_by_id },
        "expires_at": row.expires_at,
        "created_at": row.created_at,
    })
}
