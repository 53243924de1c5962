//! Reads of the steps of runs, for lists and for those who follow a run.

use std::fmt;
use std::str::FromStr;

use monstrum_types::{RunId, UtcMillis, WorkspaceId};

use super::steps::{RunStepRow, RunStepStatus, select_steps};
use crate::db::{args, from_row};
use crate::{Listed, Page, Store, StoreError};

/// The position of an attempt in the list of a run's attempts: the time at which it began, and the rest of its key. As a text,
/// the two have a slash between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStepCursor {
    started_at: UtcMillis,
    rest: String,
}

/// A text is not the position of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the position of a step")]
pub struct InvalidStepCursor;

/// What says whether an attempt has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStepHead {
    pub position: String,
    pub status: RunStepStatus,
    pub ended_at: Option<UtcMillis>,
}

from_row! { RunStepHead { position, status, ended_at } }

const PAGE: &str = select_steps!(
    "where workspace_id = $1 and run_id = $2 and (started_at > $3 or (started_at = $3 and position > $4)) \
     order by started_at, position limit $5"
);
const HEADS: &str = "\
    select position, status, ended_at from run_steps \
    where workspace_id = $1 and run_id = $2 and (ended_at is null or ended_at >= $3) order by started_at, position";
const AT: &str = select_steps!("where workspace_id = $1 and run_id = $2 and position = $3");
// Blocks only wait for what is inside of them. An uncertain attempt that was followed by another one is history.
const WAITING: &str = select_steps!(
    "where workspace_id = $1 and run_id = $2 and kind not in ('choose', 'parallel', 'each') \
     and (ended_at is null or (status = 'uncertain' and phase = 'do' and run_attempt = $3 and not exists ( \
     select 1 from run_steps later where later.run_id = run_steps.run_id and later.phase = 'do' \
     and later.step = run_steps.step and later.item = run_steps.item and later.run_attempt = run_steps.run_attempt \
     and later.attempt > run_steps.attempt))) order by started_at, position limit $4"
);

impl RunStepCursor {
    fn of(row: &RunStepRow) -> RunStepCursor {
        let position = row.key().position();
        let rest = position.split_once('/').map_or("", |(_, rest)| rest);
        RunStepCursor { started_at: row.started_at, rest: rest.to_owned() }
    }
}

impl fmt::Display for RunStepCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.started_at.0, self.rest)
    }
}

impl FromStr for RunStepCursor {
    type Err = InvalidStepCursor;

    fn from_str(text: &str) -> Result<Self, InvalidStepCursor> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_./".contains(&byte);
        let parsed = text.split_once('/').and_then(|(time, rest)| {
            let started_at = time.parse().map(UtcMillis).ok()?;
            rest.bytes().all(is_allowed).then(|| RunStepCursor { started_at, rest: rest.to_owned() })
        });
        parsed.ok_or(InvalidStepCursor)
    }
}

impl Store {
    /// Returns a page of the attempts of a run, in the order in which they began.
    pub async fn run_step_page(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        page: &Page<RunStepCursor>,
    ) -> Result<Listed<RunStepRow, RunStepCursor>, StoreError> {
        let (started_at, position) = match &page.cursor {
            None => (UtcMillis(i64::MIN), String::new()),
            Some(RunStepCursor { started_at, rest }) => (*started_at, format!("{run}/{rest}")),
        };
        let values = args![workspace, run, started_at, &position, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, RunStepCursor::of))
    }

    /// Returns what says whether attempts of a run have changed: of those that have not ended, and of those that have ended
    /// since a time.
    pub async fn run_step_heads(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        since: UtcMillis,
    ) -> Result<Vec<RunStepHead>, StoreError> {
        self.db.all(HEADS, args![workspace, run, since]).await
    }

    /// Returns the attempt of a run at a position.
    pub async fn run_step_at(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        position: &str,
    ) -> Result<Option<RunStepRow>, StoreError> {
        self.db.one(AT, args![workspace, run, position]).await
    }

    /// Returns the first attempts of a run that have not ended or are uncertain, without blocks.
    pub async fn waiting_run_steps(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        run_attempt: i64,
        limit: u32,
    ) -> Result<Vec<RunStepRow>, StoreError> {
        self.db.all(WAITING, args![workspace, run, run_attempt, i64::from(limit)]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = RunStepCursor { started_at: UtcMillis(-5), rest: "do/a_1/3.0/000001/000002".to_owned() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "x", "5", "x/do", "5/a\0", "5/a b", "5/ä", "99999999999999999999/do"] {
            assert!(bad.parse::<RunStepCursor>().is_err(), "{bad}");
        }
    }
}
