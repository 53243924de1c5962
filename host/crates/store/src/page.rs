//! Pagination of lists.

use crate::db::Arg;
use crate::rows::Authentic;
use crate::{Store, StoreError};

/// The maximum number of rows on a page.
pub const PAGE_ITEMS_MAX: u32 = 1000;

/// A request for a page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// The number of rows, clamped to 1 to [`PAGE_ITEMS_MAX`].
    pub limit: u32,
    /// The last id of the previous page.
    pub cursor: Option<Id>,
}

impl<Id> Page<Id> {
    /// Requests the first page.
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Page { limit, cursor: None }
    }

    /// Returns the number of rows to query: one more than the limit, to detect whether another page follows.
    pub(crate) fn rows(&self) -> i64 {
        i64::from(self.limit.clamp(1, PAGE_ITEMS_MAX)) + 1
    }

    /// Creates a page from `items`, which may contain one more row than the limit.
    pub(crate) fn of<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> Id) -> Listed<T, Id> {
        let limit = self.limit.clamp(1, PAGE_ITEMS_MAX) as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = if more { items.last().map(id) } else { None };
        Listed { items, next_cursor }
    }
}

impl<Id: ToString> Page<Id> {
    /// Returns the cursor as text. The first page uses the empty string, which sorts before every id.
    pub(crate) fn after(&self) -> String {
        self.cursor.as_ref().map(Id::to_string).unwrap_or_default()
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T, Id> {
    /// The rows, ordered by id.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next_cursor: Option<Id>,
}

impl Store {
    /// Runs a query and returns up to `limit` rows with a valid MAC. The parameters of the query are `values`,
    /// followed by the limit. Rows that another program wrote cannot hide the valid rows: the query is repeated with
    /// a larger limit until it finds a valid row or there are no more rows.
    pub(crate) async fn authentic_up_to<T: Authentic>(
        &self,
        sql: &'static str,
        values: Vec<Arg<'_>>,
        limit: u32,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows()?;
        let mut requested = i64::from(limit);
        loop {
            let mut args: Vec<Arg<'_>> = values.iter().map(Arg::borrowed).collect();
            args.push(Arg::from(requested));
            let found = self.db.read().await?.fetch(sql, &args).await?;
            let valid: Vec<T> = found.iter().filter_map(|row| rows.authentic(row)).take(limit as usize).collect();
            let was_last = i64::try_from(found.len()).is_ok_and(|found| found < requested);
            if !valid.is_empty() || was_last || limit == 0 {
                return Ok(valid);
            }
            requested = requested.saturating_mul(2);
        }
    }
}
