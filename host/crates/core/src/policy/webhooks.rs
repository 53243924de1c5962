//! The webhooks in force.

use std::sync::Arc;

use monstrum_store::{Changed, WebhookRow};
use monstrum_types::WebhookId;

use super::Snapshot;

/// The webhooks of a snapshot. Their secrets are sealed.
#[derive(Clone, Default)]
pub struct Webhooks(imbl::HashMap<WebhookId, Arc<WebhookRow>>);

impl Webhooks {
    /// Returns the webhook with this id, in any workspace.
    pub fn of_id(&self, id: WebhookId) -> Option<&Arc<WebhookRow>> {
        self.0.get(&id)
    }

    /// Applies changes of webhooks.
    pub(super) fn change(&mut self, rows: Changed<WebhookId, WebhookRow>) {
        for (id, row) in rows {
            match row {
                Some(row) => self.0.insert(id, Arc::new(row)),
                None => self.0.remove(&id),
            };
        }
    }
}

impl Snapshot {
    /// Returns the webhooks of all workspaces whose rows match their seals.
    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }
}
