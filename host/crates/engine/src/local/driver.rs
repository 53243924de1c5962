//! The driver: finds the wakes that are due, and claims them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use monstrum_store::{DueCount, DueWake, StoreError, WakeClaim};
use monstrum_types::{UtcMillis, WakeClaimId};
use tokio::time::Instant;

use super::claims::{ANSWER_MAX, RETRY_PAUSE};
use super::{DrivesUntil, Inner};
use crate::handler::LeaseStart;
use crate::limits::{
    AHEAD, BATCH_MAX, DRIVER_LEASE, DRIVER_RENEW_INTERVAL, SCHEDULED_MAX, SEARCH_INTERVAL, SHARED_SEARCH_INTERVAL,
};
use crate::schedule::Scheduled;

/// The chore of the process that drives the wakes of a shared database.
pub(super) const CHORE: &str = "automation";
/// The number of wakes that a search ahead reads at once.
const PAGE: u32 = 1000;

/// The times of the last searches.
#[derive(Default)]
pub(super) struct Searches {
    /// The last search for all wakes of the next minute.
    ahead: Option<Instant>,
    /// The last search for wakes that are due.
    due: Option<Instant>,
}

impl Inner {
    /// Drives the wakes while this process is the driver.
    pub(super) async fn drive(self: &Arc<Self>) {
        let mut searches = Searches::default();
        loop {
            let pause = self.step(&mut searches).await;
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Does what is to be done now. Returns the time until there is something to do, unless something is signalled.
    pub(super) async fn step(self: &Arc<Self>, searches: &mut Searches) -> Duration {
        if !self.state.lock().drives() {
            // The loop that takes the lead notifies this one.
            return SEARCH_INTERVAL;
        }
        let searched = self.search(searches).await;
        let started = self.start_due().await;
        if let Some(error) = searched.err().or(started.err()) {
            tracing::warn!(%error, "cannot look for turns that are due; retrying");
            searches.ahead = None;
            return RETRY_PAUSE;
        }
        let interval = if self.store.is_shared() { SHARED_SEARCH_INTERVAL } else { SEARCH_INTERVAL };
        let next = self.state.lock().schedule.next_due();
        let until_next = next.map(|due_at| u64::try_from(due_at.since_ms(self.now())).unwrap_or(0));
        until_next.map_or(interval, |ms| interval.min(Duration::from_millis(ms)))
    }

    /// Searches the database for wakes, if it is time to.
    async fn search(&self, searches: &mut Searches) -> Result<(), StoreError> {
        if std::mem::take(&mut self.state.lock().has_to_search) {
            *searches = Searches::default();
        }
        let is_time = |last: Option<Instant>, interval| last.is_none_or(|last| last.elapsed() >= interval);
        if is_time(searches.ahead, SEARCH_INTERVAL) || self.state.lock().schedule.take_left_out() {
            self.search_ahead().await?;
            searches.ahead = Some(Instant::now());
            searches.due = searches.ahead;
            self.observer.due(self.store.count_due_wakes(self.clock.now()).await?);
        } else if self.store.is_shared() && is_time(searches.due, SHARED_SEARCH_INTERVAL) {
            let (due, now) = self.store.due_wakes(0, None, BATCH_MAX, self.clock.now()).await?;
            self.set_offset(now);
            self.schedule(&due);
            searches.due = Some(Instant::now());
        }
        Ok(())
    }

    /// Reads all wakes of the next minute, as far as there is room for them.
    async fn search_ahead(&self) -> Result<(), StoreError> {
        let ahead_ms = i64::try_from(AHEAD.as_millis()).unwrap_or(i64::MAX);
        let mut last: Option<DueWake> = None;
        let mut read = 0;
        // One more page than there is room for, so that the schedule notices wakes that it leaves out.
        while read <= SCHEDULED_MAX {
            let (due, now) = self.store.due_wakes(ahead_ms, last.as_ref(), PAGE, self.clock.now()).await?;
            self.set_offset(now);
            self.schedule(&due);
            read += due.len();
            let is_last = due.len() < PAGE as usize;
            last = due.into_iter().next_back();
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn set_offset(&self, now: UtcMillis) {
        if self.store.is_shared() {
            self.offset_ms.store(now.since_ms(self.clock.now()), Ordering::Relaxed);
        }
    }

    fn schedule(&self, due: &[DueWake]) {
        let mut state = self.state.lock();
        for DueWake { key, workspace_id, due_at } in due {
            if !state.running.contains_key(key) {
                let (key, workspace_id, due_at) = (key.clone(), *workspace_id, *due_at);
                state.schedule.add(Scheduled { key, workspace_id, due_at });
            }
        }
    }

    /// Claims wakes that are due, as far as there is room, and starts their turns.
    pub(super) async fn start_due(self: &Arc<Self>) -> Result<(), StoreError> {
        loop {
            let batch: Vec<(Scheduled, WakeClaimId)> = {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                if !state.drives() {
                    return Ok(());
                }
                let taken = state.schedule.take(self.now(), &mut state.room, BATCH_MAX as usize);
                let batch: Vec<_> = taken.into_iter().map(|wake| (wake, WakeClaimId::new())).collect();
                state.claiming.extend(batch.iter().map(|(_, id)| *id));
                batch
            };
            if batch.is_empty() {
                return Ok(());
            }
            let start = LeaseStart::now(self.clock.as_ref());
            let wakes: Vec<_> = batch.iter().map(|(wake, id)| (wake.key.clone(), wake.due_at, *id)).collect();
            let claimed = self.store.claim_wakes(&self.node, &wakes, self.clock.now()).await;
            self.started(batch, claimed, start)?;
        }
    }

    /// Starts the turns of the claims, and gives back the room of wakes that could not be claimed. If the database
    /// failed, the wakes are due again later.
    fn started(
        self: &Arc<Self>,
        batch: Vec<(Scheduled, WakeClaimId)>,
        claimed: Result<Vec<WakeClaim>, StoreError>,
        start: LeaseStart,
    ) -> Result<(), StoreError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (claims, error) = match claimed {
            Ok(claims) => (claims, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut claims: HashMap<WakeClaimId, _> = claims.into_iter().map(|claim| (claim.id, claim)).collect();
        let retry_at = self.now().plus_ms(i64::try_from(RETRY_PAUSE.as_millis()).unwrap_or(0));
        for (mut wake, id) in batch {
            state.claiming.remove(&id);
            match claims.remove(&id) {
                Some(claim) if !state.is_stopping && !state.running.contains_key(&claim.key) => {
                    self.begin(state, claim, start);
                }
                // The claim is released with all others when the process ends, or as one without a turn.
                _ => {
                    state.room.leave(wake.key.kind(), wake.workspace_id);
                    if error.is_some() {
                        wake.due_at = wake.due_at.max(retry_at);
                        state.schedule.add(wake);
                    }
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Tries to become the driver of a shared database, or to stay it.
    pub(super) async fn hold_lead(&self) {
        if !self.store.is_shared() {
            return;
        }
        loop {
            self.take_lead().await;
            tokio::time::sleep(DRIVER_RENEW_INTERVAL).await;
        }
    }

    pub(super) async fn take_lead(&self) {
        let began = Instant::now();
        let lease_ms = i64::try_from(DRIVER_LEASE.as_millis()).unwrap_or(0);
        let held = tokio::time::timeout(ANSWER_MAX, self.store.hold_chore(CHORE, &self.node, lease_ms)).await;
        let mut state = self.state.lock();
        let drove = state.drives();
        match held {
            Ok(Ok(Some(_))) => state.drives_until = Some(DrivesUntil::At(began + DRIVER_LEASE)),
            Ok(Ok(None)) => state.drives_until = None,
            // The lease lasts until its end.
            Ok(Err(error)) => tracing::warn!(%error, "cannot renew the lease of the driver; retrying"),
            Err(_) => tracing::warn!("cannot renew the lease of the driver, because the database does not answer"),
        }
        if drove && !state.drives() {
            state.schedule.clear();
            self.observer.due(DueCount::default());
            tracing::info!("another host drives the turns");
        } else if !drove && state.drives() {
            state.has_to_search = true;
            tracing::info!("this host drives the turns");
        }
        drop(state);
        self.changed.notify_one();
    }
}
