//! Places for running sandboxes: claiming one, and stopping an idle sandbox to free one.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use monstrum_store::{SandboxRow, SandboxStatus, StoreError};
use tokio::time::timeout;

use super::shares::{NoPlace, Others, Shares, Taken};
use super::{Fault, LEASE_MS, Sandboxes};

/// How long a claim waits for other claims that free a place.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a claim frees a place that another claim then takes.
const TRIES: usize = 3;
/// A sandbox that was used within this time is not stopped for another one.
const SPARED_MS: i64 = 60_000;
/// How long a claim tries to free a place.
const MAKING_MAX: Duration = Duration::from_secs(5);
/// How many rows are read at once.
const ROWS: u32 = 200;

/// The result of a claim.
pub(super) enum Claimed {
    Mine,
    /// The row has changed.
    Moved,
    NoPlace(NoPlace),
    /// The workspace has reached the limit of sandboxes that it keeps; the error text.
    Limit(String),
}

/// Whether a sandbox was stopped for this claim, so that the claim may take its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    New,
    OfAnother,
}

impl Sandboxes {
    /// Claims an unchanged row, or inserts a new one as claimed. If no place is free, an idle sandbox is stopped.
    pub(super) async fn claim(&self, row: &SandboxRow, is_new: bool, operation: &str) -> Result<Claimed, Fault> {
        let why = match self.try_claim(row, is_new, operation, Place::New).await? {
            Claimed::NoPlace(why) => why,
            claimed => return Ok(claimed),
        };
        let Ok(_one_at_a_time) = timeout(WAIT_MAX, self.making_room.lock()).await else {
            return Ok(Claimed::NoPlace(why));
        };
        // The server may be shutting down by now.
        self.provider()?;
        let mut place = Place::New;
        for _ in 0..TRIES {
            match self.try_claim(row, is_new, operation, place).await? {
                // Another claim may take the freed place.
                Claimed::NoPlace(why) if self.make_room(row, why).await? => place = Place::OfAnother,
                claimed => return Ok(claimed),
            }
        }
        self.try_claim(row, is_new, operation, place).await
    }

    async fn try_claim(&self, row: &SandboxRow, is_new: bool, operation: &str, place: Place) -> Result<Claimed, Fault> {
        let _claiming = self.claiming.lock().await;
        let limit = if is_new { self.kept_by(row.workspace_id).await?.refusal(&self.options) } else { None };
        let refused = match limit {
            Some(words) => Some(Claimed::Limit(words)),
            None => self.refusal(row, place).await?.map(Claimed::NoPlace),
        };
        if let Some(refused) = refused {
            // Another call may have created this very sandbox by now.
            let is_there = is_new
                && self.store.sandbox_of_provider(row.workspace_id, &row.provider, &row.sandbox_id).await?.is_some();
            return Ok(if is_there { Claimed::Moved } else { refused });
        }
        let until = self.clock.now().plus_ms(LEASE_MS);
        let is_claimed = if is_new {
            let claimed =
                SandboxRow { operation: Some(operation.to_owned()), operation_until: Some(until), ..row.clone() };
            match self.store.insert_sandbox(&claimed).await {
                Ok(true) => true,
                // The bot was deleted.
                Ok(false) => return Err(Fault::NotFound),
                Err(StoreError::Conflict { .. }) => false,
                Err(error) => return Err(error.into()),
            }
        } else {
            self.store.claim_sandbox(row, SandboxStatus::Creating, operation, until).await?
        };
        Ok(if is_claimed { Claimed::Mine } else { Claimed::Moved })
    }

    /// Why the sandbox of a row gets no place; `None` if it gets one.
    async fn refusal(&self, row: &SandboxRow, place: Place) -> Result<Option<NoPlace>, StoreError> {
        let shares = Shares::of(&self.options);
        let taken = self.taken_but(row).await?;
        let (workspace, bot) = (row.workspace_id, row.bot_id);
        if place == Place::OfAnother {
            return Ok(shares.is_full(&taken).then_some(NoPlace::All));
        }
        let refused = shares.refusal(&taken, workspace, bot, Others { workspaces: true, bots: true });
        // Other workspaces and bots matter only to a refusal.
        if matches!(refused, None | Some(NoPlace::All)) {
            return Ok(refused);
        }
        let others = Others {
            workspaces: self.store.other_workspaces_may_use_sandboxes(workspace).await?,
            bots: self.store.other_bots_may_use_sandboxes(bot).await?,
        };
        Ok(shares.refusal(&taken, workspace, bot, others))
    }

    async fn taken_but(&self, row: &SandboxRow) -> Result<Taken, StoreError> {
        Ok(Taken::of(&self.store.running_sandboxes_by_bot(&self.node, row.id).await?))
    }

    /// Stops an idle sandbox whose place `for_row` may take, and returns whether there was one. Sandboxes of bots or
    /// workspaces over their share come first, then those that were unused for longest.
    async fn make_room(&self, for_row: &SandboxRow, why: NoPlace) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut idle: Vec<SandboxRow> = Vec::new();
        loop {
            let from = idle.last().map(|row| row.id);
            let rows = self.store.idle_sandboxes(&self.node, now.plus_ms(-SPARED_MS), now, from, ROWS).await?;
            if rows.is_empty() {
                break;
            }
            idle.extend(rows);
        }
        let (shares, taken) = (Shares::of(&self.options), self.taken_but(for_row).await?);
        let by = (for_row.workspace_id, for_row.bot_id);
        idle.retain(|row| {
            // A sandbox in error occupies no place.
            row.status != SandboxStatus::Error
                && !self.activities.is_active(row.id)
                && shares.may_displace(&taken, why, by, (row.workspace_id, row.bot_id))
        });
        idle.sort_by_key(|row| (Reverse(shares.excess(&taken, row.workspace_id, row.bot_id)), row.last_active_at));
        let begun = Instant::now();
        for row in &idle {
            match self.claim_and_stop(row).await {
                Ok(true) => {
                    tracing::info!(sandbox.id = %row.id, "a sandbox was stopped for another one");
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(sandbox.id = %row.id, %error, "a sandbox is not stopped for another one"),
            }
            // Other claims wait for this one.
            if begun.elapsed() > MAKING_MAX {
                break;
            }
        }
        Ok(false)
    }
}
