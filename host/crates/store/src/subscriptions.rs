//! Subscriptions: which events start tasks of a bot.

use monstrum_types::{BotId, SubscriptionId, UtcMillis, WorkspaceId, words};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{DeliveryReason, Listed, Page, Store, StoreError};

words! {
    /// The kind of what made a subscription.
    pub enum SubscriptionMaker {
        /// A person, or a program with a key.
        Key = "key",
        /// A plugin, during a call.
        Plugin = "plugin",
    }
}

/// A row of `subscriptions`.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionRow {
    pub id: SubscriptionId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// A glob over the types of events.
    pub pattern: String,
    /// What the bot is to do, with placeholders.
    pub instruction: String,
    /// Whose events match: a JSON list of words and ids of bots.
    pub sources: Value,
    /// What the tasks may do less than the bot, as a JSON object.
    pub narrow: Option<Value>,
    pub active: bool,
    pub made_by_kind: SubscriptionMaker,
    /// The id of the key, or the name of the plugin.
    pub made_by_id: String,
    /// The keys that made or changed the subscription: a JSON list of ids.
    pub starters: Value,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    SubscriptionRow in Subscriptions("subscriptions"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, bot_id, pattern, instruction, sources, narrow, active, made_by_kind, made_by_id, starters,
        expires_at, created_at, updated_at,
    ],
    others: [],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!("where workspace_id = $1 and ($2 is null or bot_id = $2) and id > $3 order by id limit $4");
pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and bot_id = $2");
const COUNT_OF_BOT: &str = "select count(*) as value from subscriptions where workspace_id = $1 and bot_id = $2";
const END_DELIVERIES: &str = "\
    update deliveries set status = 'dead', reason = $3, next_at = null, ended_at = $4 \
    where workspace_id = $1 and target_kind = 'subscription' and target_id = $2 and status = 'pending'";

impl SubscriptionRow {
    /// Returns whether events match the subscription at `now`, as far as its state is concerned.
    #[must_use]
    pub fn is_in_force(&self, now: UtcMillis) -> bool {
        self.active && self.expires_at.is_none_or(|end| end > now)
    }
}

impl Store {
    /// Inserts a subscription. Returns `false` if its bot has `max` of them already.
    pub async fn insert_subscription(&self, row: &SubscriptionRow, max: i64) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let of_bot: Option<i64> = change.session.one(COUNT_OF_BOT, args![row.workspace_id, row.bot_id]).await?;
                if of_bot.unwrap_or(i64::MAX) >= max {
                    return Ok(false);
                }
                change.insert(row, Vec::new(), Vec::new()).await?;
                Ok(true)
            }
            .await
        })
    }

    /// Returns the subscription with this id in the workspace.
    pub async fn subscription(
        &self,
        workspace: WorkspaceId,
        id: SubscriptionId,
    ) -> Result<Option<SubscriptionRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the subscriptions in a workspace, or of a bot, in the order of their creation.
    pub async fn subscriptions(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        page: &Page<SubscriptionId>,
    ) -> Result<Listed<SubscriptionRow, SubscriptionId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, bot], page).await
    }

    /// Updates a subscription that was last changed at `before`. Returns `false` if it was changed since or does not exist.
    pub async fn update_subscription(&self, row: &SubscriptionRow, before: UtcMillis) -> Result<bool, StoreError> {
        let is_that_version = |old: &SubscriptionRow| old.workspace_id == row.workspace_id && old.updated_at == before;
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old| is_that_version(old).then(|| row.clone())).await
        })
    }

    /// Deletes a subscription that was last changed at `before`, and ends its pending deliveries. Tasks that it has started
    /// go on. Returns `false` if the subscription was changed since or does not exist.
    pub async fn delete_subscription(
        &self,
        workspace: WorkspaceId,
        id: SubscriptionId,
        before: UtcMillis,
        now: UtcMillis,
    ) -> Result<bool, StoreError> {
        let is_that_version = |old: &SubscriptionRow| old.workspace_id == workspace && old.updated_at == before;
        change!(self, &[Scope::from(workspace)], |change| {
            async {
                if !change.delete(args![id], is_that_version).await? {
                    return Ok(false);
                }
                let values = args![workspace, id, DeliveryReason::Deleted.as_str(), now];
                change.session.run(END_DELIVERIES, values).await?;
                Ok(true)
            }
            .await
        })
    }
}
