//! Wakes: the turns that the objects of a workspace wait for, and the turns that fail.

use monstrum_api::wakes::{Wake, WakeList};
use monstrum_store::{Page, WakeRow};
use monstrum_types::WakeKey;

use super::list;
use super::{OperationError, Operator};
use crate::app::App;

fn view(row: WakeRow) -> Wake {
    Wake {
        key: row.key.to_string(),
        due_at: row.due_at,
        claimed_by: row.claimed_by,
        claimed_until: row.claimed_until,
        failures: row.failures,
        last_error: row.last_error,
    }
}

/// Lists the wakes of the caller's workspace; with `failing`, only those whose last turn failed.
pub async fn list(
    app: &App,
    caller: &Operator,
    failing: bool,
    page: &Page<WakeKey>,
) -> Result<WakeList, OperationError> {
    Ok(list::page(app.store.wakes(caller.workspace, failing, page).await?, view))
}
