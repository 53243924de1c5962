//! The workspaces to which the lines of an import belong.

use std::collections::{BTreeMap, HashMap};

use monstrum_api::export::WorkspaceLine;
use monstrum_api::import::ImportedState;
use monstrum_api::workspaces::NewWorkspace;
use monstrum_store::WorkspaceRow;
use monstrum_types::WorkspaceId;

use super::check::unique;
use super::faults::Faults;
use super::lines::{Lines, Numbered};
use crate::app::App;
use crate::operations::change::later_than;
use crate::operations::{Caller, OperationError, workspaces};

/// The maximum number of workspaces in an import. Each workspace is created in a separate transaction.
const WORKSPACES_MAX: usize = 1_000;

/// A workspace and its lines.
pub(super) struct Target {
    /// The workspace as it is after the import.
    pub(super) row: WorkspaceRow,
    /// The workspace as it is before the import; `None` if it is new.
    pub(super) before: Option<WorkspaceRow>,
    pub(super) lines: Lines,
    /// Whether a line describes the workspace itself.
    is_described: bool,
}

impl Target {
    fn of(row: WorkspaceRow) -> Target {
        Target { before: Some(row.clone()), row, lines: Lines::default(), is_described: false }
    }

    pub(super) fn state(&self) -> ImportedState {
        match &self.before {
            None => ImportedState::Created,
            Some(before) if *before != self.row => ImportedState::Changed,
            Some(_) => ImportedState::Unchanged,
        }
    }
}

/// Returns the workspaces of the lines. Lines that name no workspace belong to the workspace in which the caller acts.
pub(super) async fn targets(
    app: &App,
    caller: &Caller,
    mut lines: Lines,
    faults: &mut Faults,
) -> Result<Vec<Target>, OperationError> {
    let own = app.store.workspace(caller.workspace).await?;
    let own = own.ok_or_else(|| OperationError::unverified("instance"))?;
    let own_name = own.name.clone();
    let mut targets = Targets { app, own_name, known: HashMap::new(), by_id: BTreeMap::new() };
    targets.add(Target::of(own));
    for line in unique(std::mem::take(&mut lines.workspaces), faults, |line| line.name.clone(), "workspace") {
        targets.describe(line, faults).await?;
    }
    macro_rules! distribute {
        ($($kind:ident),+) => {$(
            for line in lines.$kind {
                if let Some(target) = targets.of(line.number, line.line.workspace.as_deref(), faults).await? {
                    target.lines.$kind.push(line);
                }
            }
        )+};
    }
    distribute!(roles, bots, resources, bindings);
    let is_concerned = |target: &Target| target.is_described || !target.lines.is_empty();
    let targets: Vec<Target> = targets.by_id.into_values().filter(is_concerned).collect();
    if targets.len() > WORKSPACES_MAX {
        return Err(OperationError::OverLimit(format!("an import can have at most {WORKSPACES_MAX} workspaces")));
    }
    for target in &targets {
        app.store.require_verified(target.row.id)?;
    }
    Ok(targets)
}

struct Targets<'a> {
    app: &'a App,
    own_name: String,
    /// The id of each name that was looked up; `None` if the workspace does not exist.
    known: HashMap<String, Option<WorkspaceId>>,
    by_id: BTreeMap<WorkspaceId, Target>,
}

impl Targets<'_> {
    fn add(&mut self, target: Target) {
        self.known.insert(target.row.name.clone(), Some(target.row.id));
        self.by_id.insert(target.row.id, target);
    }

    /// Returns the workspace with this name, which is looked up only once, or `None` if it does not exist.
    async fn find(&mut self, name: &str) -> Result<Option<&mut Target>, OperationError> {
        if !self.known.contains_key(name) {
            match self.app.store.workspace_named(name).await? {
                Some(row) => self.add(Target::of(row)),
                None => {
                    self.known.insert(name.to_owned(), None);
                }
            }
        }
        let id = self.known.get(name).copied().flatten();
        Ok(id.and_then(|id| self.by_id.get_mut(&id)))
    }

    /// Adds the workspace that a line describes.
    async fn describe(
        &mut self,
        Numbered { number, line }: Numbered<WorkspaceLine>,
        faults: &mut Faults,
    ) -> Result<(), OperationError> {
        let WorkspaceLine { name, sandbox } = line;
        let sandbox = match sandbox.map(|sandbox| workspaces::checked_sandbox(&sandbox)).transpose() {
            Ok(sandbox) => sandbox,
            Err(errors) => return faults.add_errors(number, Err(errors)),
        };
        let now = self.app.clock.now();
        if let Some(target) = self.find(&name).await? {
            target.is_described = true;
            if target.row.sandbox != sandbox {
                target.row.sandbox = sandbox;
                target.row.updated_at = later_than(target.row.updated_at, now);
            }
            return Ok(());
        }
        faults.add_errors(number, workspaces::check_name(&name))?;
        let row = WorkspaceRow { sandbox, ..workspaces::row(NewWorkspace { name }, now) };
        self.add(Target { row, before: None, lines: Lines::default(), is_described: true });
        Ok(())
    }

    /// Returns the workspace of a line, or adds a fault if the workspace does not exist.
    async fn of(
        &mut self,
        number: usize,
        name: Option<&str>,
        faults: &mut Faults,
    ) -> Result<Option<&mut Target>, OperationError> {
        let own = self.own_name.clone();
        let found = self.find(name.unwrap_or(&own)).await?;
        if found.is_none() {
            faults.add(number, "/workspace", "no such workspace, and no line of the import creates it");
        }
        Ok(found)
    }
}
