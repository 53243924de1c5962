//! Limits for concurrent imports. A workspace has at most one import at a time, and a host has at most [`IMPORTS_MAX`],
//! because the lines of an import are kept in memory.

use std::collections::BTreeSet;

use monstrum_types::WorkspaceId;
use parking_lot::Mutex;

use crate::operations::OperationError;

/// The maximum number of concurrent imports on a host, which has memory for two.
const IMPORTS_MAX: usize = 2;

struct UnderWay {
    imports: usize,
    workspaces: BTreeSet<WorkspaceId>,
}

static UNDER_WAY: Mutex<UnderWay> = Mutex::new(UnderWay { imports: 0, workspaces: BTreeSet::new() });

/// A guard that blocks other imports into the workspaces of an import, until it is dropped.
pub(super) struct Turn {
    workspaces: BTreeSet<WorkspaceId>,
}

impl Turn {
    /// Begins an import into a workspace. Fails if another import into the workspace is running, or if the host already
    /// runs [`IMPORTS_MAX`] imports.
    pub(super) fn begin(workspace: WorkspaceId) -> Result<Turn, OperationError> {
        {
            let mut under_way = UNDER_WAY.lock();
            if under_way.workspaces.contains(&workspace) {
                return Err(is_importing());
            }
            if under_way.imports >= IMPORTS_MAX {
                return Err(OperationError::Busy(format!(
                    "{IMPORTS_MAX} imports are already running; try again later"
                )));
            }
            under_way.imports += 1;
        }
        let mut turn = Turn { workspaces: BTreeSet::new() };
        turn.extend([workspace])?;
        Ok(turn)
    }

    /// Adds workspaces to the import. Fails if another import into one of them is running.
    pub(super) fn extend(&mut self, workspaces: impl IntoIterator<Item = WorkspaceId>) -> Result<(), OperationError> {
        let mut under_way = UNDER_WAY.lock();
        for workspace in workspaces {
            if self.workspaces.contains(&workspace) {
                continue;
            }
            if !under_way.workspaces.insert(workspace) {
                return Err(is_importing());
            }
            self.workspaces.insert(workspace);
        }
        Ok(())
    }
}

fn is_importing() -> OperationError {
    OperationError::conflict("another import into this workspace is running; try again when it has ended")
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut under_way = UNDER_WAY.lock();
        under_way.imports -= 1;
        for workspace in &self.workspaces {
            under_way.workspaces.remove(workspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_has_one_import_at_a_time_and_a_host_two() {
        let [first, second, third] = [(); 3].map(|()| WorkspaceId::new());
        let mut one = Turn::begin(first).unwrap();
        assert!(matches!(Turn::begin(first), Err(OperationError::Conflict(_))));
        let two = Turn::begin(second).unwrap();
        assert!(matches!(Turn::begin(third), Err(OperationError::Busy(_))));
        assert!(matches!(one.extend([third, second]), Err(OperationError::Conflict(_))));
        drop(one);
        drop(Turn::begin(third).unwrap());
        drop(two);
        drop(Turn::begin(second).unwrap());
    }
}
