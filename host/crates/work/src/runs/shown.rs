//! Runs and their steps as the API shows them. What they contain is shown as it is stored, without secrets.

use monstrum_api::runs::{Run, RunError, RunStartedBy, RunStep, RunStepError, RunWait, StepOfRun};
use monstrum_core::operations::OperationError;
use monstrum_flow::{RunEnd, StepError, StepKey, StepStatus};
use monstrum_store::{RunRow, RunStatus, RunStepPhase, RunStepRow, RunStepStatus};
use monstrum_types::{Labels, with_causes};
use serde_json::{Value, json};

use super::operations::Runs;
use super::record::{InstructionContent, RunContent, StepContent, WaitContent, WorkContent, open_run, open_step};

/// The maximum number of waits of a run that are shown. A record can have a MiB.
pub(super) const WAITS_SHOWN: u32 = 20;
/// The maximum size of an input and of an output in a list, in bytes of JSON.
const LISTED_BYTES_MAX: usize = 4 << 10;
/// The code of a run or an attempt whose record cannot be opened.
const UNREADABLE: &str = "record";

impl Runs {
    /// Returns a run as the API shows it. A run whose record cannot be opened, because another program has edited its row, is
    /// shown without its content, so that it does not hide other runs.
    pub(super) async fn view(&self, row: &RunRow) -> Result<Run, OperationError> {
        let content = match open_run(&self.app.vault, row) {
            Ok(content) => content,
            Err(error) => {
                tracing::error!(error = %with_causes(&error), run.id = %row.id, "a run cannot be opened");
                let message = "the record of the run cannot be opened".to_owned();
                let error = RunError { step: None, item: None, code: UNREADABLE.to_owned(), message };
                return Ok(Run { error: Some(error), ..bare(row, Labels::all()) });
            }
        };
        let waits = !content.has_ended && row.status != RunStatus::Queued;
        let waiting_for = if waits { self.waits(row).await? } else { Vec::new() };
        Ok(Run { waiting_for, ..shown(row, content) })
    }

    /// Returns what the steps of a run wait for.
    pub(super) async fn waits(&self, run: &RunRow) -> Result<Vec<RunWait>, OperationError> {
        let store = &self.app.store;
        let rows = store.waiting_run_steps(run.workspace_id, run.id, run.attempt, WAITS_SHOWN).await?;
        Ok(rows.iter().filter_map(|row| wait(row, &self.open(row)?)).collect())
    }

    /// Returns an attempt as the API shows it.
    pub(super) fn step(&self, row: &RunStepRow) -> RunStep {
        match self.open(row) {
            Some(content) => step(row, content),
            None => {
                let message = "the record of the step cannot be opened".to_owned();
                let error = RunStepError { code: UNREADABLE.to_owned(), message, at: None };
                RunStep { error: Some(error), ..bare_step(row) }
            }
        }
    }

    fn open(&self, row: &RunStepRow) -> Option<StepContent> {
        let opened = open_step(&self.app.vault, row);
        if let Err(error) = &opened {
            let error = with_causes(error);
            tracing::error!(%error, run.id = %row.run_id, step.name = %row.step, "a step of a run cannot be opened");
        }
        opened.ok()
    }
}

/// Returns a run with its content, without what it waits for.
pub(super) fn shown(row: &RunRow, content: RunContent) -> Run {
    let RunContent { input, ending, has_ended, uncertain, undo_failed, labels, started_at, .. } = content;
    let mut run = Run {
        input: Some(input),
        uncertain: uncertain.into_iter().map(named).collect(),
        undo_failed: undo_failed.into_iter().map(named).collect(),
        started_at,
        ..bare(row, labels)
    };
    if let Some(ending) = ending {
        run.error = ending.error.map(run_error);
        if has_ended {
            run.output = ending.output.filter(|_| ending.status == RunEnd::Completed);
            ending.status.as_str().clone_into(&mut run.status);
        }
    }
    run
}

/// Leaves large values out of a run that stands in a list.
pub(super) fn as_listed(mut run: Run) -> Run {
    for value in [&mut run.input, &mut run.output] {
        if value.as_ref().is_some_and(|value| value.to_string().len() > LISTED_BYTES_MAX) {
            *value = None;
        }
    }
    run
}

/// Returns a run without its content.
fn bare(row: &RunRow, labels: Labels) -> Run {
    Run {
        id: row.id,
        workflow_id: row.workflow_id,
        workflow: row.workflow.clone(),
        version: row.version,
        bot_id: row.bot_id,
        status: row.status.as_str().to_owned(),
        attempt: row.attempt,
        input: None,
        output: None,
        error: None,
        labels: labels.with(&row.labels).names(),
        started_by: RunStartedBy { kind: row.started_by_kind.as_str().to_owned(), id: row.started_by_id.clone() },
        event_id: row.event_id,
        parent_run_id: row.parent_run_id,
        waiting_for: Vec::new(),
        uncertain: Vec::new(),
        undo_failed: Vec::new(),
        created_at: row.created_at,
        started_at: row.started_at,
        ended_at: row.ended_at,
    }
}

