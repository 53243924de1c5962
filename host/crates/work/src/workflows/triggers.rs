//! The operations on triggers: which events start runs of a workflow.
//!
//! With the events of another bot, that bot could steer the bot of the workflow, so only an admin takes them.

use std::str::FromStr as _;

use monstrum_api::list::List;
use monstrum_api::workflows::{NewWorkflowTrigger, WorkflowTrigger, WorkflowTriggerChange, WorkflowTriggerList};
use monstrum_core::events::{EventSource, Template};
use monstrum_core::operations::change::{Change, changed_at};
use monstrum_core::operations::{Caller, InputErrors, OperationError, Operator, narrow};
use monstrum_store::{InsertedTrigger, Page, WorkflowRow, WorkflowTriggerRow};
use monstrum_types::{KeyId, WorkflowId, WorkflowTriggerId};
use serde::Deserialize as _;
use serde_json::json;

use super::Workflows;

/// The maximum number of triggers of a workflow: more than a workflow has kinds of events.
const TRIGGERS_MAX: i64 = 50;
/// The maximum length of a pattern in characters: longer than every type of an event.
const PATTERN_CHARS_MAX: usize = 256;
/// The maximum size of an instruction in bytes, as for subscriptions.
const INSTRUCTION_BYTES_MAX: usize = 8 << 10;
/// The maximum number of groups of events of a trigger, as for the lists of a role.
const SOURCES_MAX: usize = 200;
/// The maximum number of keys that are kept of those that have changed a trigger.
const STARTERS_MAX: usize = 100;

impl Workflows {
    /// Creates a trigger of a workflow.
    ///
    /// # Errors
    ///
    /// The input is invalid, the workflow does not exist or has too many triggers, or the trigger requires an admin.
    pub async fn create_trigger(
        &self,
        caller: &Operator,
        id: WorkflowId,
        new: NewWorkflowTrigger,
    ) -> Result<WorkflowTrigger, OperationError> {
        let (app, now) = (&self.app, self.app.clock.now());
        let workflow = self.row(caller, id).await?;
        let sources = self.checked(caller, &workflow, &new)?;
        let NewWorkflowTrigger { event_pattern, instruction, narrow, enabled, .. } = new;
        let row = WorkflowTriggerRow {
            id: WorkflowTriggerId::new(),
            workspace_id: workflow.workspace_id,
            workflow_id: workflow.id,
            event_pattern,
            instruction,
            sources: json!(sources.iter().map(EventSource::to_string).collect::<Vec<_>>()),
            narrow: narrow.map(|narrow| json!(narrow)),
            enabled,
            starters: json!([caller.key]),
            created_at: now,
            updated_at: now,
        };
        let created = shown(&row)?;
        let insert = async {
            match app.store.insert_workflow_trigger(&row, TRIGGERS_MAX).await? {
                InsertedTrigger::Inserted => Ok(()),
                InsertedTrigger::Full => Err(OperationError::conflict(format!(
                    "the workflow has {TRIGGERS_MAX} triggers, which is the maximum; delete one first"
                ))),
            }
        };
        let recorded = Change::new("workflow_trigger.create", &row.id).of_bot(workflow.bot_id).to(&created);
        recorded.apply(app, caller, insert).await?;
        Ok(created)
    }

