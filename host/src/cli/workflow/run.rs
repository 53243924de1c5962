//! The commands on runs of workflows.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::{RunId, UtcMillis};
use serde_json::{Value, json};

use super::{shown, watch};
use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::fields::{Body, Text, json_of};
use crate::cli::names::{self, Noun};
use crate::cli::{Options, output};

const RUN_EXAMPLES: &str = "\
Examples:
  monstrum workflow run release --input '{\"repo\": \"acme/site\", \"version\": \"2.0\"}' --watch
  monstrum workflow run release --input @release.json
  monstrum workflow run release --version 3 --json

Without --watch, the command prints the id of the run and does not wait for its end. With --watch, it prints each step as it
ends, and then the status; the exit code is 0 if the run is completed, and 1 if it is failed or cancelled. Ctrl-C ends the
command, not the run: `monstrum workflow watch` follows the run again.";

const RUNS_EXAMPLES: &str = "\
Examples:
  monstrum workflow runs
  monstrum workflow runs --workflow release --status waiting
  monstrum workflow runs 01998a3c-…            one run, with its steps
  monstrum workflow runs 01998a3c-… --json     with parameters and results

The command lists runs, newest first. With the id of a run, it shows that run.";

const WATCH_EXAMPLES: &str = "\
Examples:
  monstrum workflow watch 01998a3c-…
  monstrum workflow watch 01998a3c-… --json     one JSON object on each line

The exit code is 0 if the run is completed, and 1 if it is failed or cancelled. Ctrl-C ends the command, not the run.";

const CANCEL_EXAMPLES: &str = "\
Examples:
  monstrum workflow cancel 01998a3c-…
  monstrum workflow cancel 01998a3c-… --undo

Calls that run are stopped; a call that changes something may have taken effect, and its step is then uncertain. The steps of
`finally` run in any case.";

const PAUSE_EXAMPLES: &str = "\
Examples:
  monstrum workflow pause 01998a3c-…

Nothing new starts until `monstrum workflow resume`. What runs ends, and times go on.";

const RESUME_EXAMPLES: &str = "\
Examples:
  monstrum workflow resume 01998a3c-…";

const RETRY_EXAMPLES: &str = "\
Examples:
  monstrum workflow retry 01998a3c-…
  monstrum workflow retry 01998a3c-… --watch

The run goes on with the same version. Steps that succeeded and were not undone keep their results; all others start again. A
run with an uncertain step needs `monstrum workflow resolve` first.";

const RESOLVE_EXAMPLES: &str = "\
Examples:
  monstrum workflow resolve 01998a3c-… announce --as failed
  monstrum workflow resolve 01998a3c-… announce --as succeeded --data '{\"number\": 17}'
  monstrum workflow resolve 01998a3c-… label --item 3 --as retry

Look first what has become of the call, in its upstream. With succeeded, --data is the result of the step; failed says that the
call did not take effect; retry makes the call again.";

/// The number of runs that `runs` lists by default.
const LISTED: u32 = 50;

/// The commands on runs.
#[derive(Subcommand)]
pub(in crate::cli) enum Runs {
    /// Start a run of a workflow
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// List runs, or show one with its steps
    #[command(after_help = RUNS_EXAMPLES)]
    #[command(name = "runs")]
    List(List),
    /// Follow a run until it ends
    #[command(after_help = WATCH_EXAMPLES)]
    Watch {
        /// The id of the run
        run: RunId,
    },
    /// Cancel a run
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        /// The id of the run
        run: RunId,
        /// Undo the steps that have succeeded, the newest first
        #[arg(long)]
        undo: bool,
    },
    /// Start no new steps of a run for now
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause {
        /// The id of the run
        run: RunId,
    },
    /// Let a paused run go on
    #[command(after_help = RESUME_EXAMPLES)]
    Resume {
        /// The id of the run
        run: RunId,
    },
    /// Start the unfinished steps of a failed or cancelled run again
    #[command(after_help = RETRY_EXAMPLES)]
    Retry {
        /// The id of the run
        run: RunId,
        /// Print each step as it ends, until the run ends
        #[arg(long)]
        watch: bool,
    },
    /// Say what has become of a step whose effect is not known
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve(Resolve),
}

#[derive(Args)]
pub(in crate::cli) struct Run {
    /// The name or the id of the workflow
    workflow: String,
    /// The input as JSON; @FILE reads a file, @- standard input [default: {}]
    #[arg(long, value_name = "JSON")]
    input: Option<Text>,
    /// The number of the version [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Print each step as it ends, until the run ends
    #[arg(long)]
    watch: bool,
}

#[derive(Args)]
pub(in crate::cli) struct List {
    /// The id of the run to show
    #[arg(value_name = "RUN", conflicts_with_all = ["workflow", "status", "since", "limit"])]
    run: Option<RunId>,
    /// Only runs of this workflow, by its name or id
    #[arg(long)]
    workflow: Option<String>,
    /// Only runs with this status
    #[arg(long, value_parser = [
        "queued", "running", "waiting", "paused", "undoing", "completed", "failed", "cancelled",
    ])]
    status: Option<String>,
    /// Only runs that were created at this time or later, in RFC 3339 format
    #[arg(long, value_name = "TIME")]
    since: Option<UtcMillis>,
    /// The maximum number of runs
    #[arg(long, value_name = "ROWS", default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Args)]
