//! The commands of sandboxes with their outputs, as sealed records. A record is deleted with its sandbox, and when newer
//! records of the sandbox need its place.

use monstrum_types::{RequestId, SandboxInstanceId, WorkspaceId};

use crate::db::{args, from_row, retry};
use crate::{Listed, Page, Store, StoreError};

/// A row of `sandbox_outputs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxOutputRow {
    /// The call of the command. Newer calls have larger ids.
    pub request_id: RequestId,
    pub workspace_id: WorkspaceId,
    pub sandbox_id: SandboxInstanceId,
    /// A sealed record in its text form.
    pub sealed: String,
}

from_row! { SandboxOutputRow { request_id, workspace_id, sandbox_id, sealed } }

/// How many records of one sandbox are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxOutputsMax {
    pub records: usize,
    /// The total size of the sealed records.
    pub bytes: u64,
}

struct Size {
    request_id: RequestId,
    bytes: u64,
}

from_row! { Size { request_id, bytes } }

// A record of a sandbox that was deleted is not stored. The record of a command that has ended replaces the record of the
// running command.
const PUT: &str = "insert into sandbox_outputs (request_id, workspace_id, sandbox_id, bytes, sealed) \
                   select $1, workspace_id, id, cast($4 as bigint), $5 from sandbox_instances \
                   where workspace_id = $2 and id = $3 \
                   on conflict (request_id) do update set bytes = excluded.bytes, sealed = excluded.sealed \
                   where sandbox_outputs.sandbox_id = excluded.sandbox_id";
const SIZES: &str = "select request_id, bytes from sandbox_outputs where sandbox_id = $1 order by request_id desc";
const DELETE: &str = "delete from sandbox_outputs where sandbox_id = $1 and request_id <= $2";
const PAGE: &str = "select request_id, workspace_id, sandbox_id, sealed from sandbox_outputs \
                    where workspace_id = $1 and sandbox_id = $2 and ($3 = '' or request_id < $3) \
                    order by request_id desc limit $4";

impl Store {
    /// Stores the record of a command, and deletes the oldest records of the sandbox that exceed `max`. Returns `false`
    /// if the sandbox does not exist.
    pub async fn put_sandbox_output(&self, row: &SandboxOutputRow, max: SandboxOutputsMax) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let bytes = i64::try_from(row.sealed.len()).unwrap_or(i64::MAX);
            let put = args![row.request_id, row.workspace_id, row.sandbox_id, bytes, &row.sealed];
            if session.run(PUT, put).await? == 0 {
                return Ok(false);
            }
            let sizes: Vec<Size> = session.all(SIZES, args![row.sandbox_id]).await?;
            if let Some(newest) = first_beyond(&sizes, max) {
                session.run(DELETE, args![row.sandbox_id, newest]).await?;
            }
            session.commit().await?;
            Ok(true)
        })
    }

    /// Returns a page of the records of a sandbox, newest first.
    pub async fn sandbox_outputs(
        &self,
        workspace: WorkspaceId,
        sandbox: SandboxInstanceId,
        page: &Page<RequestId>,
    ) -> Result<Listed<SandboxOutputRow, RequestId>, StoreError> {
        let rows = self.db.all(PAGE, args![workspace, sandbox, &page.after(), page.rows()]).await?;
        Ok(page.of(rows, |row: &SandboxOutputRow| row.request_id))
    }
}

/// Returns the newest record that has no room. `sizes` are ordered from the newest record to the oldest.
fn first_beyond(sizes: &[Size], max: SandboxOutputsMax) -> Option<RequestId> {
    let mut bytes = 0_u64;
    let beyond = sizes.iter().enumerate().find(|(place, size)| {
        bytes = bytes.saturating_add(size.bytes);
        *place >= max.records || bytes > max.bytes
    });
    beyond.map(|(_, size)| size.request_id)
}
