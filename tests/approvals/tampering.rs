//! An attacker with write access to the database only. The attacker cannot make a call run without an approval.

use anyhow::{Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};

use super::{FETCH, Gated, asked, succeeded};
use crate::tamper::sqlite;

/// Announces a change, so that the host reads the rows again.
const BELL: &str = "update settings set generation = generation + 1";
const KEEP: &[&str] = &[
    "create table kept_approvals as select * from approvals",
    "create table kept_grants as select * from approval_grants",
];

/// An approval that a call has used, with its rows from before the use.
async fn used() -> Result<Gated> {
    let gated = Gated::start().await?;
    let id = asked(&gated.world.call(FETCH, &params()).await?)?;
    gated.approve(&id).await?;
    attack(&gated, KEEP).await?;
    let answer = gated.world.call(FETCH, &params()).await?;
    ensure!(succeeded(&answer) && gated.world.github.requests().len() == 1, "{answer}");
    Ok(gated)
}

fn params() -> Value {
    json!({ "path": "/echo" })
}

async fn attack(gated: &Gated, statements: &[&str]) -> Result<()> {
    let statements = [&["begin immediate"], statements, &["commit"]].concat();
    sqlite(&gated.world.server.data_dir(), &statements).await?;
    Ok(())
}

#[rstest]
#[case::status(&["update approvals set status = 'approved', request_id = null, ended_at = null"])]
#[case::old_row(&["delete from approvals", "insert into approvals select * from kept_approvals"])]
#[case::old_grant(&["insert into approval_grants select * from kept_grants"])]
#[case::both(&[
    "delete from approvals", "insert into approvals select * from kept_approvals",
    "insert into approval_grants select * from kept_grants",
])]
#[tokio::test]
async fn a_used_approval_that_is_set_back_runs_nothing(
    #[case] statements: &[&str],
    #[values(false, true)] is_announced: bool,
) -> Result<()> {
    let gated = used().await?;
    let bell: &[&str] = if is_announced { &[BELL] } else { &[] };
    attack(&gated, &[statements, bell].concat()).await?;
    for _ in 0..3 {
        let path = format!("/api/bots/{}/tools/{FETCH}/call", gated.world.bot);
        let (status, answer) = gated.world.api.post(&path, &json!({ "params": params() })).await?;
        ensure!(status != 200 || !succeeded(&answer), "{answer}");
    }
    assert_eq!(gated.world.github.requests().len(), 1, "nothing has reached the upstream");
    Ok(())
}

/// A pending approval that the attacker approves permits nothing, and other people cannot be made to approve it.
#[rstest]
#[case::status(&["update approvals set status = 'approved'"])]
#[case::grant(&[
    "insert into approval_grants (id, workspace_id, digest, expires_at, mac) \
     select id, workspace_id, digest, expires_at, mac from approvals",
])]
#[case::approvers(&["update approvals set approvers = '[\"operator\"]'"])]
#[case::starter(&["update approvals set allow_starter = 1"])]
#[tokio::test]
async fn a_pending_approval_that_is_edited_runs_nothing(#[case] statements: &[&str]) -> Result<()> {
    let gated = Gated::start().await?;
    let id = asked(&gated.world.call(FETCH, &params()).await?)?;
    let digest = gated.approval(&id).await?["digest"].clone();
    let operator = gated.world.api.with_key(&gated.world.api.new_key("operator", None).await?);
    attack(&gated, &[statements, &[BELL]].concat()).await?;
    for api in [&operator, &gated.world.api] {
        let body = json!({ "decision": "approve", "digest": digest });
        let (status, answer) = api.post(&format!("/api/approvals/{id}"), &body).await?;
        ensure!(status != 200, "{answer}");
    }
    let path = format!("/api/bots/{}/tools/{FETCH}/call", gated.world.bot);
    let (status, answer) = gated.world.api.post(&path, &json!({ "params": params() })).await?;
    ensure!(status != 200 || !succeeded(&answer), "{answer}");
    assert_eq!(gated.world.github.requests().len(), 0);
    Ok(())
}
