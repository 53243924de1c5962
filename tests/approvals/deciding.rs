//! Who may decide about an approval, and when.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_core::policy::row_seals;
use monstrum_store::{
    ApprovalDecision, ApprovalKind, ApprovalRow, ApprovalStatus, AskedApproval, DEFAULT_WORKSPACE, PendingMax,
    StoreOptions,
};
use monstrum_types::{ApprovalId, Clock, KeyId, SystemClock};
use serde_json::{Value, json};
use support::{Api, Server};

use super::{ECHO, Gated, TOOL, asked, succeeded};
use crate::http::Answers;
use crate::tamper::sqlite;
use crate::world::{eventually, text};

/// Calls as each kind of key, and tries to decide with each kind of key.
#[tokio::test]
async fn only_approvers_decide_and_not_about_their_own_calls() -> Result<()> {
    let gate = json!({ "action": "ask", "approvers": ["admin", "approver"] });
    let gated = Gated::on(Server::prepare(&[ECHO])?, &gate).await?;
    let root = &gated.world.api;
    let key = async |kind: &str, bot: Option<&str>| anyhow::Ok(root.with_key(&root.new_key(kind, bot).await?));
    let other_admin = root.with_key(&text_of_key(root, "another admin", "admin").await?);
    let operator = key("operator", None).await?;
    let approver = key("approver", None).await?;
    let bot = key("bot", Some(&gated.world.bot)).await?;
    let mut answers = Answers::default();
    let id = asked(&gated.call_with(&gated.admin, TOOL, &json!({})).await?)?;
    for (name, api) in [("own admin", &gated.admin), ("operator", &operator), ("bot", &bot)] {
        let (status, answer) = gated.decide_as(api, &id, "approve").await?;
        answers.add(name, (status, answer["detail"].clone()));
    }
    for (name, api) in [("other admin", &other_admin), ("approver", &approver), ("root", root)] {
        let id = asked(&gated.call_with(&gated.admin, TOOL, &json!({ "params": { "any": name } })).await?)?;
        let (status, answer) = gated.decide_as(api, &id, "approve").await?;
        answers.add(name, (status, answer["status"].clone()));
    }
    let of_root = gated.ask(&json!({ "any": "of root" })).await?;
    let (status, answer) = gated.decide_as(root, &of_root, "approve").await?;
    answers.add("own root", (status, answer["detail"].clone()));
    assert_snapshot!(answers, @r#"
    own admin: 403 "the key that made the call cannot decide about it"
    operator: 403 "the gates of this call do not accept a decision with this kind of key"
    bot: 403 "a bot key cannot decide about approvals"
    other admin: 200 "approved"
    approver: 200 "approved"
    root: 200 "approved"
    own root: 403 "the key that made the call cannot decide about it"
    "#);
    Ok(())
}

async fn text_of_key(api: &Api, name: &str, kind: &str) -> Result<String> {
    let (status, key) = api.post("/api/keys", &json!({ "name": name, "kind": kind })).await?;
    ensure!(status == 201, "{status} {key}");
    Ok(text(&key["key"]).to_owned())
}

#[tokio::test]
async fn the_key_that_made_the_call_may_decide_if_every_gate_accepts_it() -> Result<()> {
    let gate = json!({ "action": "ask", "allow_starter": true });
    let gated = Gated::on(Server::prepare(&[ECHO])?, &gate).await?;
    let id = asked(&gated.call_with(&gated.admin, TOOL, &json!({})).await?)?;
    assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 200);
    gated.set_gates(&json!([gate, { "action": "ask" }])).await?;
    let id = asked(&gated.call_with(&gated.admin, TOOL, &json!({ "params": { "any": 1 } })).await?)?;
    assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 403);
    Ok(())
}

