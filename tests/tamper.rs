//! A person with write access to a server's files can change its audit, but the change is detected. Every edit,
//! deletion or reordering of a row, and every truncation behind a signed head, is found.

mod since;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt};
use rstest::rstest;
use serde_json::{Value, json};
pub(crate) use support::sqlite;
use tempfile::TempDir;

use crate::world::{World, text};

/// The statements that an intruder runs first.
const DISARM: &[&str] = &["drop trigger audit_rows_no_update", "drop trigger audit_rows_no_delete"];
const HEADS: &str = "audit-heads.log";
/// The maximum number of concurrent checks.
const AT_ONCE: usize = 4;

/// The data folder of a stopped server, with twenty rows of audit from two runs, and therefore several heads. Ten rows
/// are from the set-up, two from a change, and eight from calls.
struct Record {
    world: World,
    copies: TempDir,
}

impl Record {
    async fn make() -> Result<Record> {
        let mut world = World::with(&["test-echo"]).await?;
        world.grant("test-echo", &["echo.*", "fetch.*"], &json!({ "repos": ["acme/*"] })).await?;
        for tool in ["test_echo_run", "test_echo_unhandled", "no_such_tool"] {
            world.call(tool, &json!({ "repo": "acme/site" })).await?;
        }
        world.call("test_echo_run", &json!({ "repo": "other/x" })).await?;
        world.server.restart().await?;
        world.api = world.server.api()?;
        let again = world
            .api
            .post(&format!("/api/bots/{}/tools/test_echo_run/call", world.bot), &json!({ "task_id": "t" }))
            .await?;
        ensure!(again.0 == 200, "{}", again.1);
        world.call("test_echo_mismatch", &json!({ "repo": "acme/site" })).await?;
        let bindings = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?.1;
        let binding = bindings["items"][0]["id"].as_str().context("the binding has no id")?;
        world
            .api
            .patch(&format!("/api/bots/{}/resources/{binding}", world.bot), &json!({ "scope_constraints": {} }))
            .await?;
        // This call sends a request, so it has a row before its end.
        world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
        let status = world.server.stop().await?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(Record { world, copies: tempfile::tempdir()? })
    }

    /// Copies the data folder for one attack.
    fn copy(&self) -> Result<PathBuf> {
        let copy = tempfile::Builder::new().tempdir_in(self.copies.path())?.keep();
        for entry in std::fs::read_dir(self.world.server.data_dir())? {
            let entry = entry?;
            // The cache of compiled components is not needed.
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), copy.join(entry.file_name()))?;
            }
        }
        Ok(copy)
    }

    /// Verifies a data folder with the command line. Returns the exit code and the report.
    async fn verify(&self, data_dir: &Path) -> Result<(Option<i32>, Value)> {
        let folder = data_dir.to_str().context("the name of the temporary folder is not UTF-8")?;
        let output = self.world.server.command(&["audit", "verify", "--data-dir", folder, "--json"]).await?;
        let report = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("no report: {}", String::from_utf8_lossy(&output.stderr)))?;
        Ok((output.status.code(), report))
    }

    /// Runs statements on the database of a copy. If the last statement changed anything, verifies the copy, and fails
    /// unless a problem is found at `sequence`. Returns whether anything changed.
    async fn found(&self, statements: &[&str], sequence: i64) -> Result<bool> {
        let copy = self.copy()?;
        let statements = [DISARM, statements, &["select changes()"]].concat();
        if sqlite(&copy, &statements).await? == json!([[0]]) {
            return Ok(false);
        }
        let (code, report) = self.verify(&copy).await?;
        std::fs::remove_dir_all(&copy)?;
        ensure!(code == Some(1) && report["valid"] == false, "not found: {code:?} {report}");
        let problems = report["problems"].as_array().context("the problems are not a list")?;
        ensure!(problems.iter().any(|problem| problem["sequence"] == sequence), "the row is not named: {report}");
        Ok(true)
    }
}

#[tokio::test]
async fn a_record_that_nobody_touched_is_valid() -> Result<()> {
    let record = Record::make().await?;
    let (code, report) = record.verify(&record.copy()?).await?;
    assert_eq!((code, report), (Some(0), json!({ "valid": true, "rows": 20, "problems": [] })));
    // Removing the triggers does not matter, because they only prevent accidents.
    let copy = record.copy()?;
    sqlite(&copy, DISARM).await?;
    assert_eq!(record.verify(&copy).await?.0, Some(0));
    Ok(())
}

