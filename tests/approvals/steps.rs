//! Approvals of steps of workflows. The tests write the approvals as the turn of a run does.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_core::approvals::{AskingStep, StepPosition, StepQuestion, StepTarget, StepTargetParts};
use monstrum_core::policy::row_seals;
use monstrum_guardian::Approver;
use monstrum_store::{
    AskedApproval, InsertedRun, NewWake, PendingMax, RunRow, RunStarter, RunStatus, RunsMax, Store, StoreOptions,
};
use monstrum_types::{Clock, KeyId, Labels, RunId, SystemClock, UtcMillis, WakeKey, WakeKind};
use monstrum_vault::{MasterKeys, Vault};
use serde_json::{Value, json};
use support::Api;

use super::{Gated, TOOL};
use crate::http::{Answers, made};
use crate::tamper::sqlite;
use crate::workflows::new_workflow;
use crate::world::{eventually, text};

/// The maximum numbers of runs, which no test reaches.
pub(super) const RUNS_MAX: RunsMax = RunsMax { of_workspace: 1_000, queued: 1_000, of_key: None };

/// What a question is about, apart from its run.
struct Question {
    text: String,
    params: Value,
    by: Vec<Approver>,
    allow_starter: bool,
    starters: Vec<KeyId>,
    expires_at: UtcMillis,
}

impl Question {
    fn new() -> Question {
        Question {
            text: "Release acme/site?".to_owned(),
            params: json!({ "any": "title" }),
            by: vec![Approver::Admin, Approver::Operator, Approver::Approver],
            allow_starter: true,
            starters: Vec::new(),
            expires_at: SystemClock.now().plus_ms(60_000),
        }
    }
}

/// A server with a workflow whose runs ask.
struct Asking {
    gated: Gated,
    workflow: String,
    /// An approval of a call of the same tool, whose definition the targets have.
    call: Value,
}

impl Asking {
    async fn start() -> Result<Asking> {
        let gated = Gated::start().await?;
        let id = gated.ask(&json!({})).await?;
        let call = gated.approval(&id).await?;
        let workflow = made(&gated.world.api, "/api/workflows", &new_workflow("release", &gated.world.bot)).await?;
        Ok(Asking { gated, workflow, call })
    }

    async fn store(&self) -> Result<(Store, Vault)> {
        let data = self.gated.world.server.data_dir();
        let keys = data.join("master.key");
        let vault = Vault::new(MasterKeys::open(&keys)?.context("the server has made a key")?);
        let options = StoreOptions::sqlite(data.join("monstrum.db"));
        Ok((row_seals::open_with_key_file(options, &keys).await?, vault))
    }

    /// Starts a run whose step asks. Returns the ids of the run and of the approval.
    async fn ask(&self, question: Question) -> Result<(RunId, String)> {
        let (store, vault) = self.store().await?;
        let me = self.gated.world.api.get("/api/me").await?.1;
        let workspace = text(&me["workspace_id"]).parse()?;
        let of_call =
            store.approval(workspace, text(&self.call["id"]).parse()?).await?.context("the call has asked")?;
        let run = self.run(&of_call.bot_id.to_string(), text(&me["workspace_id"]))?;
        let key = WakeKey::new(WakeKind::Run, run.id)?;
        let due_at = SystemClock.now().plus_ms(86_400_000);
        let wake = NewWake { key, workspace_id: workspace, due_at, claim: None };
        ensure!(store.insert_run(&run, &wake, RUNS_MAX).await? == InsertedRun::Inserted);
        let position =
            StepPosition { workspace, bot: run.bot_id, run: run.id, step: "ok", item: "3", run_attempt: 1, attempt: 1 };
        let parts = StepTargetParts {
            step: "announce".to_owned(),
            tool: TOOL.to_owned(),
            resource: of_call.resource_id.context("the call has a resource")?,
            operation: of_call.operation.context("the call has an operation")?,
            effect: of_call.effect.context("the call has an effect")?,
            definition: of_call.definition,
        };
        let params = question.params.as_object().context("an object")?;
        let labels = Labels::from_text("untrusted");
        let asking = AskingStep {
            position,
            workflow: run.workflow_id,
            approvers: question.by,
            allow_starter: question.allow_starter,
            starters: question.starters,
            labels: &labels,
            cause: None,
            expires_at: question.expires_at,
            targets: vec![StepTarget::new(&position, parts, params)],
            question: StepQuestion { text: question.text, params: vec![question.params.clone()] },
        };
        let row = asking.row(SystemClock.now().plus_ms(-120_000));
        let sealed = asking.question.sealed(&vault, &row)?;
        let max = PendingMax { of_bot: 100, of_workspace: 100 };
        ensure!(matches!(store.ask_approval(&row, &sealed, None, max).await?, AskedApproval::New(_)));
        store.close().await;
        Ok((run.id, row.id.to_string()))
    }

