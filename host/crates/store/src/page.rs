//! Lists, a page at a time.

use crate::db::Arg;
use crate::rows::Authentic;
use crate::{Store, StoreError};

/// The most that one page holds, whatever is asked for.
pub const PAGE_ITEMS_MAX: u32 = 1000;

/// Which page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// How many rows: 1 to [`PAGE_ITEMS_MAX`], anything else is clamped.
    pub limit: u32,
    /// The last id of the page before.
    pub cursor: Option<Id>,
}

impl<Id> Page<Id> {
    /// The first page.
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Page { limit, cursor: None }
    }

    /// How many rows to ask for: one more than wanted tells whether there are more.
    pub(crate) fn rows(&self) -> i64 {
        i64::from(self.limit.clamp(1, PAGE_ITEMS_MAX)) + 1
    }

    /// The page that `items` make, of which there may be one too many.
    pub(crate) fn of<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> Id) -> Listed<T, Id> {
        let limit = self.limit.clamp(1, PAGE_ITEMS_MAX) as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = if more { items.last().map(id) } else { None };
        Listed { items, next_cursor }
    }
}

impl<Id: ToString> Page<Id> {
    /// The id after which the page begins; every id is greater than the empty text.
    pub(crate) fn after(&self) -> String {
        self.cursor.as_ref().map(Id::to_string).unwrap_or_default()
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T, Id> {
    /// The rows, in the order of their ids.
    pub items: Vec<T>,
    /// Where the next page begins; None on the last.
    pub next_cursor: Option<Id>,
}

impl Store {
    /// Rows of a query whose MAC is right; the query takes `values` and then a limit. They may be fewer than `limit`, and
    /// are none only where the query has no such row at all: rows that another program has written do not hide others.
    pub(crate) async fn authentic_up_to<T: Authentic>(
        &self,
        sql: &'static str,
        values: Vec<Arg<'_>>,
        limit: u32,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows()?;
        let mut asked = i64::from(limit);
        loop {
            let mut args: Vec<Arg<'_>> = values.iter().map(Arg::borrowed).collect();
            args.push(Arg::from(asked));
            let found = self.db.read().await?.fetch(sql, &args).await?;
            let valid: Vec<T> = found.iter().filter_map(|row| rows.authentic(row)).take(limit as usize).collect();
            let was_last = i64::try_from(found.len()).is_ok_and(|found| found < asked);
            if !valid.is_empty() || was_last || limit == 0 {
                return Ok(valid);
            }
            asked = asked.saturating_mul(2);
        }
    }
}
