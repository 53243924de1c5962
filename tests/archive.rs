//! The archive of the audit: `audit archive`, `audit verify --archive` and `serve --audit-keep`. Rows are deleted from
//! the database only after their files are complete, and every change of files, anchors and remaining rows is detected.

mod attacks;
mod ends;
mod server;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, run, told};
use crate::tamper::sqlite;
use crate::world::World;

/// A date that is later than every row.
const FUTURE: &str = "2999-01-01";

/// A stopped server whose audit has rows of calls and changes.
struct Archived {
    world: World,
}

impl Archived {
    async fn make() -> Result<Archived> {
        let mut world = World::with(&["test-echo"]).await?;
        world.grant_all("test-echo").await?;
        for _ in 0..3 {
            world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
        }
        let status = world.server.stop().await?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(Archived { world })
    }

    fn server(&self) -> &Server {
        &self.world.server
    }

    fn folder(&self) -> PathBuf {
        self.server().data_dir().join("audit-archive")
    }

    /// Archives all rows that a head covers. Returns the number of archived rows.
    async fn archive(&self) -> Result<u64> {
        let (code, done) = parsed(self.server(), &["audit", "archive", "--before", FUTURE]).await?;
        ensure!(code == Some(0), "{done}");
        done["rows"].as_u64().context("a number of rows")
    }

    async fn verify(&self) -> Result<Value> {
        verify(self.server()).await
    }

    /// Verifies the archive. Returns the report.
    async fn verify_archive(&self) -> Result<Value> {
        verify_archive(self.server(), &self.folder()).await
    }

    /// Returns the findings of `doctor` about the audit.
    async fn diagnosis(&self) -> Result<Vec<String>> {
        let (_, report) = parsed(self.server(), &["doctor"]).await?;
        let findings = report["findings"].as_array().context("a report has findings")?;
        let of_audit = findings.iter().filter(|finding| finding["about"] == "audit");
        Ok(of_audit.map(|finding| finding["what"].to_string()).collect())
    }

    /// Starts the server, makes one call, and stops the server.
    async fn call_again(&mut self) -> Result<()> {
        self.world.server.launch().await?;
        self.world.api = self.world.server.api()?;
        let answer = self.world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
        ensure!(answer["status"] == "success", "{answer}");
        self.world.server.stop().await?;
        Ok(())
    }
}

async fn verify(server: &Server) -> Result<Value> {
    let folder = server.data_dir();
    let folder = folder.to_str().context("a temporary folder has a plain name")?;
    Ok(parsed(server, &["audit", "verify", "--data-dir", folder]).await?.1)
}

async fn verify_archive(server: &Server, path: &std::path::Path) -> Result<Value> {
    let path = path.to_str().context("a temporary folder has a plain name")?;
    let (code, report) = parsed(server, &["audit", "verify", "--archive", path]).await?;
    ensure!((code == Some(0)) == (report["valid"] == true), "{code:?} {report}");
    Ok(report)
}

