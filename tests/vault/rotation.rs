//! `monstrum vault rotate`: every secret gets a fresh key, even if the rotation is interrupted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Postgres;

use super::Secrets;
use crate::cli::{parsed, told};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::tamper::sqlite;
use crate::world::World;

/// The number of power cuts. Their times range from the start of the process to the end of the rotation.
const CUTS: u32 = 40;
/// A time-out that is far longer than a rotation needs.
const ROTATION_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// Selects the number of credentials that are sealed with each key version.
const VERSIONS: &str = "select key_version, count(*) from credentials group by key_version order by key_version";

#[tokio::test]
async fn every_secret_is_sealed_anew_and_older_keys_go_last() -> Result<()> {
    let mut secrets = Secrets::make(20).await?;
    assert_snapshot!(told(&secrets.world.server, &["vault", "rotate"]).await?, @r#"
    [stderr]
    error: another monstrum process uses the data folder [home]/data
    hint: stop the server first; a running server would continue to use the old keys
    [exit 1]
    "#);
    secrets.world.server.stop().await?;
    let before = secrets.ring()?;
    assert_snapshot!(told(&secrets.world.server, &["vault", "rotate"]).await?, @r#"
    added key version 2 to [home]/data/master.key
    re-encrypted 23 of 23 records with key version 2
    [stderr]
    back up [home]/data/master.key now; later, run this command with --prune to remove the older keys
    [exit 0]
    "#);
    assert!(before.is_subset(&secrets.ring()?), "the older key was removed");
    assert_eq!(secrets.key_versions()?, [1, 2]);
    assert_eq!(sqlite(&secrets.world.server.data_dir(), &[VERSIONS]).await?, json!([[2, 20]]));
    secrets.open_all().await?;

    assert_snapshot!(told(&secrets.world.server, &["vault", "rotate", "--prune"]).await?, @r#"
    re-encrypted 0 of 23 records with key version 2
    removed from [home]/data/master.key: version 1
    [exit 0]
    "#);
    assert_eq!(secrets.key_versions()?, [2]);
    secrets.open_all().await?;
    assert_eq!(
        parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?,
        (
            Some(0),
            json!({
                "key_version": 2, "added": false, "records": 23, "resealed": 0, "key_versions": [2], "removed": [], "unreadable": [],
            })
        )
    );
    assert_eq!(
        parsed(&secrets.world.server, &["vault", "rotate"]).await?,
        (
            Some(0),
            json!({
                "key_version": 3, "added": true, "records": 23, "resealed": 23, "key_versions": [2, 3], "removed": [],
                "unreadable": [],
            })
        )
    );
    secrets.open_all().await
}

/// Rows whose name is not UTF-8 precede every key, and their number exceeds the rows that are read at once.
#[tokio::test]
async fn rows_that_another_program_has_written_hide_no_record() -> Result<()> {
    const FORGED: usize = 40;
    let mut secrets = Secrets::make(2).await?;
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    let insert = |number| format!("insert into instance_keys values (cast(x'01ff' as text), {number}, 'x', 0)");
    let inserts: Vec<String> = (0..FORGED).map(insert).collect();
    sqlite(&data_dir, &inserts.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let (_, report) = parsed(&secrets.world.server, &["vault", "rotate"]).await?;
    let unreadable = report["unreadable"].as_array().context("a list")?;
    assert_eq!((unreadable.len(), &unreadable[0]["table"]), (FORGED, &json!("instance_keys")), "{report}");
    let refused = told(&secrets.world.server, &["vault", "rotate", "--prune"]).await?;
    ensure!(refused.contains(&format!("some sealed records cannot be decrypted: {FORGED}")), "{refused}");
    ensure!(refused.contains("instance_keys") && refused.contains("[exit 1]"), "{refused}");
    assert_eq!(secrets.key_versions()?, [1, 2], "a key was removed");
    secrets.open_all().await?;

    sqlite(&data_dir, &["delete from instance_keys where sealed = 'x'"]).await?;
    let (code, report) = parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?;
    assert_eq!((code, &report["removed"]), (Some(0), &json!([1])), "{report}");
    secrets.open_all().await
}

/// Hosts that share a database rotate in two steps, so that every host has the key before a record needs it.
#[tokio::test]
async fn a_key_can_be_added_before_anything_is_sealed_with_it() -> Result<()> {
    let mut secrets = Secrets::make(2).await?;
    secrets.world.server.stop().await?;
    let mut told_of = Vec::new();
    for arguments in [&["--add-only"][..], &["--add-only"], &["--prune", "--add-only"], &[], &["--prune"]] {
        let answer = told(&secrets.world.server, &[&["vault", "rotate"], arguments].concat()).await?;
        told_of.push(format!("$ {} {:?}\n{answer}", arguments.join(" "), secrets.key_versions()?));
        let unfinished = told(&secrets.world.server, &["doctor"]).await?;
        told_of.push(format!("$ doctor\n{unfinished}"));
        secrets.open_all().await?;
    }
    assert_snapshot!(told_of.join("\n"), @r#"
    $ --add-only [1, 2]
    added key version 2 to [home]/data/master.key
    [stderr]
    copy the file to every host that uses this database, start the hosts, and run `monstrum vault rotate`
    [exit 0]
    $ doctor
    weak: master key: [home]/data/master.key: some credentials are still encrypted with a key older than version 2
        stop the server and finish the rotation: monstrum vault rotate
    [exit 1]
    $ --add-only [1, 2]
    [stderr]
    error: 5 records are still encrypted with a key older than version 2
    hint: run `monstrum vault rotate` to finish the interrupted rotation
    [exit 1]
    $ doctor
    weak: master key: [home]/data/master.key: some credentials are still encrypted with a key older than version 2
        stop the server and finish the rotation: monstrum vault rotate
    [exit 1]
    $ --prune --add-only [1, 2]
    [stderr]
    error: the argument '--prune' cannot be used with '--add-only'

    Usage: monstrum vault rotate --prune --data-dir <DIR>
    hint: `monstrum vault rotate --help` shows usage and examples
    [exit 2]
    $ doctor
    weak: master key: [home]/data/master.key: some credentials are still encrypted with a key older than version 2
        stop the server and finish the rotation: monstrum vault rotate
    [exit 1]
    $  [1, 2]
    finished an earlier rotation, so no key was added; the newest key of [home]/data/master.key has version 2
    re-encrypted 5 of 5 records with key version 2
    [stderr]
    back up [home]/data/master.key now; later, run this command with --prune to remove the older keys
    [exit 0]
    $ doctor
    no findings in [home]/data
    [exit 0]
    $ --prune [2]
    re-encrypted 0 of 5 records with key version 2
    removed from [home]/data/master.key: version 1
    [exit 0]
    $ doctor
    no findings in [home]/data
    [exit 0]
    "#);
    Ok(())
}

/// Returns whether any credential is still sealed with an older key than the newest key in the file.
async fn is_unfinished(secrets: &Secrets) -> Result<bool> {
    let versions = sqlite(&secrets.world.server.data_dir(), &[VERSIONS]).await?;
    let newest = secrets.key_versions()?.last().copied();
    let rows = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(rows.iter().any(|row| row[0].as_u64() != newest.map(u64::from)))
}

#[tokio::test]
async fn a_rotation_that_is_killed_at_any_moment_is_finished_by_the_next() -> Result<()> {
    let mut secrets = Secrets::make(64).await?;
    secrets.world.server.stop().await?;
    let began = Instant::now();
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate"]).await?.0, Some(0));
    let whole = began.elapsed();
    let mut unfinished = 0;
    for cut in 0..CUTS {
        let ring = secrets.ring()?;
        let mut rotation = secrets.world.server.begin_command(&["vault", "rotate"])?;
        let (began, moment) = (Instant::now(), whole * cut / CUTS);
        // Every other cut waits for the new key, so that the cut happens while records are being resealed.
        let is_ripe = |ring_now: BTreeSet<String>| cut % 2 == 1 && ring_now != ring;
        while began.elapsed() < moment || (cut % 2 == 1 && began.elapsed() < whole) {
            if is_ripe(secrets.ring()?) || rotation.try_wait()?.is_some() {
                tokio::time::sleep(POLL * (cut / 4)).await;
                break;
            }
            ensure!(began.elapsed() < ROTATION_MAX, "timed out waiting for the rotation to end");
            tokio::time::sleep(POLL).await;
        }
        rotation.kill().await?;
        ensure!(ring.is_subset(&secrets.ring()?), "a key was lost at cut {cut}");
        unfinished += u32::from(is_unfinished(&secrets).await?);
        if cut % 10 == 9 {
            secrets.open_all().await?;
        }
    }
    assert!(unfinished > 0, "no power cut interrupted a rotation");
    // The next rotation finishes the interrupted rotation or starts a new one. Afterwards, every secret has the newest
    // key.
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate"]).await?.0, Some(0));
    ensure!(!is_unfinished(&secrets).await?, "some credentials are still sealed with an older key");
    let (code, pruned) = parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?;
    assert_eq!((code, &pruned["resealed"], secrets.key_versions()?.len()), (Some(0), &json!(0), 1));
    let drafts = std::fs::read_dir(secrets.world.server.data_dir())?
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().contains(".new")));
    assert_eq!(drafts.count(), 0, "a draft of the key file, which may contain keys, was left behind");
    secrets.open_all().await
}

#[tokio::test]
async fn on_postgresql_it_is_the_same() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    postgres.sql("postgres", "create database monstrum")?;
    let server = server_on(&postgres.url("monstrum"))?;
    let mut secrets = Secrets::in_world(World::on(server).await?, 20).await?;
    secrets.world.server.stop().await?;
    for (arguments, resealed) in [(&["vault", "rotate"][..], 23), (&["vault", "rotate", "--prune"], 0)] {
        let (code, report) = parsed(&secrets.world.server, arguments).await?;
        assert_eq!(
            (code, &report["resealed"], &report["unreadable"]),
            (Some(0), &json!(resealed), &Value::Array(vec![]))
        );
        secrets.open_all().await?;
    }
    assert_eq!(secrets.key_versions()?, [2]);
    Ok(())
}

/// Other hosts that keep running must have the new key before a record needs it. If they do not have it, the rotation
/// reseals nothing.
#[tokio::test]
async fn a_host_that_serves_on_keeps_its_secrets() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let mut secrets = Secrets::in_world(World::on(server_on(&url)?).await?, 3).await?;
    let mut second = beside(&secrets.world.server, server_on(&url)?).await?;
    let key = secrets.world.api.key().to_owned();
    secrets.world.server.stop().await?;
    assert_snapshot!(told(&secrets.world.server, &["vault", "rotate"]).await?, @r#"
    [stderr]
    error: other servers use this database and do not have the new key
    hint: stop the servers and run this command again; or run `monstrum vault rotate --add-only`, copy the file to every server, restart the servers, and run this command again
    [exit 1]
    "#);
    assert_eq!(secrets.key_versions()?, [1]);
    secrets.world.api = api_of(&second, &key)?;
    secrets.serve().await?;

    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate", "--add-only"]).await?.0, Some(0));
    std::fs::copy(secrets.world.server.data_dir().join("master.key"), second.data_dir().join("master.key"))?;
    second.restart().await?;
    secrets.world.api = api_of(&second, &key)?;
    let (code, report) = parsed(&secrets.world.server, &["vault", "rotate"]).await?;
    assert_eq!((code, &report["added"], &report["resealed"]), (Some(0), &json!(false), &json!(6)), "{report}");
    secrets.serve().await?;
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?.0, Some(0));
    secrets.serve().await?;
    secrets.open_all().await
}