fn run_error(error: StepError) -> RunError {
    let StepError { code, message, at } = error;
    let (step, item) = at.map_or((None, None), |at| {
        let StepOfRun { step, item } = named(at);
        (Some(step), item)
    });
    RunError { step, item, code, message }
}

fn named(key: StepKey) -> StepOfRun {
    StepOfRun { step: key.step, item: item(&key.item) }
}

/// Returns the item of a step, unless it is outside of `each`.
fn item(item: &str) -> Option<String> {
    (!item.is_empty()).then(|| item.to_owned())
}

fn step(row: &RunStepRow, content: StepContent) -> RunStep {
    let has_data = matches!(content.status, StepStatus::Succeeded | StepStatus::Undone);
    let (tool, params) = given(&content);
    RunStep {
        status: content.status.as_str().to_owned(),
        tool,
        params,
        data: has_data.then_some(content.data),
        error: content.error.map(|StepError { code, message, at }| RunStepError { code, message, at: at.map(named) }),
        task_id: content.task_id.or(row.task_id),
        run_id: content.child_run_id.or(row.child_run_id),
        approval_id: content.approval_id.or(row.approval_id),
        ..bare_step(row)
    }
}

/// Returns an attempt without its content.
fn bare_step(row: &RunStepRow) -> RunStep {
    RunStep {
        step: row.step.clone(),
        item: item(&row.item),
        undo: row.phase == RunStepPhase::Undo,
        attempt: row.attempt,
        run_attempt: row.run_attempt,
        kind: row.kind.clone(),
        status: row.status.as_str().to_owned(),
        request_id: row.request_id,
        task_id: row.task_id,
        run_id: row.child_run_id,
        approval_id: row.approval_id,
        tool: None,
        params: Value::Null,
        data: None,
        error: None,
        started_at: row.started_at,
        ended_at: row.ended_at,
    }
}

/// Returns the tool of an attempt, and what the attempt was given.
fn given(content: &StepContent) -> (Option<String>, Value) {
    let params = match (&content.work, &content.wait) {
        (Some(WorkContent::Tool { tool, params, .. }), _) => return (Some(tool.clone()), params.clone()),
        (Some(WorkContent::Agent { instruction, params, .. }), _) => {
            let text: String = instruction.iter().map(text_of).collect();
            json!({ "instruction": text, "params": params })
        }
        (Some(WorkContent::Workflow { workflow, input }), _) => json!({ "workflow": workflow, "input": input }),
        (Some(WorkContent::Emit { name, data }), _) => json!({ "event": name, "data": data }),
        (None, Some(WaitContent::Time)) => json!({ "until": content.wait_until }),
        (None, Some(WaitContent::Event { event_type, matches, .. })) => {
            let fields = matches.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            json!({ "event": event_type, "match": Value::Object(fields) })
        }
        (None, Some(WaitContent::Approval { text, targets, by, .. })) => {
            let steps: Vec<&str> = targets.iter().map(|target| target.step.as_str()).collect();
            json!({ "text": text, "for": steps, "by": by })
        }
        (None, None) => Value::Null,
    };
    (None, params)
}

fn text_of(part: &InstructionContent) -> &str {
    match part {
        InstructionContent::Text(text) | InstructionContent::Value(text) => text,
    }
}