#[tokio::test]
async fn archived_rows_leave_the_database_and_can_be_verified() -> Result<()> {
    let mut archived = Archived::make().await?;
    let rows = archived.verify().await?["rows"].as_u64().context("a number")?;
    let told_before = told(archived.server(), &["audit", "archive", "--before", "2020-01-01"]).await?;
    ensure!(told_before.contains("nothing to archive before") && told_before.contains("[exit 0]"), "{told_before}");
    let moved = archived.archive().await?;
    assert_eq!(moved, rows);
    let report = archived.verify().await?;
    // The audit records the archived segment as a change, which has two rows.
    assert_eq!(report, json!({ "valid": true, "rows": 2, "archived_rows": moved, "problems": [] }));
    let report = archived.verify_archive().await?;
    assert_eq!(report, json!({ "valid": true, "segments": 1, "rows": moved, "problems": [] }));
    assert_eq!(archived.diagnosis().await?, [""; 0]);

    archived.world.server.launch().await?;
    archived.world.api = archived.world.server.api()?;
    let (_, calls) = archived.world.api.get("/api/audit").await?;
    assert_eq!(calls["items"], json!([]), "the calls were archived");
    let (_, changes) = archived.world.api.get("/api/audit/changes").await?;
    let change = &changes["items"][0];
    assert_eq!((&change["change"], &change["status"]), (&json!("audit.archive"), &json!("success")));
    assert_eq!((&change["after"]["rows"], &change["after"]["first_sequence"]), (&json!(moved), &json!(1)));
    let answer = archived.world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
    assert_eq!(archived.world.audit_of(&answer).await?["status"], "success");
    let (status, export) = archived.world.api.get("/api/audit/export").await?;
    // An export with one line can be parsed as a single JSON value.
    assert_eq!((status, &export["tool"]), (200, &json!("test_echo_fetch")));
    let report = archived.world.api.verify_audit().await?;
    assert_eq!((&report["valid"], &report["rows"], &report["archived_rows"]), (&json!(true), &json!(4), &json!(moved)));
    let shown = told(archived.server(), &["audit", "verify"]).await?;
    ensure!(shown.contains(&format!("audit chain verified: 4 rows after {moved} archived rows")), "{shown}");
    // The archive can be verified while the server is running. Rows can be archived by command only while the server is
    // stopped.
    assert_eq!(archived.verify_archive().await?["valid"], true);
    let refused = told(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(
        refused.contains("another monstrum process uses the data folder") && refused.contains("[exit 1]"),
        "{refused}"
    );
    archived.world.server.stop().await?;

    // If the head covers only archived rows, verification begins after the anchor.
    let folder = archived.server().data_dir();
    let folder = folder.to_str().context("a plain name")?;
    let since = ["audit", "verify", "--since-head", "5", "--data-dir", folder];
    let (code, report) = parsed(archived.server(), &since).await?;
    assert_eq!(
        (code, &report["rows"], &report["since_head"]["sequence"]),
        (Some(0), &json!(4), &json!(moved)),
        "{report}"
    );
    assert_eq!(archived.archive().await?, 4);
    let report = archived.verify_archive().await?;
    assert_eq!(report, json!({ "valid": true, "segments": 2, "rows": moved + 4, "problems": [] }));
    assert_eq!(archived.verify().await?["valid"], true);
    archived.call_again().await?;
    assert_eq!(archived.verify().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn rows_can_be_archived_to_another_folder() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let archived = Archived::make().await?;
    let elsewhere = archived.server().home().join("elsewhere");
    let to = elsewhere.to_str().context("a plain name")?;
    let output = run(archived.server(), &["audit", "archive", "--before", FUTURE, "--to", to]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(&elsewhere)?.permissions().mode() & 0o777, 0o700);
    ensure!(!archived.folder().exists());
    for entry in std::fs::read_dir(&elsewhere)? {
        let entry = entry?;
        assert_eq!(entry.metadata()?.permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            assert_eq!(verify_archive(archived.server(), &entry.path()).await?["valid"], true);
        }
    }
    assert_eq!(verify_archive(archived.server(), &elsewhere).await?["valid"], true);
    assert_eq!(archived.verify().await?["valid"], true);
    Ok(())
}

/// If the file `node.id` was lost, the host begins a new chain, and no rows are added to the old chain.
#[tokio::test]
async fn all_rows_of_a_chain_can_be_archived() -> Result<()> {
    let mut archived = Archived::make().await?;
    std::fs::remove_file(archived.server().data_dir().join("node.id"))?;
    archived.call_again().await?;
    let (code, done) = parsed(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(code == Some(0) && done["segments"].as_array().map(Vec::len) == Some(2), "{done}");
    let report = archived.verify().await?;
    assert_eq!((&report["valid"], &report["archived_rows"]), (&json!(true), &done["rows"]), "{report}");
    assert_eq!(archived.verify_archive().await?["segments"], 2);
    assert_eq!(archived.diagnosis().await?, [""; 0]);
    archived.call_again().await?;
    assert_eq!(archived.verify().await?["valid"], true);
    Ok(())
}

/// A database that was backed up before rows were archived contains these rows again after a restore, and they are
/// archived again.
#[tokio::test]
async fn a_restored_backup_from_before_the_archive_is_archived_again() -> Result<()> {
    let mut archived = Archived::make().await?;
    let data_dir = archived.server().data_dir();
    let backup = tempfile::tempdir()?;
    for name in ["monstrum.db", "audit-heads.log"] {
        std::fs::copy(data_dir.join(name), backup.path().join(name))?;
    }
    let moved = archived.archive().await?;
    std::fs::copy(backup.path().join("monstrum.db"), data_dir.join("monstrum.db"))?;
    assert!(!archived.diagnosis().await?.is_empty(), "the heads are newer than the database");
    std::fs::copy(backup.path().join("audit-heads.log"), data_dir.join("audit-heads.log"))?;
    assert_eq!(archived.verify().await?["rows"], moved);
    assert_eq!(archived.verify_archive().await?["valid"], true, "the rows are in the database");
    archived.call_again().await?;
    assert_eq!(archived.archive().await?, moved + 2);
    assert_eq!(archived.verify_archive().await?["segments"], 2);
    assert_eq!(archived.verify().await?["valid"], true);
    Ok(())
}

/// `doctor` compares rows of an unverified scope with their last changes. It does not report archived changes as
/// missing.
#[tokio::test]
async fn archived_changes_are_no_differences() -> Result<()> {
    let archived = Archived::make().await?;
    archived.archive().await?;
    sqlite(&archived.server().data_dir(), &["update roles set name = 'edited'"]).await?;
    let (_, report) = parsed(archived.server(), &["doctor"]).await?;
    let findings = report["findings"].as_array().context("a report has findings")?;
    let is_of_scope = |finding: &&Value| finding["about"].as_str().is_some_and(|about| about.starts_with("scope "));
    let of_scope: Vec<_> = findings.iter().filter(is_of_scope).map(|finding| finding["what"].to_string()).collect();
    ensure!(of_scope.len() == 1, "{report}");
    ensure!(of_scope[0].contains("are in the archive of the audit and were not compared"), "{of_scope:?}");
    ensure!(!of_scope[0].contains("is missing; the audit") && !of_scope[0].contains("differs from"), "{of_scope:?}");
    Ok(())
}
