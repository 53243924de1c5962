//! The spans of tasks, with the names of OpenTelemetry for generative AI. They have no content.

use monstrum_store::TaskRow;
use tracing::Span;

/// Returns the span of a turn of a task. The spans of its rounds and calls are below it.
pub(crate) fn of_task(row: &TaskRow) -> Span {
    tracing::debug_span!(
        "invoke_agent",
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.id = %row.bot_id,
        task.id = %row.id,
    )
}
