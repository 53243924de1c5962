//! Wakes: which keys have work, and which host runs the turn of a key.
//!
//! A wake is written in the transaction of the change that makes it necessary. One statement claims a wake for a host; the
//! claim has an id, expires, and is renewed while the turn runs. Every transaction of a turn calls [`confirm_claim`] or
//! [`end_turn`], which fail once the claim has been replaced, so that a host that was paused writes nothing.
//!
//! The engine works for all workspaces, so statements on single wakes do not require a workspace. Keys contain the ids of
//! objects, and a handler reads its object in the workspace of the wake.
//!
//! Times come from the clock of the database with PostgreSQL, whose hosts could disagree, and from the caller with SQLite.

mod failing;

use std::borrow::Cow;

use monstrum_types::{UtcMillis, WakeClaimId, WakeKey, WorkspaceId};

use crate::db::{Arg, Session, args, from_row, retry, values};
use crate::{EventRow, Store, StoreError};

pub use failing::WakeRow;

/// The time for which a claim lasts without a renewal.
pub const CLAIM_MS: i64 = 30_000;
/// The maximum length of a stored error, in characters.
const ERROR_CHARS_MAX: usize = 500;

/// A request for a turn of a key. If the key has a wake already, the earlier time counts, and the version of the wake is
/// raised. The request is not written if the workspace does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWake {
    pub key: WakeKey,
    pub workspace_id: WorkspaceId,
    /// The time of the turn; a time in the past means as soon as possible.
    pub due_at: UtcMillis,
    /// A claim with which the wake is inserted, so that this host runs the turn. If the key has a wake already, such a
    /// request is not written.
    pub claim: Option<NewClaim>,
}

/// A claim of a wake that does not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    pub id: WakeClaimId,
    /// The name of the host.
    pub node: String,
    /// The end of the claim, if it is not renewed. With PostgreSQL, the clock of the database decides instead.
    pub until: UtcMillis,
}

/// A claimed wake: the right to run one turn of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeClaim {
    pub id: WakeClaimId,
    pub key: WakeKey,
    pub workspace_id: WorkspaceId,
    /// The version of the wake when it was claimed.
    pub version: i64,
    /// The number of consecutive turns of the key that have failed.
    pub failures: i64,
}

/// What follows the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTurn {
    /// The wake was deleted. The next request inserts a new one.
    Asleep,
    /// A turn was requested while this one ran, so the key is due at once.
    Again,
    /// The key has another turn at this time.
    Due(UtcMillis),
}

/// A wake that is due now or soon, and unclaimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueWake {
    pub key: WakeKey,
    pub workspace_id: WorkspaceId,
    pub due_at: UtcMillis,
}

/// The number of wakes that are due and unclaimed, and the oldest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueCount {
    pub wakes: u64,
    /// The time in milliseconds for which the oldest wake has been due; zero without wakes.
    pub oldest_ms: i64,
}

struct Due {
    wakes: u64,
    first: Option<UtcMillis>,
}

/// A row of a claimed wake.
struct Held {
    key: WakeKey,
    claim_id: WakeClaimId,
}

from_row! { DueWake { key, workspace_id, due_at } }
from_row! { Due { wakes, first } }
from_row! { Held { key, claim_id } }

const REQUEST: &str = "\
    insert into wakes (key, workspace_id, due_at, version) select $1, id, cast($3 as bigint), 1 from workspaces \
    where id = $2 on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id";
const INSERT_CLAIMED: &str = "\
    insert into wakes (key, workspace_id, due_at, version, claim_id, claimed_by, claimed_until) \
    select $1, id, cast($3 as bigint), 1, $4, $5, cast($6 as bigint) from workspaces where id = $2 \
    on conflict (key) do nothing";

// The claim of a wake that is not due yet fails, and so does the claim of a claimed wake.
const CLAIM: &str = "\
    update wakes set claim_id = $2, claimed_by = $3, claimed_until = $4 \
    where key = $1 and due_at <= $5 and (claimed_until is null or claimed_until <= $6) \
    returning key, workspace_id, version, failures";
