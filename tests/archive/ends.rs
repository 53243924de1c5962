//! Archiving that is interrupted by `kill -9`, a full disk, a database error or an open call.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use super::{Archived, FUTURE, verify, verify_archive};
use crate::cli::{parsed, told};
use crate::tamper::sqlite;
use crate::world::{World, eventually, text};

/// The number of runs that are killed. The times of the kills are spread over the duration of a run.
const CUTS: u32 = 24;

fn files(archived: &Archived) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(archived.folder())? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?);
    }
    Ok(found)
}

/// The database rejects the anchor after the files are complete, so no row is deleted. The next run writes the same
/// files.
#[tokio::test]
async fn an_archive_whose_deletion_fails_is_repeated() -> Result<()> {
    let archived = Archived::make().await?;
    let data_dir = archived.server().data_dir();
    let rows = archived.verify().await?["rows"].as_u64().context("a number")?;
    let refuse = "create trigger refuse before insert on audit_anchors begin select raise(abort, 'refused'); end";
    sqlite(&data_dir, &[refuse]).await?;
    let failed = told(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(failed.contains("[exit 1]"), "{failed}");
    let report = archived.verify().await?;
    assert_eq!((&report["valid"], &report["rows"]), (&json!(true), &json!(rows + 2)), "no row was deleted");
    assert_eq!(archived.verify_archive().await?["valid"], true);
    let before = files(&archived)?;
    assert_eq!(before.len(), 2);

    sqlite(&data_dir, &["drop trigger refuse"]).await?;
    let (code, done) = parsed(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    // The two rows that record the failed attempt are archived as a separate segment.
    ensure!(code == Some(0) && done["rows"] == rows + 2, "{done}");
    let after = files(&archived)?;
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)), "{:?}", after.keys());
    assert_eq!(archived.verify_archive().await?["segments"], 2);
    assert_eq!(archived.verify().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn an_archive_that_is_killed_at_any_moment_loses_no_row() -> Result<()> {
    let archived = Archived::make().await?;
    let arguments = ["audit", "archive", "--before", FUTURE];
    // The times of the kills are spread over the duration of this run, which is not killed.
    let began = Instant::now();
    archived.archive().await?;
    let whole = began.elapsed();
    for cut in 0..CUTS {
        let mut archive = archived.server().begin_command(&arguments)?;
        tokio::time::sleep(whole * cut / CUTS).await;
        archive.kill().await?;
        let report = archived.verify().await?;
        ensure!(report["valid"] == true, "after cut {cut}: {report}");
        let in_archive = archived.verify_archive().await?;
        ensure!(in_archive["valid"] == true, "after cut {cut}: {in_archive}");
        // Every row is in the database or in the archive. Rows that were written to the archive but not deleted yet are
        // in both.
        let database = "select coalesce(max(sequence), 0) - coalesce(min(sequence), 1) + 1, (select coalesce(max(last_sequence), 0) \
                        from audit_anchors), min(sequence) from audit_rows";
        let counted = sqlite(&archived.server().data_dir(), &[database]).await?;
        let (anchored, first) = (&counted[0][1], &counted[0][2]);
        ensure!(first.as_i64() == anchored.as_i64().map(|last| last + 1), "after cut {cut}: {counted}");
        ensure!(in_archive["rows"].as_i64() >= anchored.as_i64(), "after cut {cut}: {in_archive} {counted}");
    }
    archived.archive().await?;
    assert_eq!(archived.verify_archive().await?["valid"], true);
    let parts = files(&archived)?.into_keys().filter(|name| name.starts_with('.')).count();
    assert_eq!(parts, 0, "incomplete files were removed");
    Ok(())
}

/// A file system with space for one page.
struct FullDisk(tempfile::TempDir);

impl FullDisk {
    fn mount() -> Result<FullDisk> {
        let folder = tempfile::tempdir()?;
        let options = ["-t", "tmpfs", "-o", "size=4k", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(folder.path()).status()?;
        ensure!(mounted.success(), "cannot mount a small disk");
        Ok(FullDisk(folder))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.0.path()).status());
    }
}

#[tokio::test]
async fn nothing_is_deleted_when_the_disk_of_the_archive_is_full() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let archived = Archived::make().await?;
    let rows = archived.verify().await?["rows"].clone();
    let disk = FullDisk::mount()?;
    std::fs::write(disk.0.path().join("ballast"), [0; 4096])?;
    let to = disk.0.path().to_str().context("a plain name")?;
    let refused = told(archived.server(), &["audit", "archive", "--before", FUTURE, "--to", to]).await?;
    ensure!(refused.contains("cannot write the archive") && refused.contains("No space left on device"), "{refused}");
    let report = archived.verify().await?;
    assert_eq!((&report["valid"], &report["rows"]), (&json!(true), &rows));
    assert_eq!(std::fs::read_dir(disk.0.path())?.count(), 1, "incomplete files were removed");
    Ok(())
}

/// A crash leaves a call open. Recording the first segment marks the call as interrupted, so its start can be archived
/// with the second segment. Its end stays in the database.
#[tokio::test]
async fn a_call_that_a_crash_left_open_is_interrupted_before_its_start_is_archived() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
    drop(world.github.take_requests());
    world.github.hold();
    let (api, bot) = (world.api.clone(), world.bot.clone());
    let open = tokio::spawn(async move { api.call(&bot, "test_echo_fetch", &json!({ "path": "/echo" })).await });
    world.reached(1).await?;
    // Within a second, a head covers the change and the start of the call before it.
    world.api.bot("another").await?;
    let rows = last_sequence(&world.server).await?;
    let heads = world.server.data_dir().join("audit-heads.log");
    eventually("a head covers the start", async || {
        let newest = std::fs::read_to_string(&heads)?.lines().last().map(serde_json::from_str::<Value>).transpose()?;
        Ok(newest.filter(|head| head["sequence"].as_i64() >= Some(rows)).map(drop))
    })
    .await?;
    world.server.kill().await?;
    ensure!(open.await?.is_err(), "the call was answered");

    let (code, done) = parsed(&world.server, &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(code == Some(0) && done["rows"] == rows, "{done}");
    ensure!(done["segments"].as_array().map(Vec::len) == Some(2), "{done}");
    let folder = world.server.data_dir().join("audit-archive");
    assert_eq!(verify(&world.server).await?["valid"], true);
    assert_eq!(verify_archive(&world.server, &folder).await?["valid"], true);
    world.server.launch().await?;
    let api = world.server.api()?;
    let (_, calls) = api.get("/api/audit?status=interrupted").await?;
    let call = api.audit(text(&calls["items"][0]["request_id"])).await?;
    let kinds: Vec<&str> = call["events"].as_array().into_iter().flatten().map(|event| text(&event["kind"])).collect();
    assert_eq!(kinds, ["interrupted"], "{call}");
    assert_eq!(api.verify_audit().await?["valid"], true);
    Ok(())
}

async fn last_sequence(server: &Server) -> Result<i64> {
    let found = sqlite(&server.data_dir(), &["select max(sequence) from audit_rows"]).await?;
    found[0][0].as_i64().context("a number")
}
