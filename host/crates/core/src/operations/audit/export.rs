//! Exports of the audit as JSON Lines, newest first. An export reads a page of rows when the lines of the previous page
//! have been sent, so its memory does not depend on the number of rows, and it ends when the client goes away.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use monstrum_store::{AuditRow, CallFilter, Listed, Page, StoreError};
use monstrum_types::{RequestId, with_causes};
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

/// The reason why an export ended early. The connection is closed before the end of the body, so that a client does not
/// mistake an incomplete export for a complete export.
#[derive(Debug, thiserror::Error)]
pub enum ExportBroken {
    /// The database failed.
    #[error("the audit could not be read completely")]
    Unreadable(#[from] StoreError),
    /// The key of the caller ended during the export.
    #[error("the API key was deleted or rotated")]
    Revoked,
}

/// Streams calls, newest first, with one JSON object per line. In the format OCSF, the lines for admins include changes.
pub fn export(
    app: Arc<App>,
    caller: Operator,
    filter: CallFilter,
    format: ExportFormat,
) -> impl Stream<Item = Result<Bytes, ExportBroken>> + Send {
    let has_changes = format == ExportFormat::Ocsf && caller.admin().is_ok();
    let export = Export {
        app,
        caller,
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
    app: Arc<App>,
    caller: Operator,
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
        self.read().await.inspect_err(|error| {
            self.has_failed = true;
            tracing::warn!(error = %with_causes(error), "an export of the audit was interrupted");
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
    async fn read(&mut self) -> Result<(), ExportBroken> {
        let (calls, changes) = (self.calls.next_page(), self.changes.next_page());
        if calls.is_none() && changes.is_none() {
            return Ok(());
        }
        // A slow client may read the export long after its key was revoked.
        if !self.caller.is_known(&self.app.policy.load(), self.app.clock.now()) {
            return Err(ExportBroken::Revoked);
        }
        let (store, workspace) = (&self.app.store, self.caller.workspace);
        if let Some(page) = calls {
            self.calls = Rows::of(store.calls(workspace, &self.filter, &page).await?);
        }
        if let Some(page) = changes {
            self.changes = Rows::of(store.changes(workspace, &self.filter, &page).await?);
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
