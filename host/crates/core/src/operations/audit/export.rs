//! Exports of the audit as JSON Lines, newest first. An export reads a page of rows when the lines of the previous page
//! have been sent, so its memory does not depend on the number of rows, and it ends when the client goes away.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use monstrum_store::{AuditRow, CallFilter, Listed, Page, Store, StoreError};
use monstrum_types::{RequestId, WorkspaceId};
use serde::Serialize;

use super::{ocsf, view};
use crate::app::App;
use crate::operations::Operator;

/// The number of rows that an export reads in one query. With this number, an export needs few round trips and little
/// memory.
const EXPORT_PAGE: u32 = 500;

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Calls, as the list of calls contains them.
    Calls,
    /// Events of OCSF 1.9.0: calls, and changes if the caller may read changes.
    Ocsf,
}

/// The error of an export during which the database failed. The connection is closed early, so that a client does not
/// mistake an incomplete export for a complete export.
#[derive(Debug, thiserror::Error)]
#[error("the audit could not be read completely")]
pub struct ExportBroken(#[source] StoreError);

/// Streams calls, newest first, with one JSON object per line. In the format OCSF, the lines for admins include changes.
pub fn export(
    app: &App,
    caller: &Operator,
    filter: CallFilter,
    format: ExportFormat,
) -> impl Stream<Item = Result<Bytes, ExportBroken>> + Send + use<> {
    let has_changes = format == ExportFormat::Ocsf && caller.admin().is_ok();
    let export = Export {
        store: app.store.clone(),
        workspace: caller.workspace,
        filter,
        format,
        calls: Rows::first(),
        changes: if has_changes { Rows::first() } else { Rows::default() },
        has_failed: false,
    };
    let lines = stream::unfold(export, |mut export| async move {
        let line = export.next().await.transpose()?;
        Some((line, export))
    });
    // Compression polls a body again after its end.
    lines.fuse()
}

/// A running export.
struct Export {
    store: Store,
    workspace: WorkspaceId,
    filter: CallFilter,
    format: ExportFormat,
    calls: Rows,
    changes: Rows,
    has_failed: bool,
}

/// The rows of one list that were read and not sent.
#[derive(Default)]
struct Rows {
    waiting: VecDeque<AuditRow>,
    /// The page to read next.
    page: Option<Page<RequestId>>,
}

impl Export {
    /// Returns the next line. After an error, the export has ended.
    async fn next(&mut self) -> Result<Option<Bytes>, ExportBroken> {
        if self.has_failed {
            return Ok(None);
        }
        self.read().await.map_err(|error| {
            self.has_failed = true;
            tracing::error!(%error, "an export of the audit was interrupted");
            ExportBroken(error)
        })?;
        let newest = |rows: &Rows| rows.waiting.front().map(|row| row.request_id);
        let rows = if newest(&self.calls) >= newest(&self.changes) { &mut self.calls } else { &mut self.changes };
        let Some(row) = rows.waiting.pop_front() else { return Ok(None) };
        Ok(Some(match self.format {
            ExportFormat::Calls => line(&view(row)),
            ExportFormat::Ocsf => line(&ocsf::event(row)),
        }))
    }

    /// Reads the next page of each list of which all rows were sent.
    async fn read(&mut self) -> Result<(), StoreError> {
        if let Some(page) = self.calls.next_page() {
            let listed = self.store.calls(self.workspace, &self.filter, &page).await?;
            self.calls = Rows::of(listed);
        }
        if let Some(page) = self.changes.next_page() {
            let listed = self.store.changes(self.workspace, &self.filter, &page).await?;
            self.changes = Rows::of(listed);
        }
        Ok(())
    }
}

impl Rows {
    fn first() -> Rows {
        Rows { waiting: VecDeque::new(), page: Some(Page::first(EXPORT_PAGE)) }
    }

    fn of(listed: Listed<AuditRow, RequestId>) -> Rows {
        let page = listed.next_cursor.map(|cursor| Page { limit: EXPORT_PAGE, cursor: Some(cursor) });
        Rows { waiting: listed.items.into(), page }
    }

    fn next_page(&mut self) -> Option<Page<RequestId>> {
        if self.waiting.is_empty() { self.page.take() } else { None }
    }
}

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).expect("a line is plain JSON");
    text.push(b'\n');
    text.into()
}
