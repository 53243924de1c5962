//! Follows a run and prints its steps as they end.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use serde_json::Value;

use super::shown;
use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::{output, stream};

/// The exit code of a program that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;

/// Prints what happens in a run until it ends. After a lost connection, continues after the last step. Ctrl-C ends the
/// command only.
pub(super) async fn follow(client: &Client, run: &str, is_json: bool) -> Result<ExitCode, Failure> {
    tokio::select! {
        ended = until_its_end(client, run, is_json) => ended,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| Failure::from_error(&error, "run the command without --watch"))?;
            output::note(&output::plain(&format!("the run goes on: `monstrum workflow watch {run}` follows it again")));
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

async fn until_its_end(client: &Client, run: &str, is_json: bool) -> Result<ExitCode, Failure> {
    let path = ["api", "runs", run, "events"];
    let mut watched = Watched::default();
    stream::until_its_end(client, &path, is_json, |event, data| watched.print(event, data)).await
}

/// What a person has seen of a run.
#[derive(Default)]
struct Watched {
    status: String,
    /// What the run waits for, as the last note said.
    waits: Vec<String>,
    /// The attempts that have ended, with their statuses. After a lost connection, the server can send some of them again.
    ended: HashMap<String, String>,
}

impl Watched {
    fn print(&mut self, event: &str, data: &Value) -> Result<(), Failure> {
        match event {
            "run" => self.run(data),
            // The step is printed again when it ends. On a terminal, this line shows what goes on.
            "step" if data["ended_at"].is_null() && std::io::stderr().is_terminal() => {
                let waits = if data["status"] == "waiting" { " waits" } else { "" };
                output::note(&output::plain(&format!("… {}{waits}", shown::name(data))));
            }
            "step" if data["ended_at"].is_null() => {}
            "step" => {
                let attempt = format!("{} {} {}", shown::name(data), data["run_attempt"], data["attempt"]);
                let status = output::cell(&data["status"]);
                if self.ended.insert(attempt, status.clone()).is_none_or(|known| known != status) {
                    output::line(shown::line(data))?;
                }
            }
            "approval" => self.waits(std::slice::from_ref(data)),
            "end" => return self.end(data),
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self, run: &Value) {
        let status = output::cell(&run["status"]);
        if matches!(status.as_str(), "queued" | "paused" | "undoing") && status != self.status {
            output::note(match status.as_str() {
                "queued" => "the run is queued; it starts when there is room",
                "paused" => "the run is paused; `monstrum workflow resume` lets it go on",
                _ => "the run is undoing its steps",
            });
        }
        self.status = status;
        self.waits(run["waiting_for"].as_array().map(Vec::as_slice).unwrap_or_default());
    }

    /// Prints each wait once.
    fn waits(&mut self, waits: &[Value]) {
        for wait in waits {
            let text = shown::wait(wait);
            if self.waits.contains(&text) {
                continue;
            }
            let id = output::cell(&wait["id"]);
            let remedy = match wait["kind"].as_str() {
                Some("approval" | "gate") => format!("; decide with `monstrum approval approve {id}` or `deny`"),
                Some("resolve") => "; say what has become of it with `monstrum workflow resolve`".to_owned(),
                _ => String::new(),
            };
            output::note(&output::plain(&format!("{} waits for {}{remedy}", shown::name(wait), awaited(wait))));
            self.waits.push(text);
        }
    }

    fn end(&self, run: &Value) -> Result<(), Failure> {
        for (field, what) in [("uncertain", "effect not known"), ("undo_failed", "not undone")] {
            for step in shown::steps_of(&run[field]) {
                output::note(&output::plain(&format!("{what}: {step}")));
            }
        }
        if !run["output"].is_null() {
            output::json_line(&run["output"])?;
        }
        let mut text = output::cell(&run["status"]);
        let error = shown::error(run);
        if !error.is_empty() {
            text.push_str(&format!(": {error}"));
        }
        let mut details = match self.ended.len() {
            1 => "1 step".to_owned(),
            count => format!("{count} steps"),
        };
        if let Some(time) = shown::time_of(run, "created_at") {
            details.push_str(&format!(", {time}"));
        }
        output::note(&output::plain(&format!("{text} ({details})")));
        Ok(())
    }
}

/// Returns what a wait is for, without its step.
fn awaited(wait: &Value) -> String {
    let id = output::cell(&wait["id"]);
    let until = wait["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
    match wait["kind"].as_str() {
        Some("timer") => wait["until"].as_str().map_or_else(|| "a time".to_owned(), str::to_owned),
        Some("event") => format!("the event {id}{until}"),
        Some("approval") => format!("an answer{until}"),
        Some("gate") => format!("the approval of its call{until}"),
        Some("resolve") => "a person, because the effect of its call is not known".to_owned(),
        Some("task") => format!("the task {id}"),
        Some("run") => format!("the run {id}"),
        other => other.unwrap_or("something").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_wait_is_told_once() {
        let mut watched = Watched::default();
        let wait = json!({ "step": "ok", "kind": "approval", "id": "a", "until": "t" });
        watched.run(&json!({ "status": "waiting", "waiting_for": [wait] }));
        watched.waits(std::slice::from_ref(&wait));
        assert_eq!(watched.waits, ["ok: approval a until t"]);
        assert_eq!(awaited(&wait), "an answer until t");
        assert_eq!(awaited(&json!({ "kind": "event", "id": "custom.x" })), "the event custom.x");
        assert_eq!(awaited(&json!({ "kind": "timer", "until": "t" })), "t");
    }
}