/// A root key may decide even if no kind of key satisfies every gate.
#[tokio::test]
async fn gates_that_share_no_approver_leave_the_decision_to_root() -> Result<()> {
    let gated = Gated::start().await?;
    let root = &gated.world.api;
    gated
        .set_gates(&json!([
            { "action": "ask", "approvers": ["operator"] }, { "action": "ask", "approvers": ["approver"] },
        ]))
        .await?;
    let id = asked(&gated.call_with(&gated.admin, TOOL, &json!({})).await?)?;
    assert_eq!(gated.approval(&id).await?["approvers"], json!([]));
    for kind in ["admin", "operator", "approver"] {
        let api = root.with_key(&text_of_key(root, &format!("decider {kind}"), kind).await?);
        assert_eq!(gated.decide_as(&api, &id, "approve").await?.0, 403, "{kind}");
    }
    assert_eq!(gated.decide_as(root, &id, "approve").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn a_denied_call_reads_the_note_until_the_denial_expires() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.ask(&json!({})).await?;
    let digest = gated.approval(&id).await?["digest"].clone();
    let path = format!("/api/approvals/{id}");
    let body = json!({ "decision": "deny", "digest": digest, "note": "not on a Friday" });
    let (status, denied) = gated.admin.post(&path, &body).await?;
    assert_eq!((status, &denied["status"], &denied["note"]), (200, &json!("denied"), &json!("not on a Friday")));
    let answer = gated.call(&json!({})).await?;
    assert_eq!(
        (&answer["status"], &answer["code"], text(&answer["message"])),
        (
            &json!("permission_denied"),
            &json!("denied"),
            "Permission denied: a person has denied this call: not on a Friday"
        )
    );
    assert_eq!(gated.world.audit_of(&answer).await?["rule"], "approval.denied");
    assert_eq!(gated.admin.post(&path, &body).await?.0, 409);
    gated.ask(&json!({ "any": "another call" })).await?;
    Ok(())
}

/// The definition of the call has changed between the request and the decision.
#[tokio::test]
async fn an_approval_of_a_changed_definition_is_void() -> Result<()> {
    let gated = Gated::start().await?;
    let path = format!("/api/resources/{}", gated.bound.resource);
    let mut config = gated.world.api.get(&path).await?.1["config"].clone();
    let id = gated.ask(&json!({})).await?;
    config["region"] = json!("us");
    ensure!(gated.world.api.patch(&path, &json!({ "config": config })).await?.0 == 200);
    let (status, answer) = gated.decide_as(&gated.admin, &id, "approve").await?;
    assert_eq!(status, 409, "{answer}");
    assert_eq!(gated.approval(&id).await?["status"], "void");
    assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 409);
    assert_ne!(gated.ask(&json!({})).await?, id);
    assert_eq!(gated.changes().await?, ["approval.ask success", "approval.void success", "approval.ask success"]);
    // A bot without the binding has no such call either.
    let id = gated.ask(&json!({ "any": 1 })).await?;
    gated.world.rebind(&gated.bound, &json!({ "enabled": false })).await?;
    assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 409);
    assert_eq!(gated.approval(&id).await?["status"], "void");
    Ok(())
}

