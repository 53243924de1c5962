//! The events that report the ends of runs and the questions about uncertain attempts.

use monstrum_core::events::{self, EventError, EventLinks, EventType, NewEvent};
use monstrum_flow::{RunEnd, StepError};
use monstrum_store::{EventRow, RunStepKey};
use monstrum_types::UtcMillis;
use monstrum_vault::Vault;
use serde_json::{Map, Value, json};

use super::read::ReadRun;
use crate::runs::record::RunContent;

/// The maximum size of the output of a run in its event, in bytes of JSON.
const OUTPUT_BYTES_MAX: usize = 4 << 10;

/// Returns the event that reports the end of a run. A cancelled run has failed, with its own status.
pub(super) fn ended(
    vault: &Vault,
    run: &ReadRun,
    content: &RunContent,
    now: UtcMillis,
) -> Result<EventRow, EventError> {
    let status = content.ending.as_ref().map_or(RunEnd::Failed, |ending| ending.status);
    let event_type = if status == RunEnd::Completed { EventType::WorkflowCompleted } else { EventType::WorkflowFailed };
    let mut data = Map::new();
    data.insert("run_id".to_owned(), json!(run.row.id));
    data.insert("version".to_owned(), json!(run.row.version));
    data.insert("status".to_owned(), json!(status.as_str()));
    if let Some(ending) = &content.ending {
        if let Some(error) = &ending.error {
            data.insert("error".to_owned(), shown(error));
        }
        if status == RunEnd::Completed {
            data.insert("output".to_owned(), cut(ending.output.as_ref().unwrap_or(&Value::Null)));
        }
    }
    events::seal(vault, event(run, event_type, Value::Object(data)), now)
}

/// Returns the event that asks a person what became of an attempt.
pub(super) fn uncertain(
    vault: &Vault,
    run: &ReadRun,
    key: &RunStepKey,
    now: UtcMillis,
) -> Result<EventRow, EventError> {
    let item = Some(&key.item).filter(|item| !item.is_empty());
    let data = json!({
        "approval_id": null,
        "kind": "uncertain",
        "text": format!("the step `{}` may have had its effect; say what became of it", key.step),
        "expires_at": null,
        "run_id": run.row.id,
        "step": key.step,
        "item": item,
    });
    events::seal(vault, event(run, EventType::ApprovalRequested, data), now)
}

fn event(run: &ReadRun, event_type: EventType, data: Value) -> NewEvent {
    NewEvent {
        workspace_id: run.row.workspace_id,
        event_type: event_type.into(),
        source_type: "workflow",
        source_id: run.row.workflow_id.to_string(),
        bot_id: Some(run.row.bot_id),
        links: EventLinks { run_id: Some(run.row.id), ..EventLinks::default() },
        cause: run.content.cause,
        data,
    }
}

fn shown(error: &StepError) -> Value {
    let step = error.at.as_ref().map(|key| key.step.as_str());
    json!({ "step": step, "code": error.code, "message": error.message })
}

/// Returns an output as it is, or the beginning of its JSON text.
fn cut(output: &Value) -> Value {
    let text = output.to_string();
    if text.len() <= OUTPUT_BYTES_MAX {
        return output.clone();
    }
    Value::String(text[..text.floor_char_boundary(OUTPUT_BYTES_MAX)].to_owned())
}

#[cfg(test)]
mod tests {
    use monstrum_flow::StepKey;
    use monstrum_vault::MasterKeys;

    use super::*;
    use crate::runs::record::EndingContent;
    use crate::runs::record::tests::run as run_row;

    fn read() -> ReadRun {
        let content: RunContent = serde_json::from_value(json!({ "input": {} })).unwrap();
        ReadRun { row: run_row(), read: content.clone(), content, steps: Vec::new() }
    }

    fn data(status: RunEnd, error: Option<StepError>, output: Option<Value>) -> (String, Value) {
        let vault = Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap());
        let run = read();
        let ending = EndingContent { status, error, output, undo: false, since: UtcMillis(1) };
        let content = RunContent { ending: Some(ending), has_ended: true, ..run.content.clone() };
        let event = ended(&vault, &run, &content, UtcMillis(1)).unwrap();
        assert_eq!((event.source_type.as_str(), &event.source_id), ("workflow", &run.row.workflow_id.to_string()));
        let mut data = events::open(&vault, &event).unwrap();
        assert_eq!(data["run_id"].take(), json!(run.row.id));
        (event.event_type, data)
    }

    #[test]
    fn the_end_of_a_run_is_reported() {
        let completed = data(RunEnd::Completed, None, Some(json!({ "issue": 7 })));
        let expected = json!({ "run_id": null, "version": 1, "status": "completed", "output": { "issue": 7 } });
        assert_eq!(completed, ("workflow.completed".to_owned(), expected));
        let at = StepKey { step: "send".to_owned(), ..StepKey::default() };
        let error = StepError { at: Some(at), ..StepError::new("denied", "no") };
        let (event_type, data) = data(RunEnd::Cancelled, Some(error), None);
        let expected = json!({
            "run_id": null,
            "version": 1,
            "status": "cancelled",
            "error": { "step": "send", "code": "denied", "message": "no" },
        });
        assert_eq!((event_type.as_str(), data), ("workflow.failed", expected));
    }

    #[test]
    fn a_long_output_is_cut() {
        let (_, data) = data(RunEnd::Completed, None, Some(json!({ "text": "ä".repeat(10_000) })));
        let output = data["output"].as_str().unwrap();
        assert!(output.len() <= OUTPUT_BYTES_MAX && output.starts_with("{\"text\":\"ää"));
    }
}
