//! Tasks and their steps as the API shows them.

use monstrum_api::tasks::{Task, TaskStep, TokenUsage};
use monstrum_core::operations::OperationError;
use monstrum_store::{TaskRow, TaskStepRow};
use monstrum_types::{JsonText, Labels, with_causes};

use crate::journal::{self, StepContent, TaskContent};
use crate::tasks::{Tasks, internal};

/// The maximum size of an instruction and of a result in a list, in bytes.
const LISTED_BYTES_MAX: usize = 4 << 10;

impl Tasks {
    /// Returns a task as the API shows it. A task whose record cannot be opened, because another program has edited its
    /// row, is shown without its content, so that it does not hide other tasks.
    pub(crate) fn view(&self, row: &TaskRow) -> Task {
        match journal::open_task(&self.app.vault, row) {
            Ok(content) => self.shown(row, content),
            Err(error) => {
                tracing::error!(error = %with_causes(&error), task.id = %row.id, "a task cannot be opened");
                let message = Some("the record of the task cannot be opened".to_owned());
                task(row, (String::new(), None, message), Labels::all())
            }
        }
    }

    pub(crate) fn shown(&self, row: &TaskRow, content: TaskContent) -> Task {
        Task { waiting_for: self.waiting_for(row.workspace_id, row.waiting_for.as_deref()), ..shown(row, content) }
    }

    pub(crate) fn step(&self, row: &TaskStepRow) -> Result<TaskStep, OperationError> {
        let content = journal::open_step(&self.app.vault, row).map_err(internal)?;
        let mut step = TaskStep {
            sequence: row.sequence,
            kind: row.kind.as_str().to_owned(),
            request_id: row.request_id,
            tool: row.tool.clone(),
            params: None,
            status: row.status.clone(),
            code: None,
            message: None,
            result: None,
            text: None,
            model: None,
            usage: None,
            labels: Vec::new(),
            started_at: row.started_at,
            ended_at: row.ended_at,
        };
        match content {
            StepContent::Round(round) => {
                step.labels = round.labels.names();
                step.text = Some(round.message.text);
                (step.model, step.usage) = (Some(round.model), Some(round.usage));
            }
            StepContent::Call(call) => {
                step.params = Some((&call.params).into());
                if let Some(outcome) = call.outcome {
                    step.code = outcome.code.map(|code| code.as_str().to_owned());
                    step.message = outcome.message;
                    step.labels = outcome.labels.names();
                    let result = outcome.data.as_deref().map(JsonText::parse).transpose();
                    step.result = result.map_err(|error| OperationError::Internal(error.into()))?;
                }
            }
        }
        Ok(step)
    }
}

/// Returns a task as the API shows it, without what it waits for.
pub(crate) fn shown(row: &TaskRow, content: TaskContent) -> Task {
    let narrow = content.narrow().cloned();
    let TaskContent { instruction, result, message, labels, .. } = content;
    Task { narrow, ..task(row, (instruction, result, message), labels) }
}

fn task(
    row: &TaskRow,
    (instruction, result, message): (String, Option<String>, Option<String>),
    labels: Labels,
) -> Task {
    let tokens = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
    Task {
        id: row.id,
        bot_id: row.bot_id,
        session_id: row.session_id,
        parent_task_id: row.parent_id,
        status: row.status.as_str().to_owned(),
        code: row.code.clone(),
        waiting_for: None,
        message,
        instruction,
        result,
        narrow: None,
        steps: row.steps,
        usage: TokenUsage { input_tokens: tokens(row.input_tokens), output_tokens: tokens(row.output_tokens) },
        labels: labels.with(&row.labels).names(),
        started_by: row.key_id,
        created_at: row.created_at,
        started_at: row.started_at,
        ended_at: row.ended_at,
    }
}

/// Cuts the texts of a task that stands in a list.
pub(crate) fn as_listed(mut task: Task) -> Task {
    for text in [Some(&mut task.instruction), task.result.as_mut()].into_iter().flatten() {
        text.truncate(text.floor_char_boundary(LISTED_BYTES_MAX));
        text.shrink_to_fit();
    }
    task
}
