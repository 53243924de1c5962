//! What people ask of a run: to pause, to go on, to end, or to begin again.

use monstrum_api::runs::Run;
use monstrum_core::operations::change::Change;
use monstrum_core::operations::{Caller, OperationError, Operator};
use monstrum_flow::{RunEnd, StepKey};
use monstrum_store::{NewWake, RetriedRun, RunRequest, RunRow};
use monstrum_types::RunId;
use serde_json::json;

use super::keys;
use super::operations::{ATTEMPTS_MAX, Runs, full, internal};
use super::record::{RunContent, seal_run};
use super::start::RUNS_MAX;

/// What a person asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Pause,
    Resume,
    Cancel { undo: bool },
    Retry,
}

impl Runs {
    /// Pauses a run: what runs ends, and nothing new starts.
    ///
    /// # Errors
    ///
    /// The run does not exist, has ended or is ending.
    pub async fn pause(&self, caller: &Operator, id: RunId) -> Result<Run, OperationError> {
        self.ask(caller, id, Asked::Pause).await
    }

    /// Lets a paused run go on.
    ///
    /// # Errors
    ///
    /// The run does not exist, or is not paused.
    pub async fn resume(&self, caller: &Operator, id: RunId) -> Result<Run, OperationError> {
        self.check_verified(caller)?;
        self.ask(caller, id, Asked::Resume).await
    }

    /// Cancels a run: stops its steps, undoes them if that is asked, and runs `finally`.
    ///
    /// # Errors
    ///
    /// The run does not exist or has ended, or the caller may not see it.
    pub async fn cancel(&self, caller: &Caller, id: RunId, undo: bool) -> Result<Run, OperationError> {
        self.ask(caller, id, Asked::Cancel { undo }).await
    }

    /// Begins the next attempt of a run that has failed or was cancelled. The steps that have succeeded and were not undone
    /// keep their results.
    ///
    /// # Errors
    ///
    /// The run does not exist, is in another state, or has an uncertain step; or there are too many runs.
    pub async fn retry(&self, caller: &Operator, id: RunId) -> Result<Run, OperationError> {
        self.check_verified(caller)?;
        self.ask(caller, id, Asked::Retry).await
    }

    async fn ask(&self, caller: &Caller, id: RunId, asked: Asked) -> Result<Run, OperationError> {
        let app = &self.app;
        let (row, content) = self.opened(caller, id).await?;
        if asked.changes(&content)?.is_none() {
            return self.view(&row).await;
        }
        let write = async {
            for _ in 0..ATTEMPTS_MAX {
                let (row, content) = self.opened(caller, id).await?;
                // Another request may have asked the same meanwhile.
                let Some(mut content) = asked.changes(&content)? else { return Ok(None) };
                if asked == Asked::Retry {
                    content.add_starter(caller.key);
                }
                let wake = keys::wake(keys::run_key(id), row.workspace_id, app.clock.now());
                if self.write(&row, &content, asked, &wake).await? {
                    return Ok(Some(wake));
                }
            }
            Err(OperationError::changed_meanwhile())
        };
        let (before, after) = (json!({ "status": row.status.as_str(), "attempt": row.attempt }), asked.recorded());
        let change = Change::new(asked.name(), &id).of_bot(row.bot_id).from(&before).to(&after);
        let wake = change.record(app, caller, write).await?;
        self.engine.signal(wake.as_slice());
        self.show(caller, id).await
    }

    /// Writes the new record of a run. Returns `false` if a turn has changed the run meanwhile.
    async fn write(
        &self,
        row: &RunRow,
        content: &RunContent,
        asked: Asked,
        wake: &NewWake,
    ) -> Result<bool, OperationError> {
        let store = &self.app.store;
        let sealed = seal_run(&self.app.vault, row, content).map_err(internal)?;
        let request = match asked {
            Asked::Pause => RunRequest::Pause,
            Asked::Cancel { undo: false } => RunRequest::Cancel,
            Asked::Cancel { undo: true } => RunRequest::CancelAndUndo,
            Asked::Resume => return Ok(store.resume_run(row, &sealed, wake).await?),
            Asked::Retry => {
                return match store.retry_run(row, &sealed, wake, RUNS_MAX).await? {
                    RetriedRun::Retried => Ok(true),
                    RetriedRun::Full => Err(full()),
                    RetriedRun::Changed => Ok(false),
                };
            }
        };
        Ok(store.ask_run(row, request, &sealed, wake).await?)
    }
}

