//! One turn: runs the handler, and ends the turn in the database.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use monstrum_store::{AfterTurn, StoreError, WakeClaim};
use monstrum_types::{UtcMillis, WakeClaimId, WakeKey, with_causes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Inner, Running, State, TurnResult};
use crate::handler::{Lease, LeaseStart, Turn, TurnError, TurnOutcome};
use crate::limits::{CANCEL_GRACE, FIRST_DELAYS, FURTHER_DELAY};

/// What the handler made of a turn.
enum Ran {
    Ended(Result<TurnOutcome, TurnError>),
    Panicked,
    /// The turn was cancelled and did not end in time.
    Dropped,
}

/// What the end of a turn has written.
struct Closed {
    result: TurnResult,
    /// The time of the next turn of the key, if it has one.
    next: Option<UtcMillis>,
}

impl Inner {
    /// Starts the turn of a claim. The caller has counted the turn.
    pub(super) fn begin(self: &Arc<Self>, state: &mut State, claim: WakeClaim, start: LeaseStart) {
        let lease = Lease::new(Arc::clone(&self.clock), start);
        let signals = Arc::new(Notify::new());
        let turn = Turn::new(claim.clone(), lease.clone(), Arc::clone(&signals));
        state
            .running
            .insert(claim.key.clone(), Running { claim, lease, signals, began: Instant::now(), signalled: None });
        self.turns.spawn(Arc::clone(self).run_turn(turn));
    }

    async fn run_turn(self: Arc<Self>, turn: Turn) {
        let began = Instant::now();
        let ran = self.run_handler(&turn).await;
        let Closed { result, next } = self.close(&turn, ran).await;
        self.observer.turn(turn.key().kind(), result, began.elapsed());
        self.forget(turn.claim(), next);
    }

    async fn run_handler(&self, turn: &Turn) -> Ran {
        let handler = self.handlers.lock().get(&turn.key().kind()).cloned();
        let Some(handler) = handler else {
            return Ran::Ended(Err(TurnError::Failed("this version of monstrum has no such turns".to_owned())));
        };
        let late = async {
            turn.cancelled().await;
            tokio::time::sleep(CANCEL_GRACE).await;
        };
        tokio::select! {
            biased;
            ended = AssertUnwindSafe(handler.turn(turn)).catch_unwind() => ended.map_or(Ran::Panicked, Ran::Ended),
            () = late => Ran::Dropped,
        }
    }

    /// Ends the turn in the database. If the database fails, the claim stays: the next renewal releases it, or it expires.
    async fn close(&self, turn: &Turn, ran: Ran) -> Closed {
        let claim = turn.claim();
        let (result, next) = match ran {
            Ran::Ended(Ok(TurnOutcome::Ended(after))) => {
                return Closed { result: TurnResult::Done, next: self.next(after) };
            }
            Ran::Ended(Ok(TurnOutcome::Done)) => (TurnResult::Done, None),
            Ran::Ended(Ok(TurnOutcome::Rest(at))) => (TurnResult::Done, Some(at)),
            Ran::Ended(Err(TurnError::Store(StoreError::LostClaim))) => {
                return Closed { result: TurnResult::Lost, next: None };
            }
            Ran::Dropped => return self.release(claim).await,
            Ran::Ended(Err(TurnError::Cancelled)) if turn.lease().is_cancelled() => return self.release(claim).await,
            Ran::Ended(Err(error)) => return self.fail(claim, TurnResult::Failed, &with_causes(&error)).await,
            Ran::Panicked => return self.fail(claim, TurnResult::Panicked, "the turn panicked").await,
        };
        match self.store.end_turn(claim, next, &[], &[]).await {
            Ok(after) => Closed { result, next: self.next(after) },
            Err(StoreError::LostClaim) => Closed { result: TurnResult::Lost, next: None },
            Err(error) => {
                tracing::warn!(wake.key = %claim.key, %error, "cannot store the end of a turn; the turn is repeated");
                Closed { result: TurnResult::Failed, next: None }
            }
        }
    }

    fn next(&self, after: AfterTurn) -> Option<UtcMillis> {
        match after {
            AfterTurn::Asleep => None,
            AfterTurn::Again => Some(self.now()),
            AfterTurn::Due(at) => Some(at),
        }
    }

    async fn release(&self, claim: &WakeClaim) -> Closed {
        let claims: [(WakeKey, WakeClaimId); 1] = [(claim.key.clone(), claim.id)];
        if let Err(error) = self.store.release_claims(&claims).await {
            tracing::warn!(wake.key = %claim.key, %error, "cannot release the claim of a cancelled turn");
        }
        Closed { result: TurnResult::Cancelled, next: Some(self.now()) }
    }

    async fn fail(&self, claim: &WakeClaim, result: TurnResult, text: &str) -> Closed {
        let delay_ms = delay_ms(claim.failures);
        tracing::warn!(wake.key = %claim.key, failures = claim.failures + 1, error = text, "a turn failed");
        match self.store.fail_turn(claim, delay_ms, text, self.clock.now()).await {
            Ok(Some(next)) => Closed { result, next: Some(next) },
            Ok(None) => Closed { result: TurnResult::Lost, next: None },
            Err(error) => {
                tracing::warn!(wake.key = %claim.key, %error, "cannot store the failure of a turn");
                Closed { result, next: None }
            }
        }
    }

    /// Forgets a turn that has ended, and schedules the next one of its key.
    fn forget(&self, claim: &WakeClaim, next: Option<UtcMillis>) {
        let now = self.now();
        let mut state = self.state.lock();
        let running = state.running.remove(&claim.key);
        state.room.leave(claim.key.kind(), claim.workspace_id);
        let signalled = running.and_then(|running| running.signalled);
        let next = match (next, signalled) {
            (Some(next), Some(signalled)) => Some(next.min(signalled)),
            (next, signalled) => next.or(signalled),
        };
        if let Some(due_at) = next {
            state.plan(&claim.key, claim.workspace_id, due_at, now);
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// Returns the delay after a failure. `failures` is the number of failures before. The delay of later failures varies by
/// a fifth, so that keys that failed together do not stay together.
fn delay_ms(failures: i64) -> i64 {
    let delay = usize::try_from(failures).ok().and_then(|failures| FIRST_DELAYS.get(failures));
    let jitter = match delay {
        Some(_) => Duration::ZERO,
        None => FURTHER_DELAY / 5 * u32::from(random_byte()) / 255,
    };
    let delay = delay.copied().unwrap_or(FURTHER_DELAY) + jitter;
    i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a random byte. Without a source of randomness, the byte is 0: only the spread of retries depends on it.
fn random_byte() -> u8 {
    let mut byte = [0];
    match getrandom::fill(&mut byte) {
        Ok(()) => byte[0],
        Err(_) => 0,
    }
}