/// Returns what an attempt waits for, if it waits for something.
fn wait(row: &RunStepRow, content: &StepContent) -> Option<RunWait> {
    let waits = |kind: &str, id: Option<String>| {
        Some(RunWait {
            step: row.step.clone(),
            item: item(&row.item),
            kind: kind.to_owned(),
            until: content.wait_until.filter(|_| content.status.is_active()),
            id,
        })
    };
    let approval = content.approval_id.or(row.approval_id).map(|id| id.to_string());
    match (content.status, &content.wait) {
        (StepStatus::Uncertain, _) if !content.repeat => waits("resolve", None),
        (StepStatus::Waiting, Some(WaitContent::Time)) => waits("timer", None),
        (StepStatus::Waiting, Some(WaitContent::Event { event_type, .. })) => waits("event", Some(event_type.clone())),
        (StepStatus::Waiting, Some(WaitContent::Approval { .. })) => waits("approval", approval),
        (StepStatus::Waiting, None) => waits("gate", approval),
        (StepStatus::Running, _) => {
            match (content.task_id.or(row.task_id), content.child_run_id.or(row.child_run_id)) {
                (Some(task), _) => waits("task", Some(task.to_string())),
                (None, Some(run)) => waits("run", Some(run.to_string())),
                (None, None) if row.status == RunStepStatus::Waiting => waits("gate", approval),
                (None, None) => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use monstrum_types::{ApprovalId, TaskId, UtcMillis};

    use super::super::record::tests::{run, step as row};
    use super::*;

    fn content(value: Value) -> StepContent {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_run_shows_its_record_and_not_its_columns() {
        let row = RunRow { status: RunStatus::Failed, ..run() };
        let value = json!({
            "input": { "a": 1 }, "has_ended": true, "starters": [], "labels": ["x"],
            "ending": {
                "status": "completed", "output": { "b": 2 }, "undo": false, "since": UtcMillis(5),
            },
        });
        let run = shown(&row, serde_json::from_value(value).unwrap());
        assert_eq!((run.status.as_str(), &run.error), ("completed", &None));
        assert_eq!((run.input, run.output), (Some(json!({ "a": 1 })), Some(json!({ "b": 2 }))));
    }

    #[test]
    fn a_failed_run_names_the_step_and_has_no_output() {
        let value = json!({
            "input": {}, "has_ended": true, "starters": [],
            "ending": {
                "status": "failed", "output": 1, "undo": true, "since": UtcMillis(5),
                "error": { "code": "timeout", "message": "m", "at": { "step": "a", "item": "3", "undo": false } },
            },
            "uncertain": [{ "step": "b", "item": "", "undo": false }],
        });
        let run = shown(&run(), serde_json::from_value(value).unwrap());
        assert_eq!(run.output, None);
        let error = serde_json::to_value(&run.error).unwrap();
        assert_eq!(error, json!({ "step": "a", "item": "3", "code": "timeout", "message": "m" }));
        assert_eq!(serde_json::to_value(&run.uncertain).unwrap(), json!([{ "step": "b" }]));
    }

    #[test]
    fn a_list_leaves_large_values_out() {
        let value = json!({ "input": "x".repeat(LISTED_BYTES_MAX), "starters": [] });
        assert_eq!(as_listed(shown(&run(), serde_json::from_value(value).unwrap())).input, None);
        let value = json!({ "input": "x", "starters": [] });
        assert!(as_listed(shown(&run(), serde_json::from_value(value).unwrap())).input.is_some());
    }

    #[test]
    fn every_wait_has_its_kind() {
        let row = row(&run());
        let kind = |content: Value| {
            let wait = wait(&row, &self::content(content));
            wait.map(|wait| (wait.kind, wait.until.is_some(), wait.id))
        };
        let (approval, task) = (ApprovalId::new(), TaskId::new());
        let event = json!({ "event": { "event_type": "custom.x", "matches": [], "since": UtcMillis(0) } });
        let asked = json!({ "approval": { "text": "t", "targets": [], "by": [], "allow_starter": true } });
        let named = |kind: &str, until, id: Option<String>| Some((kind.to_owned(), until, id));
        for (content, expected) in [
            (json!({ "status": "waiting", "wait": "time", "wait_until": UtcMillis(5) }), named("timer", true, None)),
            (json!({ "status": "waiting", "wait": event }), named("event", false, Some("custom.x".to_owned()))),
            (
                json!({ "status": "waiting", "wait": asked, "approval_id": approval }),
                named("approval", false, Some(approval.to_string())),
            ),
            (json!({ "status": "waiting", "approval_id": approval }), named("gate", false, Some(approval.to_string()))),
            (json!({ "status": "running", "task_id": task }), named("task", false, Some(task.to_string()))),
            (json!({ "status": "uncertain" }), named("resolve", false, None)),
            (json!({ "status": "uncertain", "repeat": true }), None),
            (json!({ "status": "running" }), None),
            (json!({ "status": "succeeded", "wait": "time", "wait_until": UtcMillis(5) }), None),
        ] {
            assert_eq!(kind(content.clone()), expected, "{content}");
        }
    }

    #[test]
    fn a_step_shows_what_it_was_given() {
        let row = row(&run());
        let tool = json!({ "tool": { "tool": "send", "params": { "text": "hi" } } });
        let sent = step(&row, content(json!({ "status": "succeeded", "work": tool, "data": { "id": 7 } })));
        assert_eq!((sent.tool.as_deref(), &sent.params), (Some("send"), &json!({ "text": "hi" })));
        assert_eq!((sent.data, sent.undo, sent.item.as_deref()), (Some(json!({ "id": 7 })), false, Some("3")));
        let instruction = json!([{ "text": "Look at " }, { "value": "x" }]);
        let agent = json!({ "agent": { "instruction": instruction, "params": { "a": 1 } } });
        let failed = step(
            &row,
            content(json!({
                "status": "failed", "work": agent, "data": { "id": 7 },
                "error": { "code": "timeout", "message": "m", "at": null },
            })),
        );
        assert_eq!(failed.params, json!({ "instruction": "Look at x", "params": { "a": 1 } }));
        assert_eq!((failed.data, failed.error.map(|error| error.code)), (None, Some("timeout".to_owned())));
        let waits = step(&row, content(json!({ "status": "waiting", "wait": "time", "wait_until": UtcMillis(5) })));
        assert_eq!(waits.params, json!({ "until": UtcMillis(5) }));
    }
}