#[tokio::test]
async fn a_decision_names_the_call_and_is_made_once() -> Result<()> {
    let gated = Gated::start().await?;
    let (id, other) = (gated.ask(&json!({})).await?, gated.ask(&json!({ "any": 1 })).await?);
    let digest = gated.approval(&id).await?["digest"].clone();
    let of_other = gated.approval(&other).await?["digest"].clone();
    let path = format!("/api/approvals/{id}");
    let mut answers = Answers::default();
    for (what, body) in [
        ("digest of another call", json!({ "decision": "approve", "digest": of_other })),
        ("no digest", json!({ "decision": "approve" })),
        ("malformed digest", json!({ "decision": "approve", "digest": "x" })),
        ("unknown decision", json!({ "decision": "maybe", "digest": digest })),
        ("long note", json!({ "decision": "deny", "digest": digest, "note": "x".repeat(1025) })),
        ("right", json!({ "decision": "approve", "digest": digest })),
        ("twice", json!({ "decision": "approve", "digest": digest })),
        ("the contrary", json!({ "decision": "deny", "digest": digest })),
    ] {
        let (status, answer) = gated.admin.post(&path, &body).await?;
        let why = if answer["errors"].is_null() { answer["detail"].clone() } else { answer["errors"].clone() };
        answers.add(what, (status, why));
    }
    assert_snapshot!(answers, @r#"
    digest of another call: 409 "the digest is not the digest of this approval; read the approval again"
    no digest: 422 [{"path":"/digest","message":"required field is missing"}]
    malformed digest: 422 [{"path":"/digest","message":"expected the `digest` of the approval"}]
    unknown decision: 422 [{"path":"/decision","message":"unknown variant `maybe`, expected `approve` or `deny`"}]
    long note: 422 [{"path":"/note","message":"must have at most 1024 bytes"}]
    right: 200
    twice: 409 "the approval is approved, not pending"
    the contrary: 409 "the approval is approved, not pending"
    "#);
    let (status, _) = gated.admin.post(&format!("/api/approvals/{}", ApprovalId::new()), &json!({})).await?;
    assert_eq!(status, 404);
    Ok(())
}

#[tokio::test]
async fn a_bot_reads_the_short_form_of_its_own_approvals() -> Result<()> {
    let gated = Gated::start().await?;
    let root = &gated.world.api;
    let id = gated.ask(&json!({})).await?;
    let own = root.with_key(&root.new_key("bot", Some(&gated.world.bot)).await?);
    let stranger = root.bot("stranger").await?;
    let (_, key) = root.post("/api/keys", &json!({ "name": "s", "kind": "bot", "bot_id": stranger })).await?;
    let stranger_key = root.with_key(text(&key["key"]));
    let path = format!("/api/approvals/{id}");
    let (status, short) = own.get(&path).await?;
    let fields: Vec<&str> = short.as_object().into_iter().flat_map(|short| short.keys().map(String::as_str)).collect();
    assert_eq!((status, fields), (200, vec!["id", "status", "expires_at"]));
    assert_eq!(own.get("/api/approvals").await?.1["items"], json!([short]));
    assert_eq!(stranger_key.get(&path).await?.0, 404);
    assert_eq!(stranger_key.get("/api/approvals").await?.1["items"], json!([]));
    let of_other = format!("/api/approvals?bot_id={}", gated.world.bot);
    assert_eq!(stranger_key.get(&of_other).await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn lists_are_filtered() -> Result<()> {
    let gated = Gated::start().await?;
    let (first, second) = (gated.ask(&json!({ "any": 1 })).await?, gated.ask(&json!({ "any": 2 })).await?);
    ensure!(gated.decide_as(&gated.admin, &first, "deny").await?.0 == 200);
    let ids = async |query: &str| {
        let (status, list) = gated.admin.get(&format!("/api/approvals{query}")).await?;
        ensure!(status == 200, "{list}");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        anyhow::Ok(items.iter().map(|item| text(&item["id"]).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(ids("").await?, [first.clone(), second.clone()]);
    assert_eq!(ids("?status=pending").await?, std::slice::from_ref(&second));
    assert_eq!(ids("?status=denied&kind=call").await?, std::slice::from_ref(&first));
    assert_eq!(ids(&format!("?bot_id={}&limit=1", gated.world.bot)).await?, [first]);
    for query in ["?status=open", "?kind=steps", "?bot_id=x"] {
        assert_eq!(gated.admin.get(&format!("/api/approvals{query}")).await?.0, 422, "{query}");
    }
    Ok(())
}

/// A list shows approvals as they are shown by themselves, except for large parameters.
#[tokio::test]
async fn lists_omit_only_large_parameters() -> Result<()> {
    let gated = Gated::start().await?;
    // The parameters are written as `{"any":"…"}`.
    let sized = |bytes: usize| json!({ "any": "x".repeat(bytes - 10) });
    let (small, large) = (gated.ask(&sized(4096)).await?, gated.ask(&sized(4097)).await?);
    let huge = gated.ask(&sized(100_000)).await?;
    let (status, list) = gated.admin.get("/api/approvals").await?;
    ensure!(status == 200, "{list}");
    assert_eq!(list["items"][0], gated.approval(&small).await?);
    for (index, id) in [(1_usize, &large), (2, &huge)] {
        let mut whole = gated.approval(id).await?;
        ensure!(whole.get("params_omitted").is_none(), "{whole}");
        let whole = whole.as_object_mut().context("an object")?;
        ensure!(whole.remove("params").is_some_and(|params| params["any"].is_string()));
        whole.insert("params_omitted".to_owned(), json!(true));
        assert_eq!(list["items"][index], json!(whole));
    }
    Ok(())
}

/// Members of an approval that do not apply are absent.
#[tokio::test]
async fn an_approval_has_only_members_that_apply() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.ask(&json!({})).await?;
    let has = |approval: &Value| {
        let optional = ["user", "request_id", "decided_by", "decided_at", "note", "url", "params_omitted"];
        optional.into_iter().filter(|member| approval.get(member).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(has(&gated.approval(&id).await?), Vec::<&str>::new());
    gated.approve(&id).await?;
    ensure!(succeeded(&gated.call(&json!({})).await?));
    let (_, list) = gated.admin.get("/api/approvals?status=used").await?;
    assert_eq!(has(&list["items"][0]), ["request_id", "decided_by", "decided_at"]);
    Ok(())
}

/// Returns the row of an approval of the bot that expired a moment ago.
fn expired(gated: &Gated, workspace: &str, status: ApprovalStatus) -> Result<ApprovalRow> {
    let now = SystemClock.now();
    let digest = format!("sha256:{}", "ab".repeat(32)).parse()?;
    Ok(ApprovalRow {
        id: ApprovalId::new(),
        workspace_id: workspace.parse()?,
        kind: ApprovalKind::Call,
        definition: format!("sha256:{}", "cd".repeat(32)).parse()?,
        digest,
        status,
        bot_id: gated.world.bot.parse()?,
        app_id: None,
        user_id: None,
        tool: Some(TOOL.to_owned()),
        resource_id: Some(gated.bound.resource.parse()?),
        operation: Some("echo.read".to_owned()),
        effect: Some("write".to_owned()),
        links: json!([]),
        labels: json!([]),
        gates: json!([]),
        approvers: json!(["admin"]),
        allow_starter: false,
        asked_key: None,
        asked_task: None,
        request_id: None,
        created_at: now.plus_ms(-60_000),
        expires_at: now.plus_ms(-1),
        decided_by: None,
        decided_at: None,
        note: None,
        ended_at: None,
        changed_at: now,
        run_id: None,
        run_step: None,
        item: None,
        targets: None,
        starters: None,
    })
}

#[tokio::test]
async fn an_expired_approval_is_not_decided() -> Result<()> {
    let gated = Gated::start().await?;
    let (_, workspaces) = gated.world.api.get("/api/workspaces").await?;
    let workspace = text(&workspaces["items"][0]["id"]).to_owned();
    let row = expired(&gated, &workspace, ApprovalStatus::Pending)?;
    let data = gated.world.server.data_dir();
    let options = StoreOptions::sqlite(data.join("monstrum.db"));
    let store = row_seals::open_with_key_file(options, &data.join("master.key")).await?;
    let max = PendingMax { of_bot: 100, of_workspace: 100 };
    ensure!(matches!(store.ask_approval(&row, "sealed", None, max).await?, AskedApproval::New(_)));
    store.close().await;
    let id = row.id.to_string();
    let body = json!({ "decision": "approve", "digest": row.digest });
    let (status, answer) = gated.admin.post(&format!("/api/approvals/{id}"), &body).await?;
    assert_eq!(status, 409, "{answer}");
    let listed = eventually("the approval has expired", async || {
        let (_, list) = gated.admin.get("/api/approvals?status=expired").await?;
        Ok(list["items"].as_array().filter(|items| !items.is_empty()).cloned())
    });
    assert_eq!(listed.await?[0]["id"], Value::from(id));
    // The audit records the end of the change after the change.
    eventually("the change is recorded", async || {
        Ok(gated.changes().await?.contains(&"approval.expire success".to_owned()).then_some(()))
    })
    .await?;
    ensure!(!succeeded(&gated.world.call(TOOL, &json!({})).await?), "the gate is in force");
    Ok(())
}

/// Replaces the pending approval of a call with one that expired a moment ago. `is_approved`: a person had approved it.
async fn expire(gated: &Gated, id: &str, is_approved: bool) -> Result<()> {
    let data = gated.world.server.data_dir();
    let options = StoreOptions::sqlite(data.join("monstrum.db"));
    let store = row_seals::open_with_key_file(options, &data.join("master.key")).await?;
    let workspace = store.workspace_named(DEFAULT_WORKSPACE).await?.context("the default workspace does not exist")?.id;
    let row = store.approval(workspace, id.parse()?).await?.context("the approval does not exist")?;
    let sealed = store.approval_params(workspace, row.id).await?.context("the approval has no parameters")?;
    sqlite(&data, &["delete from approvals"]).await?;
    let now = SystemClock.now();
    let row = ApprovalRow { created_at: now.plus_ms(-60_000), expires_at: now.plus_ms(-1), ..row };
    let max = PendingMax { of_bot: 100, of_workspace: 100 };
    ensure!(matches!(store.ask_approval(&row, &sealed, None, max).await?, AskedApproval::New(_)));
    if is_approved {
        let at = now.plus_ms(-30_000);
        let decided = store.decide_approval(&row, ApprovalDecision::Approve, KeyId::new(), None, at).await?;
        ensure!(decided.is_some_and(|(row, _)| row.status == ApprovalStatus::Approved));
    }
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn the_call_of_an_expired_approval_asks_anew() -> Result<()> {
    for is_approved in [false, true] {
        let gated = Gated::start().await?;
        let id = gated.ask(&json!({})).await?;
        expire(&gated, &id, is_approved).await?;
        let anew = gated.ask(&json!({})).await?;
        assert_ne!(anew, id);
        eventually("the approval has expired", async || {
            Ok((gated.approval(&id).await?["status"] == "expired").then_some(()))
        })
        .await?;
        assert_eq!(gated.approval(&anew).await?["digest"], gated.approval(&id).await?["digest"], "the same call");
        assert_eq!(gated.decide_as(&gated.admin, &id, "approve").await?.0, 409);
        gated.approve(&anew).await?;
        ensure!(succeeded(&gated.call(&json!({})).await?));
    }
    Ok(())
}
