//! The pages of lists that the API returns.

use monstrum_api::list::List;
use monstrum_store::{Listed, Page};

/// Reads all pages of a list and runs the body for each row.
macro_rules! each_row {
    ($first:expr, |$page:ident| $read:expr, |$row:ident| $body:expr) => {{
        let mut $page = $first;
        loop {
            let listed = $read.await?;
            for $row in listed.items {
                $body
            }
            match listed.next_cursor {
                Some(cursor) => $page.cursor = Some(cursor),
                None => break,
            }
        }
    }};
}
pub(super) use each_row;

/// Builds a page of rows, each converted by `view`.
pub(super) fn page<R, C: ToString, T>(listed: Listed<R, C>, view: impl FnMut(R) -> T) -> List<T> {
    List {
        items: listed.items.into_iter().map(view).collect(),
        next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()),
    }
}

/// Builds a page of a list in memory, sorted by name.
pub(super) fn page_by_name<R, T>(
    items: Vec<R>,
    page: &Page<String>,
    name: impl Fn(&R) -> &str,
    view: impl FnMut(R) -> T,
) -> List<T> {
    let after = |item: &R| page.cursor.as_deref().is_none_or(|cursor| name(item) > cursor);
    let mut rest: Vec<R> = items.into_iter().filter(after).collect();
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let more = rest.len() > limit;
    rest.truncate(limit);
    let next_cursor = if more { rest.last().map(|item| name(item).to_owned()) } else { None };
    List { items: rest.into_iter().map(view).collect(), next_cursor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_memory_are_paged_by_name() {
        let page = |limit, cursor: Option<&str>| {
            let page = Page { limit, cursor: cursor.map(str::to_owned) };
            let List { items, next_cursor } = page_by_name(vec!["a", "b", "c"], &page, |name| name, |name| name);
            (items, next_cursor)
        };
        assert_eq!(page(2, None), (vec!["a", "b"], Some("b".to_owned())));
        assert_eq!(page(2, Some("b")), (vec!["c"], None));
        assert_eq!(page(3, None), (vec!["a", "b", "c"], None));
        assert_eq!(page(3, Some("z")), (vec![], None));
    }
}
