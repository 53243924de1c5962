//! Claims places for running sandboxes, and stops an idle sandbox if no place is free.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use monstrum_store::{SandboxRow, SandboxStatus, StoreError};
use monstrum_types::{BotId, WorkspaceId, with_causes};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout_at};

use super::shares::{NoPlace, Others, Shares, Taken};
use super::{AccessError, LEASE_MS, Sandboxes};

/// The maximum time for which a claim waits for other claims that make room.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The maximum number of attempts to make room and claim the place.
const TRIES: usize = 3;
/// The time in milliseconds for which a sandbox must be unused before it may be stopped to make room for another
/// sandbox.
const SPARED_MS: i64 = 60_000;
/// The time after which a claim starts no further attempt to make room.
const MAKING_MAX: Duration = Duration::from_secs(5);
/// The number of rows in one read.
const ROWS: u32 = 200;

/// The result of a claim.
pub(super) enum Claimed {
    Mine,
    /// The row has changed.
    Moved,
    NoPlace(NoPlace),
    /// The workspace has reached its limit of sandboxes or disk space. The text is the message for the caller.
    Limit(String),
}

/// The origin of the place that a claim takes: a free place, or the place of a sandbox that was stopped for this claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    New,
    OfAnother,
}

/// The scope that has no free place. In each scope, one claim at a time makes room. A bot or workspace that has reached
/// its share stops its own sandboxes, and must not block the claims of other bots and workspaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Room {
    Bot(BotId),
    Workspace(WorkspaceId),
    Host,
}

impl Room {
    fn of(why: NoPlace, row: &SandboxRow) -> Room {
        match why {
            NoPlace::Bot => Room::Bot(row.bot_id),
            NoPlace::Workspace => Room::Workspace(row.workspace_id),
            // In both of these cases, a claim may stop sandboxes of other workspaces.
            NoPlace::Newcomers | NoPlace::All => Room::Host,
        }
    }
}

/// The locks of all scopes. The claim that makes room in a scope holds the lock of that scope.
#[derive(Default)]
pub(super) struct RoomLocks(parking_lot::Mutex<HashMap<Room, Arc<Mutex<()>>>>);

impl RoomLocks {
    async fn lock(&self, room: Room) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(room).or_default())
        };
        lock.lock_owned().await
    }
}

impl Sandboxes {
    /// Claims a row that still matches `row`, or inserts the row with a claim. Stops an idle sandbox if no place is
    /// free.
    pub(super) async fn claim(&self, row: &SandboxRow, is_new: bool, operation: &str) -> Result<Claimed, AccessError> {
        let until = Instant::now() + WAIT_MAX;
        let mut place = Place::New;
        let mut claimed = self.try_claim(row, is_new, operation, place).await?;
        for _ in 0..TRIES {
            let Claimed::NoPlace(why) = claimed else { break };
            let room = Room::of(why, row);
            let Ok(_one_at_a_time) = timeout_at(until, self.making_room.lock(room)).await else { break };
            // The server may have begun to shut down while this claim waited.
            self.provider()?;
            claimed = self.claim_in(room, row, is_new, operation, &mut place).await?;
            if matches!(claimed, Claimed::NoPlace(why) if Room::of(why, row) == room) {
                break;
            }
        }
        Ok(claimed)
    }

    /// Claims a row and makes room for its sandbox in `room`, whose lock the caller holds. Ends early if another scope
    /// has no free place.
    async fn claim_in(
        &self,
        room: Room,
        row: &SandboxRow,
        is_new: bool,
        operation: &str,
        place: &mut Place,
    ) -> Result<Claimed, AccessError> {
        for _ in 0..TRIES {
            match self.try_claim(row, is_new, operation, *place).await? {
                // Another claim may take the place before the next attempt.
                Claimed::NoPlace(why) if Room::of(why, row) == room && self.make_room(row, why).await? => {
                    *place = Place::OfAnother;
                }
                claimed => return Ok(claimed),
            }
        }
        self.try_claim(row, is_new, operation, *place).await
    }

    async fn try_claim(
        &self,
        row: &SandboxRow,
        is_new: bool,
        operation: &str,
        place: Place,
    ) -> Result<Claimed, AccessError> {
        let _claiming = self.claiming.lock().await;
        let limit = if is_new { self.kept_by(row.workspace_id).await?.refusal(&self.options) } else { None };
        let refused = match limit {
            Some(words) => Some(Claimed::Limit(words)),
            None => self.refusal(row, place).await?.map(Claimed::NoPlace),
        };
        if let Some(refused) = refused {
            // Another call may have created the same sandbox and taken the place.
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
                // `false` means that the bot was deleted.
                Ok(false) => return Err(AccessError::NotFound),
                Err(StoreError::Conflict { .. }) => false,
                Err(error) => return Err(error.into()),
            }
        } else {
            self.store.claim_sandbox(row, SandboxStatus::Creating, operation, until).await?
        };
        Ok(if is_claimed { Claimed::Mine } else { Claimed::Moved })
    }

    /// Returns the reason why the sandbox of a row does not get a place, or `None` if the sandbox gets a place.
    async fn refusal(&self, row: &SandboxRow, place: Place) -> Result<Option<NoPlace>, StoreError> {
        let shares = Shares::of(&self.options);
        let taken = self.taken_but(row).await?;
        let (workspace, bot) = (row.workspace_id, row.bot_id);
        if place == Place::OfAnother {
            return Ok(shares.is_full(&taken).then_some(NoPlace::All));
        }
        let refused = shares.refusal(&taken, workspace, bot, Others { workspaces: true, bots: true });
        // These two results do not depend on whether other bots or workspaces may use sandboxes.
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

    /// Stops a sandbox whose place `for_row` may take, and returns whether a sandbox was stopped. Tries the sandboxes
    /// of bots and workspaces that exceed their share first, in the order of their last use. Tries the sandboxes whose
    /// previous stop failed after all other sandboxes, because each attempt takes time.
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
            // A sandbox in state `error` does not occupy a place.
            row.status != SandboxStatus::Error
                && !self.activities.is_active(row.id)
                && shares.may_displace(&taken, why, by, (row.workspace_id, row.bot_id))
        });
        idle.sort_by_key(|row| {
            let excess = shares.excess(&taken, row.workspace_id, row.bot_id);
            (row.error.is_some(), Reverse(excess), row.last_active_at)
        });
        let begun = Instant::now();
        for row in &idle {
            match self.claim_and_stop(row).await {
                Ok(true) => {
                    tracing::info!(sandbox.id = %row.id, "a sandbox was stopped to make room for another sandbox");
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(sandbox.id = %row.id, error = %with_causes(&error), "failed to stop a sandbox");
                }
            }
            // This claim gives up after `MAKING_MAX`, because other claims are waiting.
            if begun.elapsed() > MAKING_MAX {
                break;
            }
        }
        Ok(false)
    }
}
