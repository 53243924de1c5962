//! The workflows and the triggers in force: which events start runs of which workflows.

use std::sync::Arc;

use monstrum_api::tasks::Narrow;
use monstrum_guardian::match_glob;
use monstrum_store::{Changed, EventRow, WorkflowRow, WorkflowTriggerRow};
use monstrum_types::{KeyId, WorkflowId, WorkflowTriggerId, WorkspaceId};
use serde::Deserialize as _;

use super::Snapshot;
use super::of_workspaces::OfWorkspaces;
use crate::events::{EventSource, Template};

/// A trigger, whose row was verified and read.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    pub row: WorkflowTriggerRow,
    pub sources: Vec<EventSource>,
    pub template: Template,
    pub narrow: Option<Narrow>,
    /// The keys that made or changed the trigger.
    pub starters: Vec<KeyId>,
}

impl Trigger {
    /// Reads a row. Returns `None` if a part of it is not in the form in which it is saved; such a trigger matches nothing.
    pub fn of_row(row: WorkflowTriggerRow) -> Option<Trigger> {
        let words = Vec::<String>::deserialize(&row.sources).ok()?;
        let sources = words.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let narrow = row.narrow.as_ref().map(Narrow::deserialize).transpose().ok()?;
        let starters = Vec::<KeyId>::deserialize(&row.starters).ok()?;
        let template = Template::parse(&row.instruction).ok()?;
        Some(Trigger { sources, template, narrow, starters, row })
    }

    /// Returns whether an event starts a run of `workflow` by this trigger. The workflow must be that of the trigger, and
    /// all must be of the same workspace.
    pub fn matches(&self, workflow: &WorkflowRow, event: &EventRow) -> bool {
        let WorkflowTriggerRow { workspace_id, workflow_id, event_pattern, enabled, .. } = &self.row;
        *workflow_id == workflow.id
            && *workspace_id == workflow.workspace_id
            && *workspace_id == event.workspace_id
            && *enabled
            && workflow.enabled
            && self.sources.iter().any(|source| source.has(workflow.bot_id, event.bot_id))
            && match_glob(&event.event_type, event_pattern)
    }
}

/// The workflows and the triggers of a snapshot.
#[derive(Clone, Default)]
pub struct Triggers {
    workflows: imbl::HashMap<WorkflowId, Arc<WorkflowRow>>,
    names: imbl::HashMap<(WorkspaceId, String), WorkflowId>,
    triggers: OfWorkspaces<WorkflowTriggerId, Trigger>,
}

impl Triggers {
    /// Returns the triggers of a workspace with their workflows, in the order of their creation.
    pub fn of_workspace(&self, workspace: WorkspaceId) -> impl Iterator<Item = (&Arc<Trigger>, &Arc<WorkflowRow>)> {
        let triggers = self.triggers.of_workspace(workspace);
        triggers.filter_map(move |trigger| Some((trigger, self.workflow(workspace, trigger.row.workflow_id)?)))
    }

    /// Returns the trigger with this id in the workspace, and its workflow.
    pub fn get(&self, workspace: WorkspaceId, id: WorkflowTriggerId) -> Option<(&Arc<Trigger>, &Arc<WorkflowRow>)> {
        let trigger = self.triggers.get(workspace, id)?;
        Some((trigger, self.workflow(workspace, trigger.row.workflow_id)?))
    }

    fn workflow(&self, workspace: WorkspaceId, id: WorkflowId) -> Option<&Arc<WorkflowRow>> {
        self.workflows.get(&id).filter(|workflow| workflow.workspace_id == workspace)
    }

    /// Applies changes of workflows and triggers.
    pub(super) fn change(
        &mut self,
        workflows: Changed<WorkflowId, WorkflowRow>,
        triggers: Changed<WorkflowTriggerId, WorkflowTriggerRow>,
    ) {
        for (id, row) in workflows {
            if let Some(known) = self.workflows.remove(&id) {
                self.names.remove(&(known.workspace_id, known.name.clone()));
            }
            if let Some(row) = row {
                self.names.insert((row.workspace_id, row.name.clone()), id);
                self.workflows.insert(id, Arc::new(row));
            }
        }
        for (id, row) in triggers {
            let trigger = row.and_then(|row| {
                let trigger = Trigger::of_row(row);
                if trigger.is_none() {
                    tracing::error!(trigger.id = %id, "a trigger matches nothing, because its row is unreadable");
                }
                trigger
            });
            self.triggers.set(id, trigger.map(|trigger| (trigger.row.workspace_id, trigger)));
        }
    }
}

impl Snapshot {
    /// Returns the workflows and the triggers of all workspaces.
    pub fn triggers(&self) -> &Triggers {
        &self.triggers
    }

    /// Returns the workflow with this id in the workspace.
    pub fn workflow(&self, workspace: WorkspaceId, id: WorkflowId) -> Option<&Arc<WorkflowRow>> {
        self.triggers.workflow(workspace, id)
    }

    /// Returns the workflow with this name in the workspace.
    pub fn workflow_called(&self, workspace: WorkspaceId, name: &str) -> Option<&Arc<WorkflowRow>> {
        self.workflow(workspace, *self.triggers.names.get(&(workspace, name.to_owned()))?)
    }
}

#[cfg(test)]
mod tests {
    use monstrum_types::{BotId, EventId, UtcMillis};
    use serde_json::{Value, json};

