//! A bot runs the workflow of examples/workflows/release.yaml. The run asks whether it may announce the release, and the server is
//! killed while the question is open. After the restart a person approves the call with its parameters, and exactly this call is made.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, FakeGithub, Server};

use crate::leaks;
use crate::scenes::{TOKEN, text};
use crate::task::{until, waiting_approval, writes};

const DEFINITION: &str = include_str!("../../examples/workflows/release.yaml");
/// The bot that the definition names.
const BOT: &str = "maintainer";

/// Shows a run with a question. The server is killed and starts again.
pub(crate) async fn show(server: &mut Server) -> Result<()> {
    println!("A fifth bot, `{BOT}`, runs the workflow examples/workflows/release.yaml:\n");
    let github = FakeGithub::start_with_token(TOKEN).await?;
    let api = server.api()?;
    let bot = api.bot(BOT).await?;
    let operations = ["issue.read", "issue.write", "issue.comment.write"];
    let (url, scope) = (github.url(), json!({ "repos": ["acme/*"] }));
    api.grant(&bot, "github", (&url, TOKEN), &operations, &scope).await?;
    let (status, workflow) = api.post("/api/workflows", &json!({ "definition": DEFINITION })).await?;
    ensure!(status == 201, "the workflow was not saved: {status} {workflow}");
    let path = format!("/api/workflows/{}/runs", text(&workflow["id"]));
    let input = json!({ "repo": "acme/site", "version": "3.0" });
    let (status, run) = api.post(&path, &json!({ "input": input })).await?;
    ensure!(status == 202, "the run did not start: {status} {run}");
    let id = text(&run["id"]).to_owned();

    let approval = waiting_approval(&api).await?;
    let call = &approval["for"][0];
    println!("  the run asks: {}", text(&approval["text"]));
    println!("  the call to approve: {} {}", text(&call["tool"]), call["params"]);
    ensure!(writes(&github, "/issues") == 0, "the run has written without an approval");
    server.kill().await?;
    println!("  the server is killed (SIGKILL) while the run waits, and starts again");
    server.launch().await?;
    let api = server.api()?;

    let path = format!("/api/approvals/{}", text(&approval["id"]));
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, refused) = api.post(&path, &decision).await?;
    ensure!(status == 403 || status == 409, "the key that started the run has decided: {status} {refused}");
    println!("  the key that started the run cannot answer its question: {}", text(&refused["detail"]));
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let (status, decided) = operator.post(&path, &decision).await?;
    ensure!(status == 200, "the approval was refused: {status} {decided}");
    println!("  another person approves the call");

    let run = ended(&api, &id).await?;
    ensure!(run["status"] == "completed", "the run should be completed: {run}");
    tell_steps(&api, &id).await?;
    let made = (writes(&github, "/issues"), writes(&github, "/comments"));
    ensure!(made == (1, 1), "each write should have reached the upstream once: {made:?}");
    let requests = github.requests();
    let created = requests.iter().find(|request| request.method == "POST").context("no issue was created")?;
    let title = &created.json()["title"];
    ensure!(*title == call["params"]["title"], "the approved call was not made: {title}");
    println!("  the output of the run: {}\n", run["output"]);
    leaks::check_text("the run", &run.to_string())
}

/// Waits for the end of a run, and returns the run.
async fn ended(api: &Api, id: &str) -> Result<Value> {
    let mut run = Value::Null;
    until("the run has ended", async || {
        run = api.get(&format!("/api/runs/{id}")).await?.1;
        Ok(!run["ended_at"].is_null())
    })
    .await?;
    Ok(run)
}

/// Prints the steps of a run with their statuses.
async fn tell_steps(api: &Api, id: &str) -> Result<()> {
    let (status, steps) = api.get(&format!("/api/runs/{id}/steps")).await?;
    ensure!(status == 200, "{status} {steps}");
    leaks::check_text("the steps", &steps.to_string())?;
    let steps = steps["items"].as_array().context("the list has no items")?;
    let told: Vec<String> =
        steps.iter().map(|step| format!("{} {}", text(&step["step"]), text(&step["status"]))).collect();
    println!("  the steps: {}", told.join(", "));
    let expected = [
        "blockers succeeded",
        "blocked skipped",
        "ok succeeded",
        "announce succeeded",
        "thank succeeded",
        "tell succeeded",
    ];
    ensure!(told == expected, "unexpected steps: {told:?}");
    Ok(())
}
