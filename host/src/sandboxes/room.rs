//! A place for a sandbox that is to run: claiming one, and stopping a sandbox that nobody uses for it.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use monstrum_store::{SandboxRow, SandboxStatus, StoreError};
use tokio::time::timeout;

use super::shares::{NoPlace, Others, Shares, Taken};
use super::{Fault, LEASE_MS, Sandboxes};
use crate::plugins::with_causes;

/// How long a claim waits for others that make room, and how often it makes room that another claim takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
const TRIES: usize = 3;
/// For how long a sandbox that was just used is not stopped to make room for another one.
const SPARED_MS: i64 = 60_000;
/// How long it tries to make room.
const MAKING_MAX: Duration = Duration::from_secs(5);
/// How many rows are read at once.
const ROWS: u32 = 200;

/// What has come of a claim.
pub(super) enum Claimed {
    Mine,
    /// The row has moved on.
    Moved,
    NoPlace(NoPlace),
    /// The workspace keeps as many sandboxes as it may; in words.
    Limit(String),
}

/// Whether a sandbox was stopped for the one that is claimed, so that it has the other's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    New,
    OfAnother,
}

impl Sandboxes {
    /// Claims a row that stands as `row` says, or adds it, claimed. Where there is no place for it, one is made.
    pub(super) async fn claim(&self, row: &SandboxRow, is_new: bool, operation: &str) -> Result<Claimed, Fault> {
        let why = match self.try_claim(row, is_new, operation, Place::New).await? {
            Claimed::NoPlace(why) => why,
            claimed => return Ok(claimed),
        };
        let Ok(_one_at_a_time) = timeout(WAIT_MAX, self.making_room.lock()).await else {
            return Ok(Claimed::NoPlace(why));
        };
        // The server may have been told to end meanwhile.
        self.provider()?;
        let mut place = Place::New;
        for _ in 0..TRIES {
            match self.try_claim(row, is_new, operation, place).await? {
                // Another claim may take what was just made.
                Claimed::NoPlace(why) if self.make_room(row, why).await? => place = Place::OfAnother,
                claimed => return Ok(claimed),
            }
        }
        self.try_claim(row, is_new, operation, place).await
    }

    async fn try_claim(&self, row: &SandboxRow, is_new: bool, operation: &str, place: Place) -> Result<Claimed, Fault> {
        let _claiming = self.claiming.lock().await;
        let limit = if is_new { self.kept_by(row.workspace_id).await?.refusal(&self.settings) } else { None };
        let refused = match limit {
            Some(words) => Some(Claimed::Limit(words)),
            None => self.refusal(row, place).await?.map(Claimed::NoPlace),
        };
        if let Some(refused) = refused {
            // What takes the place may be this very sandbox, which another call has made by now.
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
                // Its bot is gone.
                Ok(false) => return Err(Fault::NotFound),
                Err(StoreError::Conflict { .. }) => false,
                Err(error) => return Err(error.into()),
            }
        } else {
            self.store.claim_sandbox(row, SandboxStatus::Creating, operation, until).await?
        };
        Ok(if is_claimed { Claimed::Mine } else { Claimed::Moved })
    }

    /// Why the sandbox of a row gets no place now.
    async fn refusal(&self, row: &SandboxRow, place: Place) -> Result<Option<NoPlace>, StoreError> {
        let shares = Shares::of(&self.settings);
        let taken = self.taken_but(row).await?;
        let (workspace, bot) = (row.workspace_id, row.bot_id);
        if place == Place::OfAnother {
            return Ok(shares.is_full(&taken).then_some(NoPlace::All));
        }
        let refused = shares.refusal(&taken, workspace, bot, Others { workspaces: true, bots: true });
        // Whether there are others matters to a refusal only.
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

    /// Stops a sandbox whose place `for_row` may have: of a bot or workspace that has more than its share before all
    /// others, and of several the one without use for longest; whether there was one.
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
        let (shares, taken) = (Shares::of(&self.settings), self.taken_but(for_row).await?);
        let by = (for_row.workspace_id, for_row.bot_id);
        idle.retain(|row| {
            // One in error has no place that another could take.
            row.status != SandboxStatus::Error
                && !self.activities.is_active(row.id)
                && shares.may_displace(&taken, why, by, (row.workspace_id, row.bot_id))
        });
        idle.sort_by_key(|row| (Reverse(shares.excess(&taken, row.workspace_id, row.bot_id)), row.last_active_at));
        let begun = Instant::now();
        for row in &idle {
            match self.claim_and_stop(row).await {
                Ok(true) => {
                    tracing::info!(sandbox.id = %row.id, "it was stopped for another one");
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(sandbox.id = %row.id, error = %with_causes(&error), "a sandbox is not stopped for another one")
                }
            }
            // Others wait behind this one.
            if begun.elapsed() > MAKING_MAX {
                break;
            }
        }
        Ok(false)
    }
}