impl Asked {
    fn name(self) -> &'static str {
        match self {
            Asked::Pause => "run.pause",
            Asked::Resume => "run.resume",
            Asked::Cancel { .. } => "run.cancel",
            Asked::Retry => "run.retry",
        }
    }

    /// Returns what the audit keeps beside the name.
    fn recorded(self) -> serde_json::Value {
        match self {
            Asked::Cancel { undo } => json!({ "undo": undo }),
            Asked::Pause | Asked::Resume | Asked::Retry => json!({}),
        }
    }

    /// Returns the new content of a run, or `None` if nothing is left to do.
    fn changes(self, content: &RunContent) -> Result<Option<RunContent>, OperationError> {
        let asked = content.asked.as_deref();
        let pause = RunRequest::Pause.as_str();
        let is_cancelled = asked.is_some_and(|asked| asked != pause);
        let with = |request: Option<RunRequest>| {
            let asked = request.map(|request| request.as_str().to_owned());
            Ok(Some(RunContent { asked, ..content.clone() }))
        };
        let conflict = |message: &str| Err(OperationError::conflict(message));
        match self {
            Asked::Pause | Asked::Resume | Asked::Cancel { .. } if content.has_ended => conflict("the run has ended"),
            // How a run ends is decided once.
            Asked::Cancel { undo } if content.ending.as_ref().is_some_and(|ending| undo && !ending.undo) => {
                conflict("the run is ending, and undoes nothing")
            }
            Asked::Cancel { .. } if content.ending.is_some() => Ok(None),
            Asked::Cancel { undo: false } if is_cancelled => Ok(None),
            Asked::Cancel { undo: true } if asked == Some(RunRequest::CancelAndUndo.as_str()) => Ok(None),
            Asked::Cancel { undo: false } => with(Some(RunRequest::Cancel)),
            Asked::Cancel { undo: true } => with(Some(RunRequest::CancelAndUndo)),
            Asked::Pause if is_cancelled || content.ending.is_some() => conflict("the run is ending"),
            Asked::Pause if asked == Some(pause) => Ok(None),
            Asked::Pause => with(Some(RunRequest::Pause)),
            Asked::Resume if asked == Some(pause) => with(None),
            Asked::Resume => conflict("the run is not paused"),
            Asked::Retry => retried(content).map(Some),
        }
    }
}

/// Returns the content of the next attempt of a run.
fn retried(content: &RunContent) -> Result<RunContent, OperationError> {
    let ending = content.ending.as_ref().filter(|_| content.has_ended);
    if !ending.is_some_and(|ending| matches!(ending.status, RunEnd::Failed | RunEnd::Cancelled)) {
        return Err(OperationError::conflict("only a run that has failed or was cancelled can be retried"));
    }
    if !content.uncertain.is_empty() {
        let steps: Vec<String> = content.uncertain.iter().map(StepKey::to_string).collect();
        let steps = steps.join(", ");
        return Err(OperationError::conflict(format!("resolve the uncertain steps first: {steps}")));
    }
    Ok(RunContent {
        attempt: content.attempt.saturating_add(1),
        asked: None,
        ending: None,
        has_ended: false,
        undo_failed: Vec::new(),
        started_at: None,
        ..content.clone()
    })
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;
    use serde_json::Value;

    use super::*;

    fn content(value: Value) -> RunContent {
        let mut content = json!({ "input": {}, "starters": [] });
        if let (Value::Object(content), Value::Object(fields)) = (&mut content, value) {
            content.extend(fields);
        }
        serde_json::from_value(content).unwrap()
    }

    fn ended(status: &str) -> RunContent {
        let ending = json!({ "status": status, "undo": false, "since": UtcMillis(5) });
        content(json!({ "ending": ending, "has_ended": true, "asked": "cancel", "started_at": UtcMillis(1) }))
    }

    /// Returns the new request, `same` if nothing changes, or `refused`.
    fn answer(asked: Asked, content: &RunContent) -> String {
        match asked.changes(content) {
            Ok(Some(content)) => content.asked.unwrap_or_else(|| "nothing".to_owned()),
            Ok(None) => "same".to_owned(),
            Err(OperationError::Conflict(_)) => "refused".to_owned(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_asked_depends_on_what_was_asked_before() {
        let all =
            [Asked::Pause, Asked::Resume, Asked::Cancel { undo: false }, Asked::Cancel { undo: true }, Asked::Retry];
        let ending = json!({ "status": "failed", "undo": true, "since": UtcMillis(5) });
        let bare = json!({ "status": "cancelled", "undo": false, "since": UtcMillis(5) });
        for (content, expected) in [
            (content(json!({})), ["pause", "refused", "cancel", "cancel_and_undo", "refused"]),
            (content(json!({ "asked": "pause" })), ["same", "nothing", "cancel", "cancel_and_undo", "refused"]),
            (content(json!({ "asked": "cancel" })), ["refused", "refused", "same", "cancel_and_undo", "refused"]),
            (content(json!({ "asked": "cancel_and_undo" })), ["refused", "refused", "same", "same", "refused"]),
            (content(json!({ "ending": ending })), ["refused", "refused", "same", "same", "refused"]),
            (content(json!({ "ending": bare })), ["refused", "refused", "same", "refused", "refused"]),
            (ended("completed"), ["refused", "refused", "refused", "refused", "refused"]),
            (ended("failed"), ["refused", "refused", "refused", "refused", "nothing"]),
            (ended("cancelled"), ["refused", "refused", "refused", "refused", "nothing"]),
        ] {
            assert_eq!(all.map(|asked| answer(asked, &content)), expected, "{content:?}");
        }
    }

    #[test]
    fn a_retry_begins_anew_and_not_while_a_step_is_uncertain() {
        let again = Asked::Retry.changes(&ended("failed")).unwrap().unwrap();
        assert_eq!((again.ending, again.has_ended, again.started_at), (None, false, None));
        let key = StepKey { step: "announce".to_owned(), item: "3".to_owned(), undo: false };
        let uncertain = RunContent { uncertain: vec![key], ..ended("failed") };
        let refused = Asked::Retry.changes(&uncertain).unwrap_err();
        assert_eq!(refused.to_string(), "resolve the uncertain steps first: announce[3]");
    }
}
