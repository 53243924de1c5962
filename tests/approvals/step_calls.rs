//! Steps that ask, and calls that were approved with a question: a call that differs from what was approved is asked about
//! again.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use monstrum_core::app::App;
use monstrum_core::operations::approvals::{
    AskStepError, StepAsk, StepCall, StepConsent, StepRun, ask_step, check_step, step_consent,
};
use monstrum_store::{ApprovalRow, AskedApproval, InsertedRun, NewApproval, NewWake, RunRow, RunStarter, RunStatus};
use monstrum_types::{ApprovalId, BotId, Clock, Labels, RunId, SystemClock, WakeKey, WakeKind, WorkspaceId};
use serde_json::{Value, json};
use support::{Api, Bound, FakeGithub, InProcess, TOKEN};

use super::steps::RUNS_MAX;
use super::{ECHO, TOOL};
use crate::http::made;
use crate::workflows::new_workflow;
use crate::world::{eventually, text};

const OK: &str = "ok";
const ANNOUNCE: &str = "announce";

/// A host with a bot, its tool, and a run of its workflow.
struct Steps {
    host: InProcess,
    api: Api,
    upstream: FakeGithub,
    bot: String,
    bound: Bound,
    run: RunRow,
    labels: Labels,
}

impl Steps {
    async fn start() -> Result<Steps> {
        let host = InProcess::start_without_sandboxes(&[ECHO]).await?;
        let (api, upstream) = (host.api()?, FakeGithub::start().await?);
        let bot = api.bot("release-bot").await?;
        let bound = api.grant(&bot, ECHO, (&upstream.url(), TOKEN), &["*"], &json!({})).await?;
        let workflow = made(&api, "/api/workflows", &new_workflow("release", &bot)).await?;
        let workspace = host.running.app.policy.load().default_workspace();
        let run = run(workspace, bot.parse()?, &workflow)?;
        let steps = Steps { host, api, upstream, bot, bound, run, labels: Labels::none() };
        steps.insert(&steps.run).await?;
        Ok(steps)
    }

    fn app(&self) -> &App {
        &self.host.running.app
    }

    /// Inserts a run whose next turn is tomorrow.
    async fn insert(&self, run: &RunRow) -> Result<()> {
        let due_at = SystemClock.now().plus_ms(86_400_000);
        let key = WakeKey::new(WakeKind::Run, run.id)?;
        let wake = NewWake { key, workspace_id: run.workspace_id, due_at, claim: None };
        ensure!(self.app().store.insert_run(run, &wake, RUNS_MAX).await? == InsertedRun::Inserted);
        Ok(())
    }

