//! `serve --audit-keep`, an audit of an earlier release, and PostgreSQL.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Postgres, Server};

use super::{FUTURE, verify, verify_archive};
use crate::cli::{parsed, run};
use crate::postgres::server_on;
use crate::tamper::sqlite;
use crate::world::{World, eventually};

/// A data folder of an earlier release. Its rows are several days old. Some have version 1 and some have version 2.
async fn old_rows() -> Result<Server> {
    let server = Server::prepare_on_fixture("7ca6635")?;
    let sealed = run(&server, &["vault", "seal", "--yes"]).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    Ok(server)
}

#[tokio::test]
async fn rows_of_both_versions_are_archived() -> Result<()> {
    let mut server = old_rows().await?;
    let versions = "select (select count(*) from audit_events) > 0, (select count(*) from audit_rows) > 0";
    assert_eq!(sqlite(&server.data_dir(), &[versions]).await?, json!([[1, 1]]));
    let rows = verify(&server).await?["rows"].clone();
    let (code, done) = parsed(&server, &["audit", "archive", "--before", FUTURE]).await?;
    assert_eq!((code, &done["rows"]), (Some(0), &rows), "{done}");
    let folder = server.data_dir().join("audit-archive");
    assert_eq!(verify_archive(&server, &folder).await?["rows"], rows);
    let report = verify(&server).await?;
    assert_eq!((&report["valid"], &report["archived_rows"]), (&json!(true), &rows), "{report}");
    server.launch().await?;
    assert_eq!(server.api()?.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn a_server_archives_old_rows_by_itself() -> Result<()> {
    let mut server = old_rows().await?.argument("--audit-keep").argument("1d");
    server.launch().await?;
    let api = server.api()?;
    let report = eventually("old rows are archived", async || {
        let report = api.verify_audit().await?;
        Ok(Some(report).filter(|report| report["archived_rows"].is_u64()))
    })
    .await?;
    assert_eq!(report["valid"], true, "{report}");
    let (_, metrics) = api.get("/metrics").await?;
    let expected = format!("monstrum_audit_archived_rows_total {}", report["archived_rows"]);
    ensure!(metrics.to_string().contains(&expected), "{metrics}");
    let (_, changes) = api.get("/api/audit/changes").await?;
    let archive =
        changes["items"].as_array().context("a list")?.iter().find(|change| change["change"] == "audit.archive");
    let archive = archive.context("the archive is recorded")?;
    assert_eq!((&archive["key_kind"], &archive["after"]["rows"]), (&json!("server"), &report["archived_rows"]));
    let folder = server.data_dir().join("audit-archive");
    assert_eq!(verify_archive(&server, &folder).await?["rows"], report["archived_rows"]);
    server.stop().await?;
    assert_eq!(verify(&server).await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn a_server_that_cannot_archive_goes_on_and_says_so() -> Result<()> {
    let mut server = old_rows().await?.argument("--audit-keep").argument("1d");
    // A file has the name of the archive folder, so the folder cannot be created.
    std::fs::write(server.data_dir().join("audit-archive"), "")?;
    let rows = verify(&server).await?["rows"].as_u64();
    server.launch().await?;
    let api = server.api()?;
    eventually("the failure is counted", async || {
        let (_, metrics) = api.get("/metrics").await?;
        Ok(metrics.to_string().contains("monstrum_audit_archive_failures_total 1").then_some(()))
    })
    .await?;
    let report = api.verify_audit().await?;
    ensure!(report["valid"] == true && report["rows"].as_u64() >= rows, "{report}");
    server.stop().await?;

    let findings = async || {
        let (_, report) = parsed(&server, &["doctor", "--audit-keep", "1d"]).await?;
        let findings: Vec<Value> = report["findings"].as_array().context("findings")?.clone();
        anyhow::Ok(findings.into_iter().filter(|finding| finding["about"] == "audit").collect::<Vec<_>>())
    };
    let older = "update audit_events set at = at - 864000000 where sequence = 1";
    sqlite(&server.data_dir(), &["drop trigger audit_events_no_update", older]).await?;
    let found = findings().await?;
    ensure!(found.len() == 1 && found[0]["severity"] == "weak", "{found:?}");
    ensure!(found[0]["what"].to_string().contains("not archived"), "{found:?}");
    Ok(())
}

#[tokio::test]
async fn an_audit_in_postgresql_is_archived() -> Result<()> {
    let postgres = Postgres::start(&[])?;
    postgres.sql("postgres", "create database monstrum")?;
    let mut world = World::on(server_on(&postgres.url("monstrum"))?).await?;
    world.grant_all("github").await?;
    world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    world.server.stop().await?;
    let rows = verify(&world.server).await?["rows"].clone();
    let (code, done) = parsed(&world.server, &["audit", "archive", "--before", FUTURE]).await?;
    assert_eq!((code, &done["rows"]), (Some(0), &rows), "{done}");
    let folder = world.server.data_dir().join("audit-archive");
    assert_eq!(verify_archive(&world.server, &folder).await?["rows"], rows);
    assert_eq!(postgres.sql("monstrum", "select count(*) from audit_rows")?, "2");
    world.server.launch().await?;
    world.api = world.server.api()?;
    let answer = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    assert_eq!(answer["status"], "success", "{answer}");
    let report = world.api.verify_audit().await?;
    assert_eq!((&report["valid"], &report["archived_rows"]), (&json!(true), &rows), "{report}");
    world.server.stop().await?;
    postgres.sql("monstrum", "drop function audit_anchors_refuse() cascade; delete from audit_anchors")?;
    let report = verify(&world.server).await?;
    ensure!(report["problems"].to_string().contains(" are missing"), "{report}");
    Ok(())
}