    use super::*;

    fn workflow() -> WorkflowRow {
        WorkflowRow {
            id: WorkflowId::new(),
            workspace_id: WorkspaceId::new(),
            bot_id: BotId::new(),
            name: "release".to_owned(),
            version: 1,
            enabled: true,
            created_at: UtcMillis(1),
            updated_at: UtcMillis(1),
        }
    }

    fn row(workflow: &WorkflowRow) -> WorkflowTriggerRow {
        WorkflowTriggerRow {
            id: WorkflowTriggerId::new(),
            workspace_id: workflow.workspace_id,
            workflow_id: workflow.id,
            event_pattern: "custom.order.*".to_owned(),
            instruction: "{data}".to_owned(),
            sources: json!(["own", "platform"]),
            narrow: None,
            enabled: true,
            starters: json!([]),
            created_at: UtcMillis(1),
            updated_at: UtcMillis(1),
        }
    }

    fn event(workspace_id: WorkspaceId, bot_id: Option<BotId>, event_type: &str) -> EventRow {
        let id = EventId::new();
        EventRow {
            id,
            workspace_id,
            event_type: event_type.to_owned(),
            source_type: "platform".to_owned(),
            source_id: "k".to_owned(),
            bot_id,
            root_event_id: id,
            depth: 0,
            links: "{}".to_owned(),
            created_at: UtcMillis(1),
            sealed: String::new(),
        }
    }

    #[test]
    fn an_event_matches_by_type_bot_and_workspace() {
        let workflow = workflow();
        let matches =
            |row: WorkflowTriggerRow, event: &EventRow| Trigger::of_row(row).unwrap().matches(&workflow, event);
        let paid = |bot_id| event(workflow.workspace_id, bot_id, "custom.order.paid");
        let own = || row(&workflow);
        assert!(matches(own(), &paid(Some(workflow.bot_id))) && matches(own(), &paid(None)));
        assert!(!matches(own(), &paid(Some(BotId::new()))), "an event of another bot");
        assert!(!matches(own(), &event(workflow.workspace_id, None, "custom.order")), "another type");
        assert!(!matches(own(), &event(WorkspaceId::new(), None, "custom.order.paid")), "another workspace");
        assert!(!matches(WorkflowTriggerRow { enabled: false, ..own() }, &paid(None)));
        let any = WorkflowTriggerRow { sources: json!(["any"]), ..own() };
        assert!(matches(any, &paid(Some(BotId::new()))));
        let foreign = WorkflowTriggerRow { workflow_id: WorkflowId::new(), ..own() };
        assert!(!matches(foreign, &paid(None)), "another workflow");
        let trigger = Trigger::of_row(own()).unwrap();
        assert!(!trigger.matches(&WorkflowRow { enabled: false, ..workflow.clone() }, &paid(None)));
    }

    #[test]
    fn unreadable_rows_match_nothing() {
        let own = || row(&workflow());
        let sources = |sources: Value| WorkflowTriggerRow { sources, ..own() };
        for unreadable in [
            sources(json!(["all"])),
            sources(json!("any")),
            WorkflowTriggerRow { narrow: Some(json!({ "unknown": 1 })), ..own() },
            WorkflowTriggerRow { starters: json!([1]), ..own() },
            WorkflowTriggerRow { instruction: "{unknown}".to_owned(), ..own() },
        ] {
            assert_eq!(Trigger::of_row(unreadable.clone()), None, "{unreadable:?}");
        }
    }

    #[test]
    fn changes_replace_and_remove() {
        let workflow = workflow();
        let (one, two, workspace) = (row(&workflow), row(&workflow), workflow.workspace_id);
        let mut snapshot = Snapshot::default();
        let both = [(one.id, Some(one.clone())), (two.id, Some(two.clone()))];
        snapshot.triggers.change([].into(), both.into());
        assert_eq!(snapshot.triggers().of_workspace(workspace).count(), 0, "without their workflow");
        snapshot.triggers.change([(workflow.id, Some(workflow.clone()))].into(), [].into());
        assert_eq!(snapshot.triggers().of_workspace(workspace).count(), 2);
        assert_eq!(snapshot.workflow_called(workspace, "release").unwrap().id, workflow.id);
        assert!(snapshot.workflow_called(WorkspaceId::new(), "release").is_none());
        let changed = WorkflowTriggerRow { event_pattern: "*".to_owned(), ..one.clone() };
        snapshot.triggers.change([].into(), [(one.id, Some(changed)), (two.id, None)].into());
        assert_eq!(snapshot.triggers().get(workspace, one.id).unwrap().0.row.event_pattern, "*");
        assert!(snapshot.triggers().get(workspace, two.id).is_none());
        assert!(snapshot.triggers().get(WorkspaceId::new(), one.id).is_none());
        let unreadable = WorkflowTriggerRow { instruction: "{".to_owned(), ..one.clone() };
        snapshot.triggers.change([].into(), [(one.id, Some(unreadable))].into());
        assert_eq!(snapshot.triggers().of_workspace(workspace).count(), 0);
        snapshot.triggers.change([(workflow.id, None)].into(), [].into());
        assert!(snapshot.workflow(workspace, workflow.id).is_none());
        assert!(snapshot.workflow_called(workspace, "release").is_none());
    }
}
