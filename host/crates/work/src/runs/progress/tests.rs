//! Whole runs, whose rows are written and read again after each plan.

use monstrum_flow::{check, plan};
use monstrum_types::{WakeClaimId, WakeKey, WakeKind};
use monstrum_vault::MasterKeys;
use serde_json::json;

use super::super::history::history;
use super::super::record::open_step;
use super::super::record::tests::run as run_row;
use super::*;

/// A run whose rows are kept in memory.
struct Rows {
    vault: Vault,
    definition: Definition,
    run: RunRow,
    content: RunContent,
    steps: Vec<(RunStepRow, StepContent)>,
    now: i64,
}

impl Rows {
    fn of(definition: &str, content: &Value) -> Rows {
        let vault = Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap());
        let definition = check(definition, None).unwrap().definition;
        let content = serde_json::from_value(content.clone()).unwrap();
        Rows { vault, definition, run: run_row(), content, steps: Vec::new(), now: 1_000 }
    }

    fn claim(&self) -> WakeClaim {
        WakeClaim {
            id: WakeClaimId::new(),
            key: WakeKey::new(WakeKind::Run, self.run.id).unwrap(),
            workspace_id: self.run.workspace_id,
            version: 1,
            failures: 0,
        }
    }

    /// Runs one turn: plans, and stores the rows as the database does.
    fn turn(&mut self) -> Progress {
        self.now += 1;
        let commands = plan(&self.definition, &history(&self.run, &self.content, &self.steps).unwrap(), self.now);
        let read = (&self.run, &self.content, self.steps.as_slice());
        let now = UtcMillis(self.now);
        let done = progress(&self.vault, &self.claim(), &self.definition, read, commands, now).unwrap();
        (self.run.status, self.content) = (done.status, done.content.clone());
        for end in &done.ended {
            let (row, content) = self.steps.iter_mut().find(|(row, _)| row.key() == end.key).unwrap();
            row.sealed.clone_from(&end.sealed);
            (row.status, row.ended_at) = (end.status, Some(end.ended_at));
            *content = open_step(&self.vault, row).unwrap();
        }
        for (row, content) in &done.steps {
            let sealed = seal_step(&self.vault, row, content).unwrap();
            let row = RunStepRow { sealed, ..row.clone() };
            let content = open_step(&self.vault, &row).unwrap();
            self.steps.push((row, content));
        }
        for (key, stop) in &done.stopped {
            self.steps.iter_mut().find(|(row, _)| row.key() == *key).unwrap().0.stopping = Some(*stop);
        }
        done
    }

    /// Ends the only call that runs.
    fn end_call(&mut self, status: StepStatus, data: Value) {
        let now = UtcMillis(self.now);
        let open = |(_, content): &&mut (RunStepRow, StepContent)| content.ended_at.is_none() && content.work.is_some();
        let (row, content) = self.steps.iter_mut().find(open).unwrap();
        (content.status, content.data, content.ended_at) = (status, data, Some(now));
        (row.status, row.ended_at) = (column(status), Some(now));
        if status == StepStatus::Failed {
            content.error = Some(StepError::new("plugin", "it failed"));
        }
    }
}