const RENEW: &str = "update wakes set claimed_until = $2 where claimed_by = $1 returning key, claim_id";
// The update locks the row, so that the claim cannot be replaced before the transaction ends.
const CONFIRM: &str = "update wakes set claimed_until = claimed_until where key = $1 and claim_id = $2";

const SLEEP: &str = "delete from wakes where key = $1 and claim_id = $2 and version = $3";
const REST: &str = "\
    update wakes set due_at = $4, claim_id = null, claimed_by = null, claimed_until = null, failures = 0, \
    last_error = null where key = $1 and claim_id = $2 and version = $3";
// The wake was due when it was claimed, so it is due.
const AGAIN: &str = "\
    update wakes set claim_id = null, claimed_by = null, claimed_until = null, failures = 0, last_error = null \
    where key = $1 and claim_id = $2";
const FAIL: &str = "\
    update wakes set due_at = $3, claim_id = null, claimed_by = null, claimed_until = null, failures = failures + 1, \
    last_error = $4 where key = $1 and claim_id = $2";
const RELEASE: &str = "\
    update wakes set claim_id = null, claimed_by = null, claimed_until = null where key = $1 and claim_id = $2";
const DROP_ALL: &str = "\
    update wakes set claim_id = null, claimed_by = null, claimed_until = null where claimed_by is not null";
const DROP_OF_HOST: &str = "\
    update wakes set claim_id = null, claimed_by = null, claimed_until = null where claimed_by = $1";

const DUE: &str = "\
    select key, workspace_id, due_at from wakes where due_at <= $1 and (due_at, key) > ($2, $3) \
    and (claimed_until is null or claimed_until <= $4) order by due_at, key limit $5";
const COUNT_DUE: &str = "\
    select count(*) as wakes, min(due_at) as first from wakes \
    where due_at <= $1 and (claimed_until is null or claimed_until <= $1)";

impl NewWake {
    /// Returns the statement that writes the request.
    pub(crate) fn statement(&self) -> (&'static str, Vec<Arg<'_>>) {
        let NewWake { key, workspace_id, due_at, claim } = self;
        match claim {
            None => (REQUEST, values![key, workspace_id, *due_at]),
            Some(NewClaim { id, node, until }) => {
                (INSERT_CLAIMED, values![key, workspace_id, *due_at, id, node, *until])
            }
        }
    }

    /// Writes the request in a transaction. Returns `false` if it was not written.
    pub(crate) async fn write(&self, session: &mut Session) -> Result<bool, StoreError> {
        let (sql, values) = self.statement();
        Ok(session.run(sql, &values).await? > 0)
    }
}

/// Checks that a claim has not been replaced, and prevents that it is replaced before the transaction ends. Fails with
/// [`StoreError::LostClaim`].
pub(crate) async fn confirm_claim(session: &mut Session, claim: &WakeClaim) -> Result<(), StoreError> {
    match session.run(CONFIRM, args![&claim.key, claim.id]).await? {
        0 => Err(StoreError::LostClaim),
        _ => Ok(()),
    }
}

/// Ends a turn in the transaction that writes its results. Without `next`, the wake is deleted; with it, the key has
/// another turn at that time. If a turn was requested while this one ran, the wake is due at once instead. Fails with
/// [`StoreError::LostClaim`] if the claim was replaced: then the transaction must not be committed.
///
/// A request in the same transaction counts as one that came while the turn ran. To have another turn of the same key,
/// use `next`.
pub(crate) async fn end_turn(
    session: &mut Session,
    claim: &WakeClaim,
    next: Option<UtcMillis>,
) -> Result<AfterTurn, StoreError> {
    let unchanged = match next {
        None => session.run(SLEEP, args![&claim.key, claim.id, claim.version]).await?,
        Some(at) => session.run(REST, args![&claim.key, claim.id, claim.version, at]).await?,
    };
    if unchanged > 0 {
        return Ok(next.map_or(AfterTurn::Asleep, AfterTurn::Due));
    }
    match session.run(AGAIN, args![&claim.key, claim.id]).await? {
        0 => Err(StoreError::LostClaim),
        _ => Ok(AfterTurn::Again),
    }
}

