//! Reads the rows of a run as the history from which the crate flow plans what comes next.
//!
//! Only the sealed records count. Columns that another program could change select rows; one that says that an attempt has
//! succeeded, that a wait is over or that a call may be repeated has no effect here.

use std::sync::Arc;

use monstrum_flow::{Block, Cancellation, Effect, Ending, History, RunState, StepKey, StepRow};
use monstrum_store::{RunRow, RunStepPhase, RunStepRow};
use serde_json::{Value, json};

use super::record::{BlockContent, EndingContent, RunContent, StepContent};

/// The rows of a run do not have the form in which this host writes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("the number of an attempt is out of range")]
    Attempt,
    #[error("the run asks for an unknown change")]
    Asked,
    #[error("an attempt has an unknown effect")]
    Effect,
}

/// Returns the history of a run.
///
/// # Errors
///
/// A row or a record is not in the form in which this host writes it.
pub fn history(
    run: &RunRow,
    content: &RunContent,
    steps: &[(RunStepRow, StepContent)],
) -> Result<History, HistoryError> {
    let rows = steps.iter().map(|(row, content)| step(row, content)).collect::<Result<_, _>>()?;
    Ok(History { run: state(run, content)?, rows })
}

fn state(run: &RunRow, content: &RunContent) -> Result<RunState, HistoryError> {
    let (paused, cancel) = match content.asked.as_deref() {
        None => (false, None),
        Some("pause") => (true, None),
        Some("cancel") => (false, Some(Cancellation { undo: false })),
        Some("cancel_and_undo") => (false, Some(Cancellation { undo: true })),
        Some(_) => return Err(HistoryError::Asked),
    };
    Ok(RunState {
        id: run.id.to_string(),
        attempt: number(run.attempt)?,
        input: Arc::new(content.input.clone()),
        started_at: content.started_at.unwrap_or(run.created_at).0,
        started_by: json!({ "kind": run.started_by_kind.as_str(), "id": run.started_by_id }),
        trigger: content.trigger.clone(),
        schedule: content.schedule.clone(),
        paused,
        cancel,
        ending: content.ending.clone().map(ending),
    })
}

fn ending(content: EndingContent) -> Ending {
    let EndingContent { status, error, output, undo, since } = content;
    Ending { status, error, output, undo, since: since.0 }
}

fn step(row: &RunStepRow, content: &StepContent) -> Result<StepRow, HistoryError> {
    let undo = row.phase == RunStepPhase::Undo;
    Ok(StepRow {
        key: StepKey { step: row.step.clone(), item: row.item.clone(), undo },
        run_attempt: number(row.run_attempt)?,
        attempt: number(row.attempt)?,
        status: content.status,
        data_bytes: bytes(row, content),
        data: Arc::new(content.data.clone()),
        block: content.block.clone().map(block),
        error: content.error.clone(),
        effect: effect(content.effect.as_deref().or(row.effect.as_deref()))?,
        may_have_happened: content.may_have_happened,
        refused: content.refused,
        cancelling: row.stopping.is_some(),
        asked: content.asked,
        repeat: content.repeat,
        started_at: row.started_at.0,
        ended_at: content.ended_at.map(|at| at.0),
        until: content.wait_until.map(|at| at.0),
    })
}

/// Returns what an attempt counts against the size of its run. Each turn reads the whole record, so what the attempt was given
/// and the items of a list count as well as its result.
fn bytes(row: &RunStepRow, content: &StepContent) -> u64 {
    let data = if content.data.is_null() { 0 } else { content.data.to_string().len() };
    data.max(row.sealed.len()).try_into().unwrap_or(u64::MAX)
}

fn block(content: BlockContent) -> Block {
    match content {
        BlockContent::Choose(branch) => Block::Choose(branch),
        BlockContent::Parallel => Block::Parallel,
        BlockContent::Each(items) => Block::Each(Arc::<Vec<Value>>::new(items)),
    }
}

/// Returns the effect that a word names. Without a word, nothing is known, and the gravest counts.
fn effect(word: Option<&str>) -> Result<Effect, HistoryError> {
    match word {
        None | Some("write") => Ok(Effect::Write),
        Some("idempotent") => Ok(Effect::Idempotent),
        Some("read") => Ok(Effect::Read),
        Some(_) => Err(HistoryError::Effect),
    }
}

fn number(attempt: i64) -> Result<u32, HistoryError> {
    u32::try_from(attempt).ok().filter(|number| *number > 0).ok_or(HistoryError::Attempt)
}

#[cfg(test)]
mod tests {
    use monstrum_flow::{Command, RunEnd, StepStatus, Work, check, plan};
    use monstrum_store::{RunRequest, RunStepStatus};
    use monstrum_types::UtcMillis;