const TWO_STEPS: &str = "\
workflow: release
bot: tester
steps:
  - { id: find, tool: list, params: { repo: \"${{ input.repo }}\" } }
  - id: announce
    tool: send
    params: { count: \"${{ size(steps.find.data) }}\" }
output: { sent: \"${{ steps.announce.data.id }}\" }
";

#[test]
fn a_run_calls_its_tools_in_order() {
    let mut rows = Rows::of(TWO_STEPS, &json!({ "input": { "repo": "acme/web" } }));
    let first = rows.turn();
    let work = |params: Value, tool: &str| Work::Tool { tool: tool.to_owned(), resource: None, params };
    assert_eq!(first.started[0].work, work(json!({ "repo": "acme/web" }), "list"));
    assert_eq!((first.status, first.steps.len(), first.steps[0].0.kind.as_str()), (RunStatus::Running, 1, "tool"));
    assert!(first.steps[0].0.request_id.is_some() && first.next.is_some(), "the run has a time-out");
    let again = rows.turn();
    assert!(again.started.is_empty() && again.steps.is_empty(), "a stored plan starts nothing twice");
    rows.end_call(StepStatus::Succeeded, json!([1, 2, 3]));
    let second = rows.turn();
    assert_eq!(second.started[0].work, work(json!({ "count": 3 }), "send"));
    rows.end_call(StepStatus::Succeeded, json!({ "id": 7 }));
    rows.turn();
    let ending = rows.content.ending.clone().unwrap();
    assert_eq!((ending.status, ending.output), (RunEnd::Completed, Some(json!({ "sent": 7 }))));
    assert!(rows.content.has_ended || rows.turn().content.has_ended);
    assert_eq!(rows.run.status, RunStatus::Completed);
}

#[test]
fn a_failed_step_undoes_what_succeeded() {
    let definition = "\
workflow: release
bot: tester
steps:
  - { id: first, tool: send, undo: { tool: recall, params: { id: \"${{ steps.first.data.id }}\" } } }
  - { id: second, tool: fail }
";
    let mut rows = Rows::of(definition, &json!({ "input": {} }));
    rows.turn();
    rows.end_call(StepStatus::Succeeded, json!({ "id": 7 }));
    rows.turn();
    rows.end_call(StepStatus::Failed, Value::Null);
    let mut undo = rows.turn();
    while undo.started.is_empty() {
        assert!(!rows.content.has_ended, "nothing was undone");
        undo = rows.turn();
    }
    let recall = Work::Tool { tool: "recall".to_owned(), resource: None, params: json!({ "id": 7 }) };
    assert_eq!((undo.started[0].key.phase, &undo.started[0].work), (RunStepPhase::Undo, &recall));
    assert_eq!(rows.run.status, RunStatus::Undoing);
    rows.end_call(StepStatus::Succeeded, Value::Null);
    for _ in 0..3 {
        if !rows.content.has_ended {
            rows.turn();
        }
    }
    assert_eq!(rows.run.status, RunStatus::Failed);
    let error = rows.content.ending.unwrap().error.unwrap();
    assert_eq!(error.code, "plugin");
}

#[test]
fn a_paused_run_starts_nothing() {
    let mut rows = Rows::of(TWO_STEPS, &json!({ "input": { "repo": "acme/web" }, "asked": "pause" }));
    let paused = rows.turn();
    assert!(paused.started.is_empty());
    assert_eq!(paused.status, RunStatus::Paused);
    rows.content.asked = None;
    assert_eq!(rows.turn().started.len(), 1);
}

#[test]
fn a_cancelled_run_stops_its_call() {
    let mut rows = Rows::of(TWO_STEPS, &json!({ "input": { "repo": "acme/web" } }));
    rows.turn();
    rows.content.asked = Some("cancel".to_owned());
    let mut stopped = rows.turn().stopped;
    if stopped.is_empty() {
        stopped = rows.turn().stopped;
    }
    assert_eq!(stopped.len(), 1);
    assert_eq!(stopped[0].1, RunStepStop::Cancel);
    rows.end_call(StepStatus::Cancelled, Value::Null);
    for _ in 0..3 {
        if !rows.content.has_ended {
            rows.turn();
        }
    }
    assert_eq!(rows.run.status, RunStatus::Cancelled);
}

const AWAITS: &str = "\
workflow: release
bot: tester
steps:
  - { id: pause, wait: { for: 10s } }
  - { id: ask, agent: { instruction: hello } }
";

#[test]
fn a_run_waits_while_no_call_of_its_own_runs() {
    let mut rows = Rows::of(AWAITS, &json!({ "input": {} }));
    let first = rows.turn();
    assert_eq!((first.status, first.steps[0].1.wait.clone()), (RunStatus::Waiting, Some(WaitContent::Time)));
    rows.now += 10_000;
    let second = rows.turn();
    assert_eq!(second.ended[0].status, RunStepStatus::Succeeded, "the time has come");
    assert!(matches!(second.started[0].work, Work::Agent { .. }));
    assert_eq!(second.status, RunStatus::Waiting, "a task runs by itself");
}

/// A call that does not stop in time is given up. It may have its effect.
#[test]
fn a_call_that_does_not_stop_is_uncertain() {
    let mut rows = Rows::of(TWO_STEPS, &json!({ "input": { "repo": "acme/web" } }));
    rows.turn();
    rows.content.asked = Some("cancel".to_owned());
    rows.turn();
    rows.now += 2 * 3_600_000;
    rows.turn();
    let (row, content) = &rows.steps[0];
    assert_eq!((row.status, content.may_have_happened, &content.effect), (RunStepStatus::Uncertain, true, &None));
    for _ in 0..3 {
        if !rows.content.has_ended {
            rows.turn();
        }
    }
    let key = StepKey { step: "find".to_owned(), ..StepKey::default() };
    assert_eq!(rows.content.uncertain, [key]);
}

#[test]
fn an_attempt_that_cannot_begin_has_failed() {
    let mut rows = Rows::of(TWO_STEPS, &json!({ "input": { "repo": "acme/web" } }));
    let mut step = rows.turn().steps.remove(0);
    fail(&mut step, StepError::new("busy", "there are too many tasks"), UtcMillis(5));
    let (row, content) = step;
    assert_eq!(
        (row.status, row.code.as_deref(), row.ended_at),
        (RunStepStatus::Failed, Some("busy"), Some(UtcMillis(5)))
    );
    assert!(!content.may_have_happened && content.effect.as_deref() == Some("read"));
}

const REPEATED: &str = "\
workflow: release
bot: tester
steps:
  - { id: send, tool: send, params: { to: \"${{ input.to }}\" }, on_uncertain: ask }
";

/// The expression of the step fails in the repetition, and no longer in the one after it.
#[test]
fn a_repetition_that_could_not_begin_is_asked_about_and_repeated_under_the_id_of_the_call() {
    let mut rows = Rows::of(REPEATED, &json!({ "input": { "to": "acme" } }));
    rows.turn();
    rows.end_call(StepStatus::Uncertain, Value::Null);
    assert_eq!(rows.turn().asked, [rows.steps[0].0.key()]);
    rows.steps[0].1.repeat = true;
    rows.content.input = json!({});
    let done = rows.turn();
    let (row, content) = &rows.steps[1];
    assert_eq!((row.status, row.code.as_deref()), (RunStepStatus::Uncertain, Some("expression")));
    assert!(content.asked && content.may_have_happened && content.effect.is_none(), "{content:?}");
    assert_eq!(done.asked, [row.key()]);
    assert!(rows.turn().asked.is_empty(), "a person is asked once");
    rows.steps[1].1.repeat = true;
    rows.content.input = json!({ "to": "acme" });
    assert_eq!(rows.turn().started.len(), 1);
    let ids: Vec<Option<RequestId>> = rows.steps.iter().map(|(row, _)| row.request_id).collect();
    assert!(ids.len() == 3 && ids[0].is_some() && ids[1].is_none() && ids[2] == ids[0], "{ids:?}");
}