    /// Lists the triggers of a workflow, newest first.
    ///
    /// # Errors
    ///
    /// The workflow does not exist.
    pub async fn triggers(
        &self,
        caller: &Operator,
        id: WorkflowId,
        page: &Page<WorkflowTriggerId>,
    ) -> Result<WorkflowTriggerList, OperationError> {
        let workflow = self.row(caller, id).await?;
        let listed = self.app.store.workflow_triggers(caller.workspace, workflow.id, page).await?;
        let items = listed.items.iter().map(shown).collect::<Result<_, _>>()?;
        Ok(List { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Changes whether a trigger is enabled.
    ///
    /// # Errors
    ///
    /// The trigger does not exist, or enabling it requires an admin.
    pub async fn update_trigger(
        &self,
        caller: &Operator,
        (id, trigger): (WorkflowId, WorkflowTriggerId),
        change: WorkflowTriggerChange,
    ) -> Result<WorkflowTrigger, OperationError> {
        let app = &self.app;
        let (workflow, before) = self.trigger(caller, id, trigger).await?;
        let shown_before = shown(&before)?;
        let enabled = change.enabled.unwrap_or(before.enabled);
        if enabled == before.enabled {
            return Ok(shown_before);
        }
        if enabled {
            // To enable a trigger is to grant it again.
            may_take(caller, &workflow, &sources_of(&before)?)?;
        }
        let updated_at = changed_at(app, before.updated_at);
        let row = WorkflowTriggerRow { enabled, starters: starters(&before, caller.key), updated_at, ..before.clone() };
        let changed = shown(&row)?;
        let update = async {
            match app.store.update_workflow_trigger(&row, before.updated_at).await? {
                true => Ok(()),
                false => Err(OperationError::changed_meanwhile()),
            }
        };
        let recorded = Change::new("workflow_trigger.update", &trigger).of_bot(workflow.bot_id);
        recorded.from(&shown_before).to(&changed).apply(app, caller, update).await?;
        Ok(changed)
    }

    /// Deletes a trigger. Runs that it has started go on.
    ///
    /// # Errors
    ///
    /// The trigger does not exist.
    pub async fn delete_trigger(
        &self,
        caller: &Operator,
        id: WorkflowId,
        trigger: WorkflowTriggerId,
    ) -> Result<(), OperationError> {
        let app = &self.app;
        let (workflow, before) = self.trigger(caller, id, trigger).await?;
        let delete = async {
            match app.store.delete_workflow_trigger(caller.workspace, id, trigger, before.updated_at).await? {
                true => Ok(()),
                false => Err(OperationError::changed_meanwhile()),
            }
        };
        let recorded = Change::new("workflow_trigger.delete", &trigger).of_bot(workflow.bot_id);
        recorded.from(&shown(&before)?).apply(app, caller, delete).await
    }

    async fn trigger(
        &self,
        caller: &Caller,
        id: WorkflowId,
        trigger: WorkflowTriggerId,
    ) -> Result<(WorkflowRow, WorkflowTriggerRow), OperationError> {
        let workflow = self.row(caller, id).await?;
        let row = self.app.store.workflow_trigger(caller.workspace, id, trigger).await?;
        Ok((workflow, row.ok_or_else(|| OperationError::not_found("trigger"))?))
    }

    /// Checks a new trigger. Returns whose events it takes.
    fn checked(
        &self,
        caller: &Operator,
        workflow: &WorkflowRow,
        new: &NewWorkflowTrigger,
    ) -> Result<Vec<EventSource>, OperationError> {
        let mut errors = InputErrors::default();
        check_pattern(&mut errors, &new.event_pattern);
        let bytes = new.instruction.len();
        if bytes > INSTRUCTION_BYTES_MAX {
            errors.add("/instruction", format!("must have at most {INSTRUCTION_BYTES_MAX} bytes, but has {bytes}"));
        } else if let Err(error) = Template::parse(&new.instruction) {
            errors.add("/instruction", error.to_string());
        }
        let sources = self.sources(&mut errors, workflow, new.from.as_deref());
        errors.check()?;
        new.narrow.as_ref().map_or(Ok(()), |given| narrow::check("/narrow", given))?;
        may_take(caller, workflow, &sources)?;
        Ok(sources)
    }

    fn sources(&self, errors: &mut InputErrors, workflow: &WorkflowRow, from: Option<&[String]>) -> Vec<EventSource> {
        let Some(words) = from else { return EventSource::DEFAULT.to_vec() };
        if words.is_empty() {
            errors.add("/from", "must not be empty");
        }
        if words.len() > SOURCES_MAX {
            errors.add("/from", format!("must have at most {SOURCES_MAX} items"));
            return Vec::new();
        }
        let policy = self.app.policy.load();
        let mut sources = Vec::new();
        for (index, word) in words.iter().enumerate() {
            match EventSource::from_str(word) {
                Ok(EventSource::Bot(bot)) if policy.bot(workflow.workspace_id, bot).is_none() => {
                    errors.add(format!("/from/{index}"), "no such bot");
                }
                Ok(source) if sources.contains(&source) => errors.add(format!("/from/{index}"), "duplicate item"),
                Ok(source) => sources.push(source),
                Err(error) => errors.add(format!("/from/{index}"), error.to_string()),
            }
        }
        sources
    }
}

fn check_pattern(errors: &mut InputErrors, pattern: &str) {
    if pattern.is_empty() {
        errors.add("/event_pattern", "must not be empty");
    } else if pattern.chars().count() > PATTERN_CHARS_MAX {
        errors.add("/event_pattern", format!("must have at most {PATTERN_CHARS_MAX} characters"));
    } else if pattern.chars().any(char::is_control) {
        errors.add("/event_pattern", "must not contain control characters");
    }
}

/// Checks whether a caller may let a workflow take these events.
fn may_take(caller: &Operator, workflow: &WorkflowRow, sources: &[EventSource]) -> Result<(), OperationError> {
    if sources.iter().any(|source| source.is_wide(workflow.bot_id)) {
        let why = "an admin key is required for a trigger that takes the events of other bots";
        return caller.admin().map_err(|_| OperationError::forbidden(why));
    }
    Ok(())
}

fn sources_of(row: &WorkflowTriggerRow) -> Result<Vec<EventSource>, OperationError> {
    words(row)?.iter().map(|word| EventSource::from_str(word).map_err(OperationError::internal)).collect()
}

fn words(row: &WorkflowTriggerRow) -> Result<Vec<String>, OperationError> {
    Vec::deserialize(&row.sources).map_err(OperationError::internal)
}

/// Returns the keys that have made or changed a trigger, the last one last. They cannot approve steps of its runs that
/// exclude the starter.
fn starters(row: &WorkflowTriggerRow, key: KeyId) -> serde_json::Value {
    let mut starters: Vec<KeyId> = Vec::deserialize(&row.starters).unwrap_or_default();
    starters.retain(|starter| *starter != key);
    starters.push(key);
    let surplus = starters.len().saturating_sub(STARTERS_MAX);
    starters.drain(..surplus);
    json!(starters)
}

/// Returns a trigger as the API shows it.
fn shown(row: &WorkflowTriggerRow) -> Result<WorkflowTrigger, OperationError> {
    let narrow = row.narrow.as_ref().map(monstrum_api::tasks::Narrow::deserialize).transpose();
    Ok(WorkflowTrigger {
        id: row.id,
        workflow_id: row.workflow_id,
        event_pattern: row.event_pattern.clone(),
        instruction: row.instruction.clone(),
        from: words(row)?,
        narrow: narrow.map_err(OperationError::internal)?,
        enabled: row.enabled,
        created_at: row.created_at,
    })
}
