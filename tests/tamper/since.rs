//! Verification of the rows after a signed head.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{DISARM, HEADS, Record, sqlite};

/// Verifies the rows after a head. Returns the exit code and the report.
async fn verify_since(record: &Record, copy: &Path, head: &str) -> Result<(Option<i32>, Value)> {
    let folder = copy.to_str().context("a temporary folder has a plain name")?;
    let arguments = ["audit", "verify", "--since-head", head, "--data-dir", folder, "--json"];
    let output = record.world.server.command(&arguments).await?;
    let report = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no report: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output.status.code(), report))
}

/// Rows before the head are not checked, and the rows after the head must form a chain that follows the head.
#[tokio::test]
async fn rows_after_a_head_are_verified_alone() -> Result<()> {
    let record = Record::make().await?;
    let copy = record.copy()?;
    let heads = std::fs::read_to_string(copy.join(HEADS))?;
    let sequences: Vec<i64> = heads
        .lines()
        .map(|line| serde_json::from_str::<Value>(line)?["sequence"].as_i64().context("a head has a sequence"))
        .collect::<Result<_>>()?;
    let middle = *sequences.iter().rfind(|sequence| **sequence < 20).context("an earlier head")?;
    assert!(middle > 0, "{sequences:?}");
    let (code, report) = verify_since(&record, &copy, "latest").await?;
    assert_eq!(
        (code, &report["rows"], &report["since_head"]["sequence"]),
        (Some(0), &json!(0), &json!(20)),
        "{report}"
    );
    // The newest head of row 19 or of an earlier row is used.
    let (code, report) = verify_since(&record, &copy, "19").await?;
    assert_eq!((code, &report["rows"]), (Some(0), &json!(20 - middle)), "{report}");
    assert_eq!(report["since_head"]["sequence"], middle);
    let (_, report) = verify_since(&record, &copy, "0").await?;
    assert_eq!((&report["valid"], &report["rows"]), (&json!(true), &json!(20)), "{report}");

    let edit = |sequence: i64| format!("update audit_rows set operation = 'x' where sequence = {sequence}");
    for (statement, head, is_valid) in [
        (edit(1), "latest", true),
        (edit(middle), "19", true),
        (edit(middle + 1), "19", false),
        (edit(20), "19", false),
        (format!("delete from audit_rows where sequence = {}", middle + 1), "19", false),
        ("delete from audit_rows where sequence = 20".to_owned(), "19", false),
        ("delete from audit_rows where sequence = 20".to_owned(), "latest", false),
        (format!("delete from audit_rows where sequence = {middle}"), "19", false),
        ("update audit_rows set hash = zeroblob(32) where sequence = 20".to_owned(), "latest", false),
    ] {
        let copy = record.copy()?;
        sqlite(&copy, &[DISARM, &[&statement]].concat()).await?;
        let (code, report) = verify_since(&record, &copy, head).await?;
        assert_eq!((code == Some(0), &report["valid"]), (is_valid, &json!(is_valid)), "{statement} {head}: {report}");
    }
    for head in ["never", "-1", "1.5"] {
        let refused = record.world.server.command(&["audit", "verify", &format!("--since-head={head}")]).await?;
        assert_eq!(refused.status.code(), Some(2), "{head}");
    }
    Ok(())
}

/// Verification does not begin at a forged head.
#[tokio::test]
async fn rows_are_not_verified_after_a_forged_head() -> Result<()> {
    let record = Record::make().await?;
    let copy = record.copy()?;
    let heads = std::fs::read_to_string(copy.join(HEADS))?;
    std::fs::write(copy.join(HEADS), heads.replace("\"sequence\":", "\"sequence\":1"))?;
    for head in ["latest", "19"] {
        let (code, report) = verify_since(&record, &copy, head).await?;
        ensure!(code == Some(1) && report["since_head"].is_null(), "{head}: {report}");
    }
    std::fs::remove_file(copy.join(HEADS))?;
    for head in ["latest", "19"] {
        assert_eq!(verify_since(&record, &copy, head).await?.0, Some(1));
    }
    Ok(())
}

#[tokio::test]
async fn a_server_verifies_rows_after_a_head() -> Result<()> {
    let mut record = Record::make().await?;
    record.world.server.launch().await?;
    let api = record.world.server.api()?;
    let (status, report) = api.get("/api/audit/verify?since_head=latest").await?;
    assert_eq!((status, &report["valid"], &report["rows"]), (200, &json!(true), &json!(0)), "{report}");
    assert_eq!(report["since_head"]["sequence"], 20);
    let (status, report) = api.get("/api/audit/verify?since_head=0").await?;
    assert_eq!((status, &report["valid"], &report["rows"]), (200, &json!(true), &json!(20)), "{report}");
    let (status, problem) = api.get("/api/audit/verify?since_head=yesterday").await?;
    ensure!(status == 422 && problem.to_string().contains("expected `latest` or"), "{status} {problem}");
    let output = record.world.server.command(&["audit", "verify", "--since-head"]).await?;
    let shown = String::from_utf8_lossy(&output.stdout);
    ensure!(shown.contains("verified after row 20, which a signed head covers: 0 rows"), "{shown}");
    Ok(())
}