/// Returns the values that replace the value in the column `name`.
fn edits_of(name: &str, is_text: bool) -> Vec<String> {
    let values: &[&str] = match name {
        "sequence" => &["100", "-5", "'x'"],
        "kind" => &["'started'", "'interrupted'", "'Finished'"],
        "hash" => &["x'00'", "hex(COLUMN)", "cast(COLUMN as text)", "zeroblob(32)"],
        "request_id" | "workspace_id" | "bot_id" => {
            &["hex(COLUMN)", "zeroblob(16)", "cast(COLUMN as text)", "x'00' || COLUMN", "substr(COLUMN, 2)", "null"]
        }
        "body" => &[
            "replace(COLUMN, 'success', 'failure')",
            "replace(COLUMN, '{', '{ ')",
            "COLUMN || ' '",
            "cast(COLUMN as blob)",
            "'{}'",
            "replace(COLUMN, '\"v\":2', '\"v\":2,\"x\":1')",
        ],
        _ if is_text => &["'x'", "coalesce(COLUMN, '') || ' '", "coalesce(COLUMN, '')", "x'00'", "null"],
        _ => &["coalesce(COLUMN, 0) + 1", "'x'", "coalesce(COLUMN, 0)", "null"],
    };
    let edit = |value: &&str| {
        format!("update or ignore audit_rows set COLUMN = {value} where sequence = 13 and COLUMN is not ({value})")
    };
    values.iter().map(edit).map(|edit| edit.replace("COLUMN", name)).collect()
}

#[tokio::test]
async fn every_edit_of_every_column_is_found() -> Result<()> {
    let record = Record::make().await?;
    let columns = sqlite(&record.copy()?, &["select name, lower(type) from pragma_table_info('audit_rows')"]).await?;
    let columns = columns.as_array().context("the table has no columns")?;
    assert_eq!(columns.len(), 13);
    let edits = columns.iter().flat_map(|column| edits_of(text(&column[0]), column[1] == "text"));
    let tried = edits.map(|edit| {
        let record = &record;
        async move {
            let found = record.found(&[&edit], 13).await;
            (found.as_ref().ok().copied(), found.err().map(|missed| format!("{edit}: {missed:#}")))
        }
    });
    let tried: Vec<_> = stream::iter(tried).buffer_unordered(AT_ONCE).collect().await;
    let missed: Vec<&String> = tried.iter().filter_map(|(_, missed)| missed.as_ref()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
    let changes = tried.iter().filter(|(found, _)| *found == Some(true)).count();
    assert!(changes > 45, "only {changes} edits changed anything");
    Ok(())
}

#[rstest]
#[case::one_in_the_middle(&["delete from audit_rows where sequence = 14"], 14)]
#[case::two_in_the_middle(&["delete from audit_rows where sequence in (14, 15)"], 14)]
#[case::the_first(&["delete from audit_rows where sequence = 1"], 1)]
#[case::the_last_behind_a_head(&["delete from audit_rows where sequence = 20"], 20)]
#[case::a_tail_behind_a_head(&["delete from audit_rows where sequence > 13"], 20)]
#[case::all(&["delete from audit_rows"], 20)]
#[case::one_and_the_gap_closed(&["delete from audit_rows where sequence = 14", "update audit_rows set sequence = sequence - 1 where sequence > 14"], 14)]
#[case::one_and_the_chain_mended(&[
    "update audit_rows set body = replace(body, json_extract(body, '$.previous_hash'),
        (select json_extract(body, '$.previous_hash') from audit_rows where sequence = 14)) where sequence = 15",
    "delete from audit_rows where sequence = 14",
    "update audit_rows set sequence = sequence - 1 where sequence > 14",
], 14)]
#[case::the_last_and_another_put_in_its_place(&[
    "create temp table kept as select * from audit_rows where sequence = 19",
    "delete from audit_rows where sequence = 20",
    "update kept set sequence = 20, body = replace(replace(body, '\"sequence\":19', '\"sequence\":20'),
        json_extract(body, '$.previous_hash'), lower(hex(hash)))",
    "insert into audit_rows select * from kept",
], 20)]
#[case::two_swapped(&[
    "update audit_rows set sequence = -14 where sequence = 14",
    "update audit_rows set sequence = 14 where sequence = 15",
    "update audit_rows set sequence = 15 where sequence = -14",
], 14)]
#[case::the_contents_of_two_swapped(&[
    "create temp table kept as select * from audit_rows where sequence in (14, 15)",
    "update audit_rows set (request_id, tool, operation, status, hash, body) =
        (select request_id, tool, operation, status, hash, body from kept where kept.sequence = 29 - audit_rows.sequence)
        where sequence in (14, 15)",
], 14)]
#[case::all_in_reverse(&[
    "update audit_rows set sequence = -sequence",
    "update audit_rows set sequence = 21 + sequence",
], 1)]
#[case::one_more_at_the_end(&[
    "create temp table kept as select * from audit_rows where sequence = 20",
    "update kept set sequence = 21, body = replace(replace(body, '\"sequence\":20', '\"sequence\":21'),
        json_extract(body, '$.previous_hash'), lower(hex(hash)))",
    "insert into audit_rows select * from kept",
], 21)]
#[case::one_more_before_the_first(&[
    "create temp table kept as select * from audit_rows where sequence = 1",
    "update kept set sequence = 0",
    "insert into audit_rows select * from kept",
], 0)]
#[case::the_chain_under_another_name(&["update audit_rows set writer = '019a0000-0000-7000-8000-000000000000'"], 20)]
#[case::a_second_chain(&[
    "create temp table kept as select * from audit_rows",
    "update kept set writer = '019a0000-0000-7000-8000-000000000000'",
    "insert into audit_rows select * from kept",
], 1)]
#[tokio::test]
async fn what_is_removed_moved_or_added_is_found(#[case] statements: &[&str], #[case] sequence: i64) -> Result<()> {
    let is_changed = Record::make().await?.found(statements, sequence).await?;
    assert!(is_changed);
    Ok(())
}

