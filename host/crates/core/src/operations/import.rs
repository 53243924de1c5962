//! Imports the configuration of a workspace, or of several workspaces, from the lines of an export. An import into the
//! caller's workspace requires an admin key; lines that name a workspace require a root key.
//!
//! All lines are read and checked before anything is written. The checks are the same as for changes of single objects.
//! Objects are matched by name: missing objects are created, objects that differ are changed, and nothing is deleted.
//! Equal objects are not written, so a repeated import continues where an earlier import ended. No line can contain an
//! id, a key or a credential.
//!
//! A caller can require that an import does what an earlier dry run showed: an import with the `plan` of the dry run is
//! rejected if the lines or the objects that they change are different.

mod apply;
mod check;
mod existing;
mod faults;
mod lines;
mod permissions;
mod plan;
mod targets;
mod turns;

use std::sync::Arc;

use bytes::Bytes;
use monstrum_api::import::{Import, ImportedWorkspace};
use sha2::{Digest as _, Sha256};

use self::apply::Apply;
use self::check::Check;
use self::existing::Existing;
use self::faults::Faults;
use self::lines::Reader;
use self::permissions::{Listing, Shown};
use self::plan::{Plan, digest};
use self::targets::{Target, targets};
use self::turns::Turn;
use super::{Admin, Caller, OperationError, rules};
use crate::app::App;
use crate::beside::Beside;
use crate::policy::pattern_limits::Saving;

pub use self::lines::BODY_BYTES_MAX;

/// The size in bytes of the parts in which a body is parsed. They are parsed on threads that serve no requests.
const PART_BYTES: usize = 256 << 10;

/// The threads on which lines are parsed and checked.
static LINES: Beside = Beside::new();

/// An import whose body is being received.
pub struct Arriving {
    caller: Caller,
    reader: Reader,
    part: Vec<u8>,
    body: Sha256,
    turn: Turn,
}

/// Begins an import. Waits while the host runs other imports. Other imports into the caller's workspace are rejected
/// until this import ends.
pub async fn begin(app: &App, caller: &Admin) -> Result<Arriving, OperationError> {
    app.store.require_verified(caller.workspace)?;
    let (turn, caller) = (Turn::begin(caller.workspace).await?, Caller::clone(caller));
    let (reader, body) = (Reader::new(caller.clone()), Sha256::new());
    Ok(Arriving { reader, caller, part: Vec::new(), body, turn })
}

/// Whether another import waits until an import on this host ends.
pub fn is_awaited() -> bool {
    Turn::is_awaited()
}

impl Arriving {
    /// Reads a part of the body.
    pub async fn read(mut self, part: Bytes) -> Result<Arriving, OperationError> {
        self.body.update(&part);
        self.part.extend_from_slice(&part);
        if self.part.len() < PART_BYTES { Ok(self) } else { self.parse().await }
    }

    async fn parse(mut self) -> Result<Arriving, OperationError> {
        let (mut reader, part) = (self.reader, std::mem::take(&mut self.part));
        let parsed = LINES.run(move || reader.read(&part).map(|()| reader)).await;
        self.reader = parsed.map_err(OperationError::internal)??;
        Ok(self)
    }

    /// Checks an import after its whole body was received. Writes the objects unless the import is a dry run. Returns
    /// the changes that were made or, for a dry run, would be made. Fails if `expected` is the plan of an earlier dry run
    /// and this import would make other changes.
    pub async fn finish(self, app: &Arc<App>, dry_run: bool, expected: Option<&str>) -> Result<Import, OperationError> {
        let Arriving { caller, reader, mut turn, body, .. } = self.parse().await?;
        let (lines, mut faults) = reader.end()?;
        let targets = targets(app, &caller, lines, &mut faults).await?;
        turn.extend(targets.iter().map(|target| target.row.id))?;
        // The snapshot must include changes by other hosts, because roles are compared with the bindings in it.
        app.policy.renew_if_behind().await?;
        let mut plans = Vec::with_capacity(targets.len());
        let mut rooms = Vec::with_capacity(targets.len());
        let mut listing = Listing::WHOLE;
        for target in targets {
            let (planned, found) = plan(app, target, listing, faults).await?;
            (faults, listing) = (found, planned.1.permissions.listing());
            rooms.extend(room(app, &planned, &mut faults).await?);
            plans.push(planned);
        }
        faults.check()?;
        let digest = digest(body, &plans);
        if expected.is_some_and(|expected| expected != digest) {
            return Err(OperationError::conflict(
                "the workspace or the lines were changed after the dry run of this plan; nothing was written; repeat the \
                 dry run",
            ));
        }
        if dry_run {
            return Ok(shown(dry_run, digest, plans));
        }
        // The work runs in a separate task, because otherwise rows could be written but not put in force if the caller
        // disconnects.
        let app = Arc::clone(app);
        let applying = tokio::spawn(async move {
            let _held = (turn, rooms);
            Apply::new(&app, &caller, &plans).run(&plans).await.map(|()| plans)
        });
        Ok(shown(dry_run, digest, applying.await.map_err(OperationError::internal)??))
    }
}

/// Checks the lines of a workspace and plans what to write.
async fn plan(
    app: &App,
    mut target: Target,
    listing: Listing,
    mut faults: Faults,
) -> Result<((Target, Plan), Faults), OperationError> {
    let lines = std::mem::take(&mut target.lines);
    let existing = match target.before {
        Some(_) => Existing::read(&app.store, target.row.id, &lines).await?,
        None => Existing::default(),
    };
    let check = Check::new(app.policy.load(), target.row.id, app.clock.now(), existing, listing);
    let checked = LINES.run(move || check.run(lines, &mut faults).map(|plan| (plan, faults))).await;
    let (plan, faults) = checked.map_err(OperationError::internal)??;
    Ok(((target, plan), faults))
}

/// Reserves memory for the compiled patterns of the rows to be written.
async fn room(
    app: &App,
    (target, plan): &(Target, Plan),
    faults: &mut Faults,
) -> Result<Option<Saving>, OperationError> {
    match rules::pattern_room(app, target.row.id, plan.replaced_bytes, plan.bytes).await {
        Ok(saving) => Ok(Some(saving)),
        Err(OperationError::Invalid(errors)) => {
            for error in errors {
                faults.add_whole(format!("workspace `{}`: {}", target.row.name, error.message));
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn shown(dry_run: bool, plan: String, plans: Vec<(Target, Plan)>) -> Import {
    let workspaces = plans.into_iter().map(|(target, plan)| {
        let (state, Plan { created, changed, unchanged, permissions, .. }) = (target.state(), plan);
        let Shown { permissions, gates, labels, left_out } = permissions.shown();
        ImportedWorkspace {
            workspace: target.row.name,
            state,
            created,
            changed,
            unchanged,
            permissions,
            gates,
            labels,
            permissions_left_out: left_out,
        }
    });
    Import { dry_run, plan, workspaces: workspaces.collect() }
}