    use super::super::record::tests::{run, step as row};
    use super::*;

    const DEFINITION: &str = "\
workflow: release
bot: tester
steps:
  - { id: announce, tool: send, params: { text: \"${{ input.text }}\" } }
";

    fn content(asked: Option<&str>) -> RunContent {
        let asked = asked.map(str::to_owned);
        let value = json!({ "input": { "text": "hi" }, "asked": asked });
        serde_json::from_value(value).unwrap()
    }

    fn commands(steps: &[(RunStepRow, StepContent)], content: &RunContent) -> Vec<Command> {
        let definition = check(DEFINITION, None).unwrap().definition;
        plan(&definition, &history(&run(), content, steps).unwrap(), 2)
    }

    fn first(content: StepContent) -> Vec<(RunStepRow, StepContent)> {
        let row = RunStepRow { item: String::new(), attempt: 1, ..row(&run()) };
        vec![(row, content)]
    }

    #[test]
    fn a_new_run_starts_its_first_step() {
        let planned = commands(&[], &content(None));
        let params = planned.iter().find_map(|command| match command {
            Command::Start { work: Work::Tool { params, .. }, .. } => Some(params),
            _ => None,
        });
        assert_eq!(params, Some(&json!({ "text": "hi" })), "{planned:?}");
        assert!(!commands(&[], &content(Some("pause"))).iter().any(|command| matches!(command, Command::Start { .. })));
    }

    /// Another program marks an attempt as succeeded, or a run as cancelled: the sealed records say otherwise.
    #[test]
    fn columns_decide_nothing() {
        let running = StepContent { status: StepStatus::Running, ..StepContent::default() };
        let mut steps = first(running);
        steps[0].0.status = RunStepStatus::Succeeded;
        steps[0].0.ended_at = Some(UtcMillis(2));
        let ends = |planned: &[Command]| planned.iter().any(|command| matches!(command, Command::EndRun { .. }));
        assert!(!ends(&commands(&steps, &content(None))));
        let (mut edited, content) = (run(), content(None));
        edited.asked = Some(RunRequest::CancelAndUndo);
        assert_eq!(history(&edited, &content, &steps).unwrap().run.cancel, None);
        let done = first(StepContent {
            status: StepStatus::Succeeded,
            ended_at: Some(UtcMillis(2)),
            ..StepContent::default()
        });
        let planned = commands(&done, &content);
        assert!(
            planned.iter().any(|command| matches!(command, Command::EndRun { status: RunEnd::Completed, .. })),
            "{planned:?}"
        );
    }

    /// A call that has no result, but large parameters.
    #[test]
    fn records_count_with_all_that_they_contain() {
        let counted = |sealed: &str, data: Value| {
            let row = RunStepRow { sealed: sealed.to_owned(), ..row(&run()) };
            step(&row, &StepContent { data, ..StepContent::default() }).unwrap().data_bytes
        };
        assert_eq!(counted(&"x".repeat(300_000), Value::Null), 300_000);
        assert_eq!(counted("xx", json!("large")), 7);
        assert_eq!(counted("", Value::Null), 0);
        let given = StepContent { status: StepStatus::Running, ..StepContent::default() };
        let mut steps = first(given);
        steps[0].0.sealed = "x".repeat(16 << 20);
        let ends = |planned: &[Command]| {
            planned.iter().any(|command| {
                let Command::BeginEnding(ending) = command else { return false };
                ending.error.as_ref().is_some_and(|error| error.code == "limit")
            })
        };
        assert!(!ends(&commands(&steps, &content(None))));
        steps[0].0.sealed.push('x');
        assert!(ends(&commands(&steps, &content(None))));
    }

    #[test]
    fn the_effect_of_an_attempt_is_grave_unless_it_is_known() {
        for (words, expected) in [
            ((None, None), Ok(Effect::Write)),
            ((None, Some("read")), Ok(Effect::Read)),
            ((Some("write"), Some("read")), Ok(Effect::Write)),
            ((Some("idempotent"), None), Ok(Effect::Idempotent)),
            ((None, Some("none")), Err(HistoryError::Effect)),
        ] {
            let (of_calls, of_tool): (Option<&str>, Option<&str>) = words;
            let content = StepContent { effect: of_calls.map(str::to_owned), ..StepContent::default() };
            let row = RunStepRow { effect: of_tool.map(str::to_owned), ..row(&run()) };
            assert_eq!(step(&row, &content).map(|row| row.effect), expected, "{words:?}");
        }
        let numbered = RunStepRow { attempt: 0, ..row(&run()) };
        assert_eq!(step(&numbered, &StepContent::default()), Err(HistoryError::Attempt));
        let unknown = content(Some("stop"));
        assert_eq!(history(&run(), &unknown, &[]), Err(HistoryError::Asked));
    }
}