/// The changes of an intruder to the file of heads.
#[rstest]
#[case::removed(|_: Vec<String>| None)]
#[case::emptied(|_: Vec<String>| Some(vec![]))]
#[case::a_line_that_is_no_head(|mut lines: Vec<String>| { lines.insert(1, "forged".to_owned()); Some(lines) })]
#[case::another_sequence(|mut lines: Vec<String>| { lines[1] = lines[1].replace("\"sequence\":", "\"sequence\":1"); Some(lines) })]
#[case::another_hash(|mut lines: Vec<String>| { lines[1] = lines[1].replace("\"hash\":\"", "\"hash\":\"00"); Some(lines) })]
#[case::another_time(|mut lines: Vec<String>| { lines[1] = lines[1].replace("\"at\":1", "\"at\":2").replace("\"at\":\"2", "\"at\":\"3"); Some(lines) })]
#[case::another_key(|mut lines: Vec<String>| { lines[1] = lines[1].replace("\"key_version\":1", "\"key_version\":2"); Some(lines) })]
#[case::no_signature(|mut lines: Vec<String>| { let cut = lines[1].find(",\"signature\"").map(|at| lines[1][..at].to_owned() + "}"); cut.map(|cut| { lines[1] = cut; lines }) })]
#[tokio::test]
async fn a_file_of_heads_that_was_changed_is_found(
    #[case] change: fn(Vec<String>) -> Option<Vec<String>>,
) -> Result<()> {
    let record = Record::make().await?;
    let copy = record.copy()?;
    let heads = copy.join(HEADS);
    let lines: Vec<String> = std::fs::read_to_string(&heads)?.lines().map(str::to_owned).collect();
    assert!(lines.len() >= 3, "two starts and two ends signed fewer heads than expected: {lines:?}");
    match change(lines.clone()) {
        Some(changed) => {
            assert_ne!(changed, lines, "the change has no effect on the file");
            std::fs::write(&heads, changed.into_iter().map(|line| line + "\n").collect::<String>())?;
        }
        None => std::fs::remove_file(&heads)?,
    }
    let (code, report) = record.verify(&copy).await?;
    assert_eq!((code, &report["valid"]), (Some(1), &json!(false)), "{report}");
    Ok(())
}

/// A head whose line was truncated by a crash is ignored, and the other heads are still valid.
#[tokio::test]
async fn a_head_that_was_half_written_is_no_fault() -> Result<()> {
    let record = Record::make().await?;
    let copy = record.copy()?;
    let heads = std::fs::read_to_string(copy.join(HEADS))?;
    std::fs::write(copy.join(HEADS), format!("{heads}{{\"v\":1,\"writer\":\"x"))?;
    assert_eq!(record.verify(&copy).await?.0, Some(0));
    sqlite(&copy, &["drop trigger audit_rows_no_delete", "delete from audit_rows where sequence = 20"]).await?;
    assert_eq!(record.verify(&copy).await?.0, Some(1));
    Ok(())
}

/// A server that starts after the crash removes the truncated line, so that later verifications do not report the line.
#[tokio::test]
async fn a_head_that_was_half_written_is_no_fault_after_the_next_start() -> Result<()> {
    let mut record = Record::make().await?;
    let path = record.world.server.data_dir().join(HEADS);
    let heads = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{heads}{{\"v\":1,\"writer\":\"x"))?;
    record.world.server.launch().await?;
    let report = record.world.server.api()?.verify_audit().await?;
    assert_eq!((&report["valid"], &report["problems"]), (&json!(true), &json!([])));
    record.world.server.stop().await?;
    let (code, report) = record.verify(&record.copy()?).await?;
    assert_eq!((code, &report["problems"]), (Some(0), &json!([])));
    let after = std::fs::read_to_string(&path)?;
    assert!(after.len() > heads.len() && after.starts_with(&heads), "no head follows the complete lines: {after}");
    Ok(())
}

/// A running server reports the same, and the output for people names the row.
#[tokio::test]
async fn a_server_that_was_started_on_a_changed_record_says_so() -> Result<()> {
    let mut record = Record::make().await?;
    let folder = record.world.server.data_dir();
    sqlite(
        &folder,
        &["drop trigger audit_rows_no_update", "update audit_rows set status = 'success' where sequence = 13"],
    )
    .await?;
    record.world.server.launch().await?;
    let report = record.world.server.api()?.verify_audit().await?;
    let problems = json!([{ "writer": report["problems"][0]["writer"], "sequence": 13, "what": "the row was changed after it was written" }]);
    assert_eq!((&report["valid"], &report["problems"]), (&json!(false), &problems));
    let output = record.world.server.command(&["audit", "verify"]).await?;
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("the row was changed after it was written"), "{shown}");
    Ok(())
}
