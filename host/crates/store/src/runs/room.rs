//! The room of runs: how many run at once in a workspace, and how many of a workflow.
//!
//! A run without room stays queued and says what it lacks. A run that gives up its room wakes the oldest run that lacks it,
//! in the same transaction; one that starts wakes the next while there is room. All of this happens under the lock of the
//! workspace, so that no run misses its room.

use monstrum_types::{UtcMillis, WakeKey, WakeKind};

use super::{RunRow, RunStatus};
use crate::StoreError;
use crate::db::{Session, args};
use crate::wakes::NewWake;

/// The room that a run needs to start: the maximum numbers of runs, with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRoom {
    /// Runs of the workspace that run.
    pub running: i64,
    /// Runs of the workspace that have started and have not ended.
    pub started: i64,
    /// Runs of the workflow with the same concurrency key that have started and have not ended.
    pub of_key: Option<i64>,
    /// When a run without room looks for it again, if no other run has told it before.
    pub look_again_at: UtcMillis,
}

/// What a queued run lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Too many runs of the workspace run.
    Workspace,
    /// The workflow has reached its limit of concurrency.
    Key,
}

const RUNNING: &str = "\
    select count(*) as value from runs where workspace_id = $1 and status in ('running', 'undoing') \
    and ended_at is null and id <> $2";
const STARTED: &str = "\
    select count(*) as value from runs where workspace_id = $1 and started_at is not null and ended_at is null \
    and id <> $2";
const OF_KEY: &str = "\
    select count(*) as value from runs where workflow_id = $1 and concurrency_key = $2 and started_at is not null \
    and ended_at is null and id <> $3";
const REST: &str = "\
    update runs set awaits = $2, status = 'queued' where id = $1 and started_at is null and ended_at is null \
    and sealed = $3";
const NEXT_OF_WORKSPACE: &str = "\
    select id as value from runs where workspace_id = $1 and status = 'queued' and ended_at is null \
    and awaits = 'workspace' and id <> $2 order by id limit 1";
const NEXT_OF_KEY: &str = "\
    select id as value from runs where workflow_id = $1 and concurrency_key = $2 and ended_at is null \
    and status = 'queued' and awaits = 'key' and id <> $3 order by id limit 1";

impl Awaits {
    fn as_str(self) -> &'static str {
        match self {
            Awaits::Workspace => "workspace",
            Awaits::Key => "key",
        }
    }
}

impl RunStatus {
    /// Returns whether a run with this status counts among the runs of its workspace that run.
    pub(super) fn holds_room(self) -> bool {
        matches!(self, RunStatus::Running | RunStatus::Undoing)
    }
}

/// Looks for the room of a run. Returns what others may still find room for, or what the run lacks.
pub(super) async fn find(
    session: &mut Session,
    run: &RunRow,
    room: &RunRoom,
) -> Result<Result<Vec<Awaits>, Awaits>, StoreError> {
    // A count that is missing must not let anything start.
    let mut left = Vec::new();
    if let Some(max) = room.of_key {
        let of_key: Option<i64> = session.one(OF_KEY, args![run.workflow_id, &run.concurrency_key, run.id]).await?;
        let of_key = of_key.unwrap_or(i64::MAX).saturating_add(1);
        if of_key > max {
            return Ok(Err(Awaits::Key));
        }
        if of_key < max {
            left.push(Awaits::Key);
        }
    }
    let running: Option<i64> = session.one(RUNNING, args![run.workspace_id, run.id]).await?;
    let started: Option<i64> = session.one(STARTED, args![run.workspace_id, run.id]).await?;
    let running = running.unwrap_or(i64::MAX).saturating_add(1);
    let started = started.unwrap_or(i64::MAX).saturating_add(1);
    if running > room.running || started > room.started {
        return Ok(Err(Awaits::Workspace));
    }
    if running < room.running && started < room.started {
        left.push(Awaits::Workspace);
    }
    Ok(Ok(left))
}

/// Records what a queued run lacks. If it is not room of the workspace, the next run may take that.
pub(super) async fn rest(
    session: &mut Session,
    run: &RunRow,
    awaits: Awaits,
    now: UtcMillis,
) -> Result<Vec<NewWake>, StoreError> {
    if session.run(REST, args![run.id, awaits.as_str(), &run.sealed]).await? == 0 {
        return Err(StoreError::ChangedMeanwhile);
    }
    match awaits {
        Awaits::Workspace => Ok(Vec::new()),
        Awaits::Key => wake_next(session, run, &[Awaits::Workspace], now).await,
    }
}

/// Requests turns of the oldest other runs that lack what is there now.
pub(super) async fn wake_next(
    session: &mut Session,
    run: &RunRow,
    lacking: &[Awaits],
    now: UtcMillis,
) -> Result<Vec<NewWake>, StoreError> {
    let mut wakes: Vec<NewWake> = Vec::new();
    for awaits in lacking {
        let next: Option<String> = match awaits {
            Awaits::Workspace => session.one(NEXT_OF_WORKSPACE, args![run.workspace_id, run.id]).await?,
            Awaits::Key => session.one(NEXT_OF_KEY, args![run.workflow_id, &run.concurrency_key, run.id]).await?,
        };
        let Some(next) = next else { continue };
        let key = WakeKey::new(WakeKind::Run, next).map_err(|error| StoreError::Corrupt { what: error.to_string() })?;
        if wakes.iter().all(|wake| wake.key != key) {
            let wake = NewWake { key, workspace_id: run.workspace_id, due_at: now, claim: None };
            wake.write(session).await?;
            wakes.push(wake);
        }
    }
    Ok(wakes)
}