impl Store {
    /// Returns the current time for wakes, which decides whether an object is due.
    pub async fn wake_time(&self, now: UtcMillis) -> Result<UtcMillis, StoreError> {
        if self.is_shared() { self.db.read().await?.now().await } else { Ok(now) }
    }

    /// Returns the current time for wakes: by the clock of the database with PostgreSQL, and `now` with SQLite.
    async fn time_of_wakes(&self, session: &mut Session, now: UtcMillis) -> Result<UtcMillis, StoreError> {
        if self.is_shared() { session.now().await } else { Ok(now) }
    }

    /// Returns a wake whose claim and whose time follow the clock for wakes. A host whose clock is late would otherwise
    /// insert a claim that other hosts replace before the first renewal. Requests without a claim are returned as they
    /// are.
    pub(crate) async fn timed<'a>(
        &self,
        session: &mut Session,
        wake: &'a NewWake,
    ) -> Result<Cow<'a, NewWake>, StoreError> {
        let Some(claim) = wake.claim.as_ref().filter(|_| self.is_shared()) else { return Ok(Cow::Borrowed(wake)) };
        let due_at = session.now().await?;
        let claim = NewClaim { until: due_at.plus_ms(CLAIM_MS), ..claim.clone() };
        Ok(Cow::Owned(NewWake { due_at, claim: Some(claim), ..wake.clone() }))
    }

    /// Writes requests for turns. Returns, for each request, whether it was written.
    pub async fn request_turns(&self, wakes: &[NewWake]) -> Result<Vec<bool>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let mut written = Vec::with_capacity(wakes.len());
            for wake in wakes {
                written.push(wake.write(&mut session).await?);
            }
            session.commit().await?;
            Ok(written)
        })
    }

    /// Claims wakes that are due for a host, each under its own claim id, in one transaction. A wake is due if its time
    /// is not later than the time beside its key, or not later than now. Wakes that are not due, are claimed or do not
    /// exist are left out of the result.
    pub async fn claim_wakes(
        &self,
        node: &str,
        wakes: &[(WakeKey, UtcMillis, WakeClaimId)],
        now: UtcMillis,
    ) -> Result<Vec<WakeClaim>, StoreError> {
        // All hosts lock the rows in the same order.
        let mut order: Vec<_> = wakes.iter().collect();
        order.sort_by(|one, other| one.0.cmp(&other.0));
        retry!(async {
            let mut session = self.db.write().await?;
            let now = self.time_of_wakes(&mut session, now).await?;
            let mut claims = Vec::with_capacity(order.len());
            for (key, due_at, id) in &order {
                let due_by = now.max(*due_at);
                let found = session.fetch(CLAIM, args![key, *id, node, now.plus_ms(CLAIM_MS), due_by, now]).await?;
                for row in &found {
                    claims.push(WakeClaim {
                        id: *id,
                        key: row.get("key")?,
                        workspace_id: row.get("workspace_id")?,
                        version: row.get("version")?,
                        failures: row.get("failures")?,
                    });
                }
            }
            session.commit().await?;
            Ok(claims)
        })
    }

    /// Renews all claims of a host. Returns the claims that the host has.
    pub async fn renew_claims(&self, node: &str, now: UtcMillis) -> Result<Vec<(WakeKey, WakeClaimId)>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let now = self.time_of_wakes(&mut session, now).await?;
            let held: Vec<Held> = session.all(RENEW, args![node, now.plus_ms(CLAIM_MS)]).await?;
            session.commit().await?;
            Ok(held.into_iter().map(|Held { key, claim_id }| (key, claim_id)).collect())
        })
    }

    /// Checks that a claim has not been replaced. Fails with [`StoreError::LostClaim`] if it was.
    pub async fn confirm_claim(&self, claim: &WakeClaim) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            confirm_claim(&mut session, claim).await?;
            session.commit().await
        })
    }

    /// Ends a turn, inserts events and requests turns of other keys in one transaction. Without `next`, the wake is
    /// deleted; with it, the key has another turn at that time. See [`AfterTurn`] for what follows. Fails with
    /// [`StoreError::LostClaim`] and writes nothing if the claim was replaced.
    pub async fn end_turn(
        &self,
        claim: &WakeClaim,
        next: Option<UtcMillis>,
        events: &[EventRow],
        wakes: &[NewWake],
    ) -> Result<AfterTurn, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let after = end_turn(&mut session, claim, next).await?;
            for event in events {
                event.insert(&mut session).await?;
            }
            for wake in wakes {
                wake.write(&mut session).await?;
            }
            session.commit().await?;
            Ok(after)
        })
    }

    /// Ends a turn that failed. The key has its next turn after `delay_ms`. Returns the time of that turn, or `None` if
    /// the claim was replaced.
    pub async fn fail_turn(
        &self,
        claim: &WakeClaim,
        delay_ms: i64,
        error: &str,
        now: UtcMillis,
    ) -> Result<Option<UtcMillis>, StoreError> {
        let error: String = error.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect();
        retry!(async {
            let mut session = self.db.write().await?;
            let due_at = self.time_of_wakes(&mut session, now).await?.plus_ms(delay_ms);
            let failed = session.run(FAIL, args![&claim.key, claim.id, due_at, &error]).await?;
            session.commit().await?;
            Ok((failed > 0).then_some(due_at))
        })
    }

    /// Releases claims without a turn, so that the wakes are due as before. Claims that were replaced are left as they
    /// are.
    pub async fn release_claims(&self, claims: &[(WakeKey, WakeClaimId)]) -> Result<(), StoreError> {
        let mut order: Vec<_> = claims.iter().collect();
        order.sort();
        retry!(async {
            let mut session = self.db.write().await?;
            for (key, id) in &order {
                session.run(RELEASE, args![key, *id]).await?;
            }
            session.commit().await
        })
    }

    /// Drops the claims that an earlier process of this host left: with SQLite all claims, because only one process uses
    /// the database, and with PostgreSQL those of the host.
    pub async fn drop_claims(&self, node: &str) -> Result<u64, StoreError> {
        if self.is_shared() {
            self.db.run(DROP_OF_HOST, args![node]).await
        } else {
            self.db.run(DROP_ALL, args![]).await
        }
    }

    /// Returns unclaimed wakes that are due at most `ahead_ms` after now, in the order of their times, at most `limit`.
    /// `after` is the last wake of the previous page. The second value is the current time for wakes.
    pub async fn due_wakes(
        &self,
        ahead_ms: i64,
        after: Option<&DueWake>,
        limit: u32,
        now: UtcMillis,
    ) -> Result<(Vec<DueWake>, UtcMillis), StoreError> {
        let mut session = self.db.read().await?;
        let now = self.time_of_wakes(&mut session, now).await?;
        let (time, key) = after.map_or((i64::MIN, ""), |wake| (wake.due_at.0, wake.key.as_str()));
        let due = session.all(DUE, args![now.plus_ms(ahead_ms), time, key, now, i64::from(limit)]).await?;
        Ok((due, now))
    }

    /// Counts the wakes that are due and unclaimed.
    pub async fn count_due_wakes(&self, now: UtcMillis) -> Result<DueCount, StoreError> {
        let mut session = self.db.read().await?;
        let now = self.time_of_wakes(&mut session, now).await?;
        let due: Option<Due> = session.one(COUNT_DUE, args![now]).await?;
        let Due { wakes, first } = due.unwrap_or(Due { wakes: 0, first: None });
        Ok(DueCount { wakes, oldest_ms: first.map_or(0, |first| now.since_ms(first).max(0)) })
    }
}
