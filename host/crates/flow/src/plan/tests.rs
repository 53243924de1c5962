use serde_json::{Value, json};

use super::plan;
use super::types::*;
use crate::{check, model::Definition};

mod ending;
mod properties;
mod rules;

/// A run whose calls the test answers.
struct World {
    definition: Definition,
    history: History,
    now: i64,
}

impl World {
    /// A run of a definition with these steps.
    fn with(steps: &str) -> World {
        World::of(&format!("workflow: w\nbot: b\nsteps:\n{steps}"), json!({}))
    }

    fn of(text: &str, input: Value) -> World {
        let definition = check(text, None).unwrap_or_else(|faults| panic!("{faults:#?}\n{text}")).definition;
        let mut history = History::default();
        history.run.id = "run-1".to_owned();
        history.run.attempt = 1;
        history.run.input = input.into();
        World { definition, history, now: 1_000 }
    }

    /// Makes a plan, does it, and returns the commands in short form.
    fn plan(&mut self) -> Vec<String> {
        let commands = plan(&self.definition, &self.history, self.now);
        for command in &commands {
            self.history.apply(command, self.now);
        }
        let again = plan(&self.definition, &self.history, self.now);
        let is_repeatable = |command: &Command| matches!(command, Command::SetTimer { .. } | Command::EndRun { .. });
        assert!(again.iter().all(is_repeatable), "a plan that was done gives more: {again:?}");
        commands.iter().filter_map(short).collect()
    }

    fn ok(&mut self, step: &str, data: Value) -> Vec<String> {
        self.end(step, StepStatus::Succeeded, data, None)
    }

    fn fail(&mut self, step: &str, code: &str) -> Vec<String> {
        self.end(step, StepStatus::Failed, Value::Null, Some(StepError::new(code, "m")))
    }

    fn stopped(&mut self, step: &str) -> Vec<String> {
        self.end(step, StepStatus::Cancelled, Value::Null, None)
    }

    fn end(&mut self, step: &str, status: StepStatus, data: Value, error: Option<StepError>) -> Vec<String> {
        self.now += 1;
        self.history.end(&key(step), status, data, error, self.now);
        self.plan()
    }

    /// Begins another attempt of the run.
    fn retry(&mut self) {
        self.history.run.attempt += 1;
        (self.history.run.cancel, self.history.run.ending) = (None, None);
        self.history.run.started_at = self.now;
    }

    fn row(&mut self, step: &str) -> &mut StepRow {
        let key = key(step);
        self.history.rows.iter_mut().rev().find(|row| row.key == key).unwrap()
    }

    fn last(&self) -> Command {
        plan(&self.definition, &self.history, self.now).into_iter().next().unwrap()
    }
}

/// Reads `a`, `a.3` or `-a`, where the last is an undo.
fn key(text: &str) -> StepKey {
    let undo = text.starts_with('-');
    let (step, item) = text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
    StepKey { step: step.to_owned(), item: item.to_owned(), undo }
}

fn name(key: &StepKey) -> String {
    let item = if key.item.is_empty() { String::new() } else { format!(".{}", key.item) };
    format!("{}{}{item}", if key.undo { "-" } else { "" }, key.step)
}

fn short(command: &Command) -> Option<String> {
    Some(match command {
        Command::Start { key, attempt, same_request, .. } => {
            let attempt = if *attempt > 1 { format!("#{attempt}") } else { String::new() };
            format!("start {}{attempt}{}", name(key), if *same_request { " same" } else { "" })
        }
        Command::Open { key, .. } => format!("open {}", name(key)),
        Command::Wait { key, .. } => format!("wait {}", name(key)),
        Command::Finish { key, status, error, .. } => {
            let code = error.as_ref().map(|error| format!(" {}", error.code)).unwrap_or_default();
            format!("{} {}{code}", status.as_str(), name(key))
        }
        Command::Cancel { key, timed_out, .. } => {
            format!("cancel {}{}", name(key), if *timed_out { " timeout" } else { "" })
        }
        Command::Ask { key, .. } => format!("ask {}", name(key)),
        Command::BeginEnding(ending) => format!("ending {}", ending.status.as_str()),
        Command::EndRun { status, error, uncertain, undo_failed, .. } => {
            let code = error.as_ref().map(|error| format!(" {}", error.code)).unwrap_or_default();
            let list = |what: &str, keys: &[StepKey]| {
                let names: Vec<String> = keys.iter().map(name).collect();
                if names.is_empty() { String::new() } else { format!(" {what}={}", names.join(",")) }
            };
            format!("end {}{code}{}{}", status.as_str(), list("uncertain", uncertain), list("undo_failed", undo_failed))
        }
        Command::SetTimer { .. } => return None,
    })
}
