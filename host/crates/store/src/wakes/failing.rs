//! Wakes as operators see them.

use monstrum_types::{UtcMillis, WakeKey, WorkspaceId};

use crate::db::{args, from_row};
use crate::{Listed, Page, Store, StoreError};

/// A row of `wakes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRow {
    pub key: WakeKey,
    pub workspace_id: WorkspaceId,
    pub due_at: UtcMillis,
    /// The host that runs the turn, and the end of its claim.
    pub claimed_by: Option<String>,
    pub claimed_until: Option<UtcMillis>,
    /// The number of consecutive turns that failed.
    pub failures: i64,
    pub last_error: Option<String>,
}

from_row! { WakeRow { key, workspace_id, due_at, claimed_by, claimed_until, failures, last_error } }

const PAGE: &str = "\
    select key, workspace_id, due_at, claimed_by, claimed_until, failures, last_error from wakes \
    where workspace_id = $1 and key > $2 and (failures > 0 or not $3) order by key limit $4";

impl Store {
    /// Returns a page of the wakes of a workspace, ordered by key; with `failing`, only those whose last turn failed.
    pub async fn wakes(
        &self,
        workspace: WorkspaceId,
        failing: bool,
        page: &Page<WakeKey>,
    ) -> Result<Listed<WakeRow, WakeKey>, StoreError> {
        let rows = self.db.all(PAGE, args![workspace, &page.after(), failing, page.rows()]).await?;
        Ok(page.of(rows, |row: &WakeRow| row.key.clone()))
    }
}