pub(in crate::cli) struct Resolve {
    /// The id of the run
    run: RunId,
    /// The id of the step in the definition
    step: String,
    /// What has become of the step
    #[arg(long = "as", value_name = "OUTCOME", value_parser = ["succeeded", "failed", "retry"])]
    outcome: String,
    /// The item of the list, for a step inside of `each`: 3, or 3.0 in nested lists
    #[arg(long)]
    item: Option<String>,
    /// The result of a step that has succeeded, as JSON; @FILE reads a file, @- standard input
    #[arg(long, value_name = "JSON")]
    data: Option<Text>,
}

impl Runs {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Runs::Run(run) => return run.start(&client, is_json).await,
            Runs::List(List { run: Some(run), .. }) => shown::one(&client, run, is_json).await?,
            Runs::List(list) => list.print(&client, is_json).await?,
            Runs::Watch { run } => return watch::follow(&client, &run.to_string(), is_json).await,
            Runs::Cancel { run, undo } => {
                let answer = ask(&client, run, "cancel", Some(&json!({ "undo": undo }))).await?;
                let text = match answer["ended_at"].is_null() {
                    true => format!("run {run} is being cancelled"),
                    false => format!("run {run} has ended: {}", output::cell(&answer["status"])),
                };
                output::done(is_json, &answer, &text)?;
            }
            Runs::Pause { run } => {
                let answer = ask(&client, run, "pause", None).await?;
                output::done(is_json, &answer, &format!("paused run {run}"))?;
            }
            Runs::Resume { run } => {
                let answer = ask(&client, run, "resume", None).await?;
                output::done(is_json, &answer, &format!("run {run} goes on"))?;
            }
            Runs::Retry { run, watch } => {
                let answer = ask(&client, run, "retry", None).await?;
                if watch {
                    return watch::follow(&client, &run.to_string(), is_json).await;
                }
                let text = format!("run {run} goes on with attempt {}", output::cell(&answer["attempt"]));
                output::done(is_json, &answer, &text)?;
            }
            Runs::Resolve(resolve) => resolve.run(&client, is_json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    async fn start(self, client: &Client, is_json: bool) -> Result<ExitCode, Failure> {
        let Run { workflow, input, version, watch } = self;
        let mut body = Body::default();
        body.set("input", input.map(|text| json_of("input", text)).transpose()?);
        body.set("version", version);
        let id = names::id(client, Noun::Workflow, &workflow).await?;
        let started = client.post(&["api", "workflows", &id, "runs"], Some(&body.whole())).await?;
        let run = names::text(&started, "id")?;
        if !is_json {
            let [workflow, version] = ["workflow", "version"].map(|field| output::cell(&started[field]));
            output::note(&output::plain(&format!("run {run} of {workflow}, version {version}")));
        }
        if watch {
            return watch::follow(client, &run, is_json).await;
        }
        match is_json {
            true => output::json(&started)?,
            false => output::line(output::plain(&run))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn print(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        let List { run: _, workflow, status, since, limit } = self;
        let mut query = Vec::new();
        if let Some(workflow) = workflow {
            query.push(("workflow_id", names::id(client, Noun::Workflow, &workflow).await?));
        }
        query.extend(status.map(|status| ("status", status)));
        query.extend(since.map(|time| ("since", time.to_string())));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (mut items, _) = client.list(&["api", "runs"], &query, limit).await?;
        if !is_json {
            for item in &mut items {
                item["waiting_for"] = Value::String(shown::waiting_for(item));
                item["started_by"] = item["started_by"]["kind"].take();
            }
        }
        let header = ["ID", "WORKFLOW", "VERSION", "STATUS", "WAITS FOR", "STARTED BY", "CREATED", "ENDED"];
        let fields = ["id", "workflow", "version", "status", "waiting_for", "started_by", "created_at", "ended_at"];
        output::list(&items, is_json, "there are no such runs; `monstrum workflow run` starts one", header, fields)
    }
}

impl Resolve {
    async fn run(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        let Resolve { run, step, outcome, item, data } = self;
        if data.is_some() && outcome != "succeeded" {
            let message = format!("a step that is resolved as {outcome} has no result");
            return Err(Failure::new(message, "omit --data, or use --as succeeded"));
        }
        let mut body = Body::default();
        body.set("as", Some(&outcome));
        body.set("item", item.as_ref());
        body.set("data", data.map(|text| json_of("data", text)).transpose()?);
        let path = ["api", "runs", &run.to_string(), "steps", &step, "resolve"];
        let answer = client.post(&path, Some(&body.whole())).await?;
        let name = shown::step_name(&step, item.as_deref().unwrap_or_default(), false);
        output::done(is_json, &answer, &format!("resolved step {name} of run {run} as {outcome}"))
    }
}

/// Asks something of a run.
async fn ask(client: &Client, run: RunId, action: &str, body: Option<&Value>) -> Result<Value, Failure> {
    client.post(&["api", "runs", &run.to_string(), action], body).await
}
