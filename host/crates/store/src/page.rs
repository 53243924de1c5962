//! Lists, a page at a time.

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
