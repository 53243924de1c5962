//! Workflows and their runs, through the API.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::Api;

/// The maximum time of a run of a test. With a shared database, the lease of a server that was killed has to end first.
pub const RUN_MAX: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// The number of steps on a page, which is the maximum.
const PAGE: usize = 1000;

impl Api {
    /// Saves a workflow of a bot, or a new version of it, and returns its id. `definition` has all keys but the names of the
    /// workflow and of the bot.
    pub async fn workflow(&self, bot: &str, name: &str, definition: &Value) -> Result<String> {
        let mut document = json!({ "workflow": name, "bot": bot });
        if let (Value::Object(document), Value::Object(definition)) = (&mut document, definition.clone()) {
            document.extend(definition);
        }
        let body = json!({ "definition": document });
        let (status, listed) = self.get(&format!("/api/workflows?bot_id={bot}&limit=1000")).await?;
        ensure!(status == 200, "{status} {listed}");
        let known = listed["items"].as_array().into_iter().flatten().find(|item| item["name"] == name);
        let (status, saved) = match known.and_then(|workflow| workflow["id"].as_str()) {
            Some(id) => self.patch(&format!("/api/workflows/{id}"), &body).await?,
            None => self.post("/api/workflows", &body).await?,
        };
        ensure!(matches!(status, 200 | 201), "{status} {saved}");
        Ok(saved["id"].as_str().context("the workflow has no id")?.to_owned())
    }

    /// Starts a run of a workflow, and returns its id.
    pub async fn start_run(&self, workflow: &str, input: &Value) -> Result<String> {
        let path = format!("/api/workflows/{workflow}/runs");
        let (status, run) = self.post(&path, &json!({ "input": input })).await?;
        ensure!(status == 202, "{status} {run}");
        Ok(run["id"].as_str().context("the run has no id")?.to_owned())
    }

    /// Returns a run.
    pub async fn run(&self, id: &str) -> Result<Value> {
        let (status, run) = self.get(&format!("/api/runs/{id}")).await?;
        ensure!(status == 200, "{status} {run}");
        Ok(run)
    }

    /// Returns the attempts of the steps of a run, the oldest first.
    pub async fn run_steps(&self, id: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut path = format!("/api/runs/{id}/steps?limit={PAGE}");
        loop {
            let (status, page) = self.get(&path).await?;
            ensure!(status == 200, "{status} {page}");
            all.extend(page["items"].as_array().context("the steps have no items")?.iter().cloned());
            let Some(cursor) = page["next_cursor"].as_str() else { return Ok(all) };
            path = format!("/api/runs/{id}/steps?limit={PAGE}&cursor={cursor}");
        }
    }

    /// Waits until a run has this property, and returns it.
    pub async fn run_that(&self, what: &str, id: &str, has: impl Fn(&Value) -> bool) -> Result<Value> {
        let began = Instant::now();
        loop {
            let run = self.run(id).await?;
            if has(&run) {
                return Ok(run);
            }
            if is_over(&run) || began.elapsed() > RUN_MAX {
                let steps = self.run_steps(id).await?;
                bail!("the run {what}: {run}\n{}", json!(steps));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until a run has ended, and returns it.
    pub async fn run_ended(&self, id: &str) -> Result<Value> {
        self.run_that("has not ended", id, is_over).await
    }
}

/// Returns whether a run has ended.
#[must_use]
pub fn is_over(run: &Value) -> bool {
    !run["ended_at"].is_null()
}

/// Returns the status of each step, as `step[item] status` or `undo step[item] status`, in the order of the list.
#[must_use]
pub fn status_of(steps: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = |step: &Value| {
        let item = step["item"].as_str().map(|item| format!("[{item}]")).unwrap_or_default();
        let undo = if step["undo"] == true { "undo " } else { "" };
        format!("{undo}{}{item} {}", text(&step["step"]), text(&step["status"]))
    };
    steps.iter().map(status).collect()
}