    fn of_run(&self) -> StepRun<'_> {
        StepRun {
            workspace: self.run.workspace_id,
            bot: self.run.bot_id,
            workflow: self.run.workflow_id,
            run: self.run.id,
            attempt: 1,
            item: "",
            links: Arc::default(),
            labels: &self.labels,
            starters: &[],
            cause: None,
        }
    }

    /// Makes an approval for these calls, as the turn of the run does.
    async fn asked(&self, targets: &[StepCall<'_>]) -> Result<NewApproval, AskStepError> {
        self.asked_with("Release?", targets, 0).await
    }

    async fn asked_with(
        &self,
        question: &str,
        targets: &[StepCall<'_>],
        asked: usize,
    ) -> Result<NewApproval, AskStepError> {
        let by = ["admin".to_owned(), "root".to_owned()];
        let expires_at = SystemClock.now().plus_ms(60_000);
        let ask =
            StepAsk { step: OK, attempt: 1, text: question, targets, by: &by, allow_starter: true, expires_at, asked };
        ask_step(self.app(), &self.of_run(), &ask).await
    }

    /// Asks about these calls, and approves them.
    async fn approved(&self, targets: &[StepCall<'_>]) -> Result<ApprovalId> {
        let new = self.asked(targets).await?;
        let (store, app) = (&self.app().store, self.app());
        let insert = store.ask_approval(&new.row, &new.sealed, Some(&new.requested), new.max);
        let asked = app.approvals.in_turn(std::slice::from_ref(&new), &[], insert, is_new).await?;
        ensure!(matches!(asked, AskedApproval::New(_)), "{asked:?}");
        self.decide(new.row.id, "approve").await?;
        Ok(new.row.id)
    }

    async fn decide(&self, id: ApprovalId, decision: &str) -> Result<()> {
        let path = format!("/api/approvals/{id}");
        let digest = self.api.get(&path).await?.1["digest"].clone();
        let (status, answer) = self.api.post(&path, &json!({ "decision": decision, "digest": digest })).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    }

    async fn status(&self, id: ApprovalId) -> Result<String> {
        Ok(text(&self.api.get(&format!("/api/approvals/{id}")).await?.1["status"]).to_owned())
    }

    async fn consent(&self, questions: &[ApprovalId], params: &Value) -> Result<StepConsent> {
        Ok(step_consent(self.app(), &self.of_run(), questions, &call(params)).await?)
    }

    /// Checks a call that must be asked about again, and returns the new approval.
    async fn asks_again(&self, questions: &[ApprovalId], params: &Value) -> Result<ApprovalRow> {
        match self.consent(questions, params).await? {
            StepConsent::Waits(row) => Ok(*row),
            other => bail!("the step does not wait: {other:?}"),
        }
    }
}

fn is_new(asked: &AskedApproval) -> bool {
    matches!(asked, AskedApproval::New(_))
}

fn call(params: &Value) -> StepCall<'_> {
    StepCall { step: ANNOUNCE, tool: TOOL, resource: None, params }
}

fn run(workspace: WorkspaceId, bot: BotId, workflow: &str) -> Result<RunRow> {
    Ok(RunRow {
        id: RunId::new(),
        workspace_id: workspace,
        workflow_id: workflow.parse()?,
        workflow: "release".to_owned(),
        version: 1,
        bot_id: bot,
        status: RunStatus::Waiting,
        attempt: 1,
        started_by_kind: RunStarter::Key,
        started_by_id: "k".to_owned(),
        event_id: None,
        delivery_id: None,
        parent_run_id: None,
        concurrency_key: None,
        asked: None,
        code: None,
        labels: Labels::none(),
        created_at: SystemClock.now(),
        started_at: None,
        deadline_at: None,
        ended_at: None,
        sealed: "of the test".to_owned(),
    })
}

#[tokio::test]
async fn only_the_approved_call_has_its_approval() -> Result<()> {
    let steps = Steps::start().await?;
    let params = json!({ "any": 1 });
    let id = steps.approved(&[call(&params)]).await?;
    let (app, of_run) = (steps.app(), steps.of_run());
    ensure!(check_step(app, &of_run, &[id], &call(&params)).await?);
    assert_eq!(steps.consent(&[id], &params).await?, StepConsent::Given);
    let other = json!({ "any": 2 });
    let elsewhere = StepRun { run: RunId::new(), ..of_run.clone() };
    let of_item = StepRun { item: "1", ..of_run.clone() };
    for (what, run, call) in [
        ("parameters", &of_run, call(&other)),
        ("step", &of_run, StepCall { step: "other", ..call(&params) }),
        ("tool", &of_run, StepCall { tool: "test_echo_fetch", ..call(&params) }),
        ("run", &elsewhere, call(&params)),
        ("item", &of_item, call(&params)),
    ] {
        // A tool with other parameters is an error, which is no consent either.
        let is_approved = check_step(app, run, &[id], &call).await.unwrap_or(false);
        ensure!(!is_approved, "another {what}");
    }
    ensure!(!check_step(app, &of_run, &[id, ApprovalId::new()], &call(&params)).await?, "every question counts");
    ensure!(check_step(app, &of_run, &[], &call(&params)).await?, "no question names the step");
    assert_eq!(steps.status(id).await?, "approved", "a check changes nothing");
    // The event names the run, and belongs to the bot.
    let event = eventually("the event is listed", async || {
        let (_, events) = steps.api.get("/api/events?event_type=approval.requested").await?;
        Ok(events["items"].get(0).cloned())
    });
    let event = event.await?;
    assert_eq!((&event["data"]["approval_id"], &event["data"]["kind"]), (&json!(id), &json!("step")));
    assert_eq!((&event["data"]["text"], &event["bot_id"]), (&json!("Release?"), &json!(steps.bot)));
    assert_eq!((&event["source_type"], &event["source_id"]), (&json!("workflow"), &json!(steps.run.workflow_id)));
    assert_eq!(event["metadata"]["run_id"], json!(steps.run.id));
    steps.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_changed_call_is_asked_about_again_and_not_twice() -> Result<()> {
    let steps = Steps::start().await?;
    let (before, after) = (json!({ "any": 1 }), json!({ "any": 2 }));
    let id = steps.approved(&[call(&before)]).await?;
    let again = steps.asks_again(&[id], &after).await?;
    assert_ne!(again.id, id);
    assert_eq!(steps.status(id).await?, "void");
    assert_eq!(steps.asks_again(&[id], &after).await?.id, again.id, "the same question");
    let (_, shown) = steps.api.get(&format!("/api/approvals/{}", again.id)).await?;
    assert_eq!((&shown["text"], &shown["step"], &shown["status"]), (&json!("Release?"), &json!(OK), &json!("pending")));
    assert_eq!((&shown["for"][0]["step"], &shown["for"][0]["params"]), (&json!(ANNOUNCE), &after));
    steps.decide(again.id, "approve").await?;
    assert_eq!(steps.consent(&[id], &after).await?, StepConsent::Given);
    // The first approval stays void, also for the call that it was about.
    let third = steps.asks_again(&[id], &before).await?;
    ensure!(third.id != id && third.id != again.id);
    steps.decide(third.id, "deny").await?;
    let refused = steps.consent(&[id], &before).await?;
    ensure!(matches!(refused, StepConsent::Refused { code: "denied", .. }), "{refused:?}");
    steps.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_changed_definition_is_asked_about_again() -> Result<()> {
    let steps = Steps::start().await?;
    let params = json!({ "any": 1 });
    let id = steps.approved(&[call(&params)]).await?;
    let path = format!("/api/resources/{}", steps.bound.resource);
    let mut config = steps.api.get(&path).await?.1["config"].clone();
    config["region"] = json!("us");
    ensure!(steps.api.patch(&path, &json!({ "config": config })).await?.0 == 200);
    ensure!(!check_step(steps.app(), &steps.of_run(), &[id], &call(&params)).await?);
    let again = steps.asks_again(&[id], &params).await?;
    // While a person reads this question, the definition changes once more.
    config["region"] = json!("eu");
    ensure!(steps.api.patch(&path, &json!({ "config": config })).await?.0 == 200);
    let body = json!({ "decision": "approve", "digest": again.digest });
    let (status, answer) = steps.api.post(&format!("/api/approvals/{}", again.id), &body).await?;
    ensure!(status == 409 && text(&answer["detail"]).contains("the run asks again"), "{status} {answer}");
    let third = steps.asks_again(&[id], &params).await?;
    assert_ne!(third.id, again.id);
    steps.decide(third.id, "approve").await?;
    assert_eq!(steps.consent(&[id], &params).await?, StepConsent::Given);
    steps.host.stop().await;
    Ok(())
}

/// A question that nobody has approved lets nothing run, even if its step was allowed to fail.
#[tokio::test]
async fn a_call_whose_question_was_denied_or_lost_does_not_run() -> Result<()> {
    let steps = Steps::start().await?;
    let params = json!({ "any": 1 });
    let new = steps.asked(&[call(&params)]).await?;
    let insert = steps.app().store.ask_approval(&new.row, &new.sealed, None, new.max);
    steps.app().approvals.in_turn(std::slice::from_ref(&new), &[], insert, is_new).await?;
    for (decided, code) in [(false, "denied"), (true, "denied")] {
        if decided {
            steps.decide(new.row.id, "deny").await?;
        }
        let refused = steps.consent(&[new.row.id], &params).await?;
        ensure!(matches!(&refused, StepConsent::Refused { code: found, .. } if *found == code), "{refused:?}");
    }
    let lost = steps.consent(&[ApprovalId::new()], &params).await?;
    ensure!(matches!(lost, StepConsent::Refused { code: "denied", .. }), "{lost:?}");
    steps.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_step_asks_only_about_calls_that_its_bot_can_make() -> Result<()> {
    let steps = Steps::start().await?;
    let params = json!({ "any": 1 });
    let refused = async |targets: &[StepCall<'_>]| match steps.asked(targets).await {
        Err(AskStepError::Refused { code, message }) => Ok((code, message)),
        Err(other) => Err(other.into()),
        Ok(new) => Err(anyhow::anyhow!("the step asks: {:?}", new.row)),
    };
    let wrong = json!({ "repo": 1 });
    for (code, call) in [
        ("permission_denied", StepCall { tool: "no_such_tool", ..call(&params) }),
        ("invalid_params", call(&wrong)),
        ("invalid_params", StepCall { resource: Some("no-such-resource"), ..call(&params) }),
    ] {
        let (found, message) = refused(&[call]).await?;
        ensure!(found == code && message.contains("`announce`"), "{found}: {message}");
    }
    // With a second resource, the call must name one.
    let second = steps.api.resource(ECHO, "second", &steps.upstream.url()).await?;
    let role = steps.api.role("second", &["*"]).await?;
    steps.api.bind(&steps.bot, &second, &role, &json!({})).await?;
    assert_eq!(refused(&[call(&params)]).await?.0, "invalid_params");
    let named = StepCall { resource: Some("second"), ..call(&params) };
    let new = steps.asked(&[named]).await?;
    let targets = new.row.targets.context("the question has targets")?;
    assert_eq!(targets[0]["resource_id"], json!(second));

    let long = "x".repeat(8_193);
    for (what, ask) in [
        ("text", steps.asked_with(&long, &[named], 0).await),
        ("room", steps.asked_with("Release?", &[named], 100).await),
    ] {
        ensure!(matches!(ask, Err(AskStepError::Refused { code: "limit", .. })), "{what}: {ask:?}");
    }
    let large = json!({ "any": "x".repeat(600_000) });
    let large = StepCall { params: &large, ..named };
    assert_eq!(refused(&[large, large]).await?.0, "limit");
    steps.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_question_has_no_secrets() -> Result<()> {
    let steps = Steps::start().await?;
    let params = json!({ "any": format!("token {TOKEN}") });
    let id = steps.approved(&[call(&params)]).await?;
    let (_, shown) = steps.api.get(&format!("/api/approvals/{id}")).await?;
    let text = shown.to_string();
    ensure!(!text.contains("canary+7") && text.contains("token "), "{text}");
    // The approval is of the call as it runs.
    assert_eq!(steps.consent(&[id], &params).await?, StepConsent::Given);
    steps.host.stop().await;
    Ok(())
}
