//! Numbers of tasks and approvals for the metrics of the host. They are those of all workspaces.

use monstrum_types::UtcMillis;

use super::TaskStatus;
use crate::db::{args, from_row};
use crate::{Store, StoreError};

const COUNT_UNENDED: &str = "select status, count(*) as value from tasks where ended_at is null group by status";
const COUNT_PENDING: &str = "\
    select count(*) as value from approvals where status = 'pending' and created_at > $1 and created_at <= $2";

struct Count {
    status: TaskStatus,
    value: u64,
}

from_row! { Count { status, value } }

impl Store {
    /// Returns the numbers of tasks that have not ended, by their status. A status without tasks is left out.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn count_unended_tasks(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        let counts: Vec<Count> = self.db.all(COUNT_UNENDED, args![]).await?;
        Ok(counts.into_iter().map(|count| (count.status, count.value)).collect())
    }

    /// Returns the number of approvals that wait for a decision and were created after `after`, and not after `until`.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn count_pending_approvals(&self, after: UtcMillis, until: UtcMillis) -> Result<u64, StoreError> {
        let count: Option<i64> = self.db.one(COUNT_PENDING, args![after, until]).await?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }
}