    fn run(&self, bot: &str, workspace: &str) -> Result<RunRow> {
        Ok(RunRow {
            id: RunId::new(),
            workspace_id: workspace.parse()?,
            workflow_id: self.workflow.parse()?,
            workflow: "release".to_owned(),
            version: 1,
            bot_id: bot.parse()?,
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
}

async fn key_id(api: &Api) -> Result<KeyId> {
    Ok(text(&api.get("/api/me").await?.1["key_id"]).parse()?)
}

#[tokio::test]
async fn an_approver_reads_the_question_and_all_of_its_calls() -> Result<()> {
    let asking = Asking::start().await?;
    let gated = &asking.gated;
    let question = Question {
        text: "Release \u{202e}acme/site?".to_owned(),
        params: json!({ "any": "a\u{200b}b", "n": 9_007_199_254_740_993_u64 }),
        by: vec![Approver::Admin],
        ..Question::new()
    };
    let (run, id) = asking.ask(question).await?;
    let mut approval = gated.approval(&id).await?;
    let members = approval.as_object_mut().context("an object")?;
    for (member, is_there) in [("digest", true), ("created_at", true), ("expires_at", true), ("tool", false)] {
        ensure!(members.remove(member).is_some() == is_there, "{member}: {members:?}");
    }
    let expected = json!({
        "id": id,
        "kind": "step",
        "status": "pending",
        "bot_id": gated.world.bot,
        "run_id": run,
        "step": "ok",
        "item": "3",
        "text": "Release \\u{202e}acme/site?",
        "for": [{
            "step": "announce",
            "tool": TOOL,
            "resource_id": gated.bound.resource,
            "operation": asking.call["operation"],
            "effect": asking.call["effect"],
            "params": { "any": "a\\u{200b}b", "n": 9_007_199_254_740_993_u64 },
        }],
        "links": [],
        "labels": ["untrusted"],
        "gates": [],
        "approvers": ["admin"],
        "allow_starter": true,
        "asked_by": {},
    });
    assert_eq!(approval, expected);

    // A bot reads how the approval stands, and nothing of the question.
    let bot = gated.world.api.with_key(&gated.world.api.new_key("bot", Some(&gated.world.bot)).await?);
    let (status, short) = bot.get(&format!("/api/approvals/{id}")).await?;
    let fields: Vec<&str> = short.as_object().into_iter().flat_map(|short| short.keys().map(String::as_str)).collect();
    assert_eq!((status, fields), (200, vec!["id", "status", "expires_at"]));

    // Lists select the kind, and leave out what is large.
    let (_, large) = asking.ask(Question { params: json!({ "any": "x".repeat(5_000) }), ..Question::new() }).await?;
    let (_, list) = gated.admin.get("/api/approvals?kind=step").await?;
    let items = list["items"].as_array().context("a list")?;
    assert_eq!(items.iter().map(|item| text(&item["id"])).collect::<Vec<_>>(), [&id, &large]);
    assert_eq!(items[0]["for"], expected["for"]);
    let (omitted, target) = (&items[1], &items[1]["for"][0]);
    assert_eq!(
        (&omitted["params_omitted"], &omitted["text"], &target["params"]),
        (&json!(true), &json!(null), &json!(null))
    );
    assert_eq!(target["tool"], TOOL);
    assert_eq!(gated.approval(&large).await?["for"][0]["params"]["any"].as_str().map(str::len), Some(5_000));
    let (_, calls) = gated.admin.get("/api/approvals?kind=call").await?;
    assert_eq!(calls["items"][0]["id"], asking.call["id"]);
    assert_eq!(calls["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

#[tokio::test]
async fn only_approvers_decide_and_not_those_who_started_the_run() -> Result<()> {
    let asking = Asking::start().await?;
    let (gated, root) = (&asking.gated, &asking.gated.world.api);
    let key = async |kind: &str, bot: Option<&str>| anyhow::Ok(root.with_key(&root.new_key(kind, bot).await?));
    let (operator, approver) = (key("operator", None).await?, key("approver", None).await?);
    let bot = key("bot", Some(&gated.world.bot)).await?;
    let (_, made) = root.post("/api/keys", &json!({ "name": "another", "kind": "admin" })).await?;
    let other_admin = root.with_key(text(&made["key"]));
    let starters = vec![key_id(root).await?, key_id(&gated.admin).await?, key_id(&bot).await?];
    let mut answers = Answers::default();
    for (name, api) in [
        ("root that started", root),
        ("admin that started", &gated.admin),
        ("other admin", &other_admin),
        ("operator", &operator),
        ("approver", &approver),
        ("bot", &bot),
    ] {
        for allow_starter in [false, true] {
            let question = Question {
                by: vec![Approver::Admin, Approver::Approver],
                allow_starter,
                starters: starters.clone(),
                ..Question::new()
            };
            let (_, id) = asking.ask(question).await?;
            let (status, answer) = gated.decide_as(api, &id, "approve").await?;
            let told = if status == 200 { &answer["status"] } else { &answer["detail"] };
            let name = if allow_starter { format!("{name}, starters may") } else { name.to_owned() };
            answers.add(&name, (status, told.clone()));
        }
    }
    assert_snapshot!(answers, @r#"
    root that started: 403 "a key that started the run, or that made or changed its trigger or schedule, cannot decide about this step"
    root that started, starters may: 200 "approved"
    admin that started: 403 "a key that started the run, or that made or changed its trigger or schedule, cannot decide about this step"
    admin that started, starters may: 200 "approved"
    other admin: 200 "approved"
    other admin, starters may: 200 "approved"
    operator: 403 "the workflow does not accept a decision with this kind of key"
    operator, starters may: 403 "the workflow does not accept a decision with this kind of key"
    approver: 200 "approved"
    approver, starters may: 200 "approved"
    bot: 403 "a bot key cannot decide about approvals"
    bot, starters may: 403 "a bot key cannot decide about approvals"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_decision_is_made_once_in_time_and_about_what_was_read() -> Result<()> {
    let asking = Asking::start().await?;
    let gated = &asking.gated;
    let (_, id) = asking.ask(Question::new()).await?;
    let (_, other) = asking.ask(Question::new()).await?;
    let of_other = gated.approval(&other).await?["digest"].clone();
    let body = json!({ "decision": "approve", "digest": of_other });
    assert_eq!(gated.admin.post(&format!("/api/approvals/{id}"), &body).await?.0, 409, "the digest of another run");
    let digest = gated.approval(&id).await?["digest"].clone();
    let body = json!({ "decision": "deny", "digest": digest, "note": "not on a Friday" });
    let (status, denied) = gated.admin.post(&format!("/api/approvals/{id}"), &body).await?;
    assert_eq!((status, &denied["status"], &denied["note"]), (200, &json!("denied"), &json!("not on a Friday")));
    for decision in ["approve", "deny"] {
        assert_eq!(gated.decide_as(&gated.admin, &id, decision).await?.0, 409, "{decision}");
    }
    gated.approve(&other).await?;
    assert_eq!(gated.decide_as(&gated.admin, &other, "deny").await?.0, 409);

    let (_, late) = asking.ask(Question { expires_at: SystemClock.now().plus_ms(-1), ..Question::new() }).await?;
    assert_eq!(gated.decide_as(&gated.admin, &late, "approve").await?.0, 409);
    eventually("the approval has expired", async || {
        Ok((gated.approval(&late).await?["status"] == "expired").then_some(()))
    })
    .await?;
    let steps = gated.changes().await?;
    for change in ["approval.deny success", "approval.approve success", "approval.expire success"] {
        ensure!(steps.iter().any(|step| step == change), "{change}: {steps:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_step_whose_calls_have_changed_or_whose_run_has_ended_is_void() -> Result<()> {
    let asking = Asking::start().await?;
    let gated = &asking.gated;
    let (run, id) = asking.ask(Question::new()).await?;
    let ended = format!("update runs set status = 'failed', ended_at = 1 where id = '{run}'");
    sqlite(&gated.world.server.data_dir(), &[&ended]).await?;
    let (status, answer) = gated.decide_as(&gated.admin, &id, "approve").await?;
    assert_eq!((status, text(&answer["detail"])), (409, "the run has ended, so the approval is void"));
    assert_eq!(gated.approval(&id).await?["status"], "void");

    let (_, id) = asking.ask(Question::new()).await?;
    let path = format!("/api/resources/{}", gated.bound.resource);
    let mut config = gated.world.api.get(&path).await?.1["config"].clone();
    config["region"] = json!("us");
    ensure!(gated.world.api.patch(&path, &json!({ "config": config })).await?.0 == 200);
    let (status, answer) = gated.decide_as(&gated.admin, &id, "approve").await?;
    ensure!(status == 409 && text(&answer["detail"]).contains("the run asks again"), "{status} {answer}");
    assert_eq!(gated.approval(&id).await?["status"], "void");
    assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 409);
    Ok(())
}

/// The attacker writes to the database, and wants another key to decide, or a person to approve something else.
#[tokio::test]
async fn an_approval_of_a_step_that_is_edited_cannot_be_decided() -> Result<()> {
    let asking = Asking::start().await?;
    let gated = &asking.gated;
    let starters = vec![key_id(&gated.admin).await?];
    for edit in [
        "starters = '[]'",
        "allow_starter = 1",
        "approvers = '[\"operator\"]'",
        "targets = '[]'",
        "run_id = (select id from runs where id <> run_id limit 1)",
        "item = null",
        "kind = 'call', tool = 'x', resource_id = 'x', operation = 'x', effect = 'x', run_id = null",
        "status = 'approved'",
    ] {
        let question = Question { allow_starter: false, starters: starters.clone(), ..Question::new() };
        let (_, id) = asking.ask(question).await?;
        let digest = gated.approval(&id).await?["digest"].clone();
        let edit = format!("update approvals set {edit} where id = '{id}'");
        sqlite(&gated.world.server.data_dir(), &[&edit]).await?;
        let body = json!({ "decision": "approve", "digest": digest });
        for api in [&gated.admin, &gated.world.api] {
            let (status, answer) = api.post(&format!("/api/approvals/{id}"), &body).await?;
            ensure!(status == 404, "{edit}: {status} {answer}");
        }
    }

    // The record of another question does not open in this row.
    let (_, shown) = asking.ask(Question { text: "Tell the team?".to_owned(), ..Question::new() }).await?;
    let (_, id) = asking.ask(Question::new()).await?;
    let swap =
        format!("update approvals set sealed = (select sealed from approvals where id = '{shown}') where id = '{id}'");
    sqlite(&gated.world.server.data_dir(), &[&swap]).await?;
    let (status, answer) = gated.admin.get(&format!("/api/approvals/{id}")).await?;
    ensure!(status == 500, "{status} {answer}");
    Ok(())
}

#[tokio::test]
async fn a_person_decides_about_a_step_on_the_command_line() -> Result<()> {
    let asking = Asking::start().await?;
    let gated = &asking.gated;
    let (run, id) = asking.ask(Question::new()).await?;
    let key = gated.admin.key();
    let run_command = async |arguments: &[&str]| {
        let arguments = [&["approval"], arguments, &["--key", key]].concat();
        let output = gated.world.server.command(&arguments).await?;
        anyhow::Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let (code, listed) = run_command(&["list", "--kind", "step"]).await?;
    ensure!(code == Some(0) && listed.contains(&id) && listed.contains("ok[3]"), "{listed}");
    ensure!(!listed.contains(text(&asking.call["id"])), "{listed}");
    let (_, shown) = run_command(&["show", &id]).await?;
    for part in [run.to_string().as_str(), "Release acme/site?", "announce: test_echo_run", "\"title\""] {
        ensure!(shown.contains(part), "{part}: {shown}");
    }
    let (code, _) = run_command(&["approve", &id, "--yes", "--note", "as agreed"]).await?;
    assert_eq!(code, Some(0));
    let approval = gated.approval(&id).await?;
    assert_eq!((&approval["status"], &approval["note"]), (&json!("approved"), &json!("as agreed")));
    Ok(())
}
