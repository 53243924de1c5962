//! The possible places of the master keys, and the messages if the keys do not belong to the database. In that case,
//! the server overwrites nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::json;
use support::Server;

use super::Secrets;
use crate::cli::{parsed, run, told};
use crate::tamper::sqlite;
use crate::world::{World, text};

const VARIABLE: &str = "MONSTRUM_MASTER_KEY";
const FILE_VARIABLE: &str = "MONSTRUM_MASTER_KEY_FILE";
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

fn line(version: u32, byte: &str) -> String {
    format!("{version} {}", byte.repeat(32))
}

fn write_key(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o600))?)
}

/// Returns every file of the data folder except the lock, to check that nothing was written.
fn contents(server: &Server) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(server.data_dir())? {
        let path = entry?.path();
        let name = path.file_name().context("the entry has no name")?.to_string_lossy().into_owned();
        if path.is_file() && !name.ends_with("-shm") && !name.ends_with("-wal") {
            files.push((name, fs::read(&path)?));
        }
    }
    files.sort();
    Ok(files)
}

#[tokio::test]
async fn the_keys_may_be_in_the_environment() -> Result<()> {
    let (first, second) = (line(1, "a1"), line(2, "b2"));
    let server = Server::prepare(&["github"])?.variable(VARIABLE, &first).variable("MONSTRUM_LOG", "debug");
    let mut secrets = Secrets::in_world(World::on(server).await?, 2).await?;
    secrets.open_all().await?;
    assert!(
        !secrets.world.server.data_dir().join("master.key").exists(),
        "the server created the key in a second place"
    );
    let (_, report) = parsed(&secrets.world.server, &["doctor"]).await?;
    assert_eq!(report["findings"], json!([]));

    let rotate = ["vault", "rotate"];
    let mut told_of = vec![told(&secrets.world.server, &rotate).await?];
    let both = format!("{first},{second}");
    secrets.world.server.set_variable(VARIABLE, Some(&both));
    secrets.open_all().await?;
    told_of.push(told(&secrets.world.server, &rotate).await?);
    told_of.push(told(&secrets.world.server, &["vault", "rotate", "--prune"]).await?);
    secrets.world.server.set_variable(VARIABLE, Some(&second));
    secrets.open_all().await?;

    let before = contents(&secrets.world.server)?;
    for wrong in [first.as_str(), &line(2, "c3"), "2 short", "", &format!("{second},{second}")] {
        secrets.world.server.set_variable(VARIABLE, Some(wrong));
        told_of.push(told(&secrets.world.server, &SERVE).await?);
    }
    secrets.world.server.set_variable(VARIABLE, Some(&second));
    secrets.world.server.set_variable(FILE_VARIABLE, Some("elsewhere.key"));
    told_of.push(told(&secrets.world.server, &SERVE).await?);
    secrets.world.server.set_variable(FILE_VARIABLE, None);
    assert!(before == contents(&secrets.world.server)?, "the server changed a file");
    assert_snapshot!(told_of.join("\n"), @r#"
    [stderr]
    error: cannot write to MONSTRUM_MASTER_KEY: it is an environment variable
    hint: add a line to the variable, separated by a comma: `2 $(openssl rand -hex 32)`; then run this command again, and start the server with the same value
    [exit 1]
    finished an earlier rotation, so no key was added; the newest key of MONSTRUM_MASTER_KEY has version 2
    re-encrypted 5 of 5 records with key version 2
    [stderr]
    run this command with --prune to list the keys of the variable that are no longer needed
    [exit 0]
    re-encrypted 0 of 5 records with key version 2
    these key versions of MONSTRUM_MASTER_KEY are no longer needed: 1
    [exit 0]
    [stderr]
    error: MONSTRUM_MASTER_KEY: master key version 2, which encrypted the secrets of this database, is missing
    hint: the keys are older than the database or incomplete: use the keys of its last rotation
    [exit 1]
    [stderr]
    error: MONSTRUM_MASTER_KEY: master key version 2 is not the key that encrypted the secrets of this database
    hint: nothing was changed; use the master keys of this database, or the database that belongs to these keys
    [exit 1]
    [stderr]
    error: MONSTRUM_MASTER_KEY does not contain valid master keys
      the master keys are malformed at line 1: expected a version number of at least 1, a space and 64 hex digits
    hint: expected the lines of a key file, separated by commas: each is a version, a space and 64 hex digits
    [exit 1]
    [stderr]
    error: MONSTRUM_MASTER_KEY does not contain valid master keys
      the master keys are malformed: it is empty
    hint: expected the lines of a key file, separated by commas: each is a version, a space and 64 hex digits
    [exit 1]
    [stderr]
    error: MONSTRUM_MASTER_KEY does not contain valid master keys
      the master keys are malformed at line 2: the version occurs more than once
    hint: expected the lines of a key file, separated by commas: each is a version, a space and 64 hex digits
    [exit 1]
    [stderr]
    error: both MONSTRUM_MASTER_KEY and a master key file (elsewhere.key) are set
    hint: `monstrum serve --help` describes every setting and its values
    [exit 1]
    "#);
    secrets.open_all().await?;

    let help = run(&secrets.world.server, &["serve", "--help"]).await?;
    let shown = format!("{}{}{}", String::from_utf8(help.stdout)?, secrets.world.server.output(), told_of.join(""));
    for key in [&first, &second] {
        ensure!(!shown.contains(&key[2..20]), "the output contains the key");
    }
    Ok(())
}

#[tokio::test]
async fn the_file_may_lie_elsewhere() -> Result<()> {
    let server = Server::prepare(&["github"])?.variable(FILE_VARIABLE, "elsewhere.key");
    let file = server.home().join("elsewhere.key");
    let mut secrets = Secrets::in_world(World::on(server).await?, 2).await?;
    secrets.open_all().await?;
    assert!(file.exists() && !secrets.world.server.data_dir().join("master.key").exists());
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate"]).await?.0, Some(0));
    assert_eq!(fs::read_to_string(&file)?.lines().count(), 2);
    secrets.open_all().await?;
    let folder = secrets.world.server.data_dir().display().to_string();
    assert_eq!(run(&secrets.world.server, &["audit", "verify", "--data-dir", &folder]).await?.status.code(), Some(0));

    fs::set_permissions(&file, Permissions::from_mode(0o640))?;
    let (_, report) = parsed(&secrets.world.server, &["doctor"]).await?;
    let findings = report["findings"].as_array().context("findings")?;
    assert!(findings.iter().any(|finding| text(&finding["about"]) == "elsewhere.key"), "{report}");
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;

    // Without the variable, the server has no key, and does not create a key for a database that another key has
    // sealed.
    secrets.world.server.set_variable(FILE_VARIABLE, None);
    assert_snapshot!(told(&secrets.world.server, &SERVE).await?, @r#"
    [stderr]
    error: [home]/data/master.key is missing, but the database contains records encrypted with this key; restore the file from a backup
    hint: a server cannot read its secrets without its master key: restore the file from a backup
    [exit 1]
    "#);
    assert!(!secrets.world.server.data_dir().join("master.key").exists());
    Ok(())
}

#[tokio::test]
async fn keys_of_another_time_or_place_are_recognised() -> Result<()> {
    let mut secrets = Secrets::make(1).await?;
    secrets.world.server.stop().await?;
    let file = secrets.world.server.data_dir().join("master.key");
    let old = fs::read_to_string(&file)?;
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate"]).await?.0, Some(0));
    let both = fs::read_to_string(&file)?;
    let before = contents(&secrets.world.server)?;
    let mut told_of = Vec::new();
    for (label, text) in [
        ("from before the rotation", old),
        ("another one of the same version", format!("{}\n", line(2, "a1"))),
        ("another one that is newer", format!("{}\n", line(3, "a1"))),
    ] {
        write_key(&file, &text)?;
        for command in [&SERVE[..], &["vault", "rotate"], &["doctor"]] {
            told_of.push(format!("$ {label}\n{}", told(&secrets.world.server, command).await?));
        }
        assert_eq!(fs::read_to_string(&file)?, text);
    }
    write_key(&file, &both)?;
    assert!(before == contents(&secrets.world.server)?, "the server changed a file");
    assert_snapshot!(told_of.join("\n"), @r#"
    $ from before the rotation
    [stderr]
    error: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
    hint: the keys are older than the database or incomplete: use the keys of its last rotation
    [exit 1]
    $ from before the rotation
    [stderr]
    error: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
    hint: the keys are older than the database or incomplete: use the keys of its last rotation
    [exit 1]
    $ from before the rotation
    broken: master key: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
        use the master keys of this database's last rotation
    [exit 1]
    $ another one of the same version
    [stderr]
    error: [home]/data/master.key: master key version 2 is not the key that encrypted the secrets of this database
    hint: nothing was changed; use the master keys of this database, or the database that belongs to these keys
    [exit 1]
    $ another one of the same version
    [stderr]
    error: [home]/data/master.key: master key version 2 is not the key that encrypted the secrets of this database
    hint: nothing was changed; use the master keys of this database, or the database that belongs to these keys
    [exit 1]
    $ another one of the same version
    broken: master key: [home]/data/master.key: master key version 2 is not the key that encrypted the secrets of this database
        restore the master.key that belongs to this database
    [exit 1]
    $ another one that is newer
    [stderr]
    error: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
    hint: the keys are older than the database or incomplete: use the keys of its last rotation
    [exit 1]
    $ another one that is newer
    [stderr]
    error: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
    hint: the keys are older than the database or incomplete: use the keys of its last rotation
    [exit 1]
    $ another one that is newer
    broken: master key: [home]/data/master.key: master key version 2, which encrypted the secrets of this database, is missing
        use the master keys of this database's last rotation
    [exit 1]
    "#);
    secrets.open_all().await
}

/// A rotation keeps older keys because backups need them, and a restored backup also needs them.
#[tokio::test]
async fn a_credential_whose_key_is_gone_is_named_and_the_rest_works() -> Result<()> {
    let mut secrets = Secrets::make(2).await?;
    secrets.world.server.stop().await?;
    let folder = secrets.world.server.data_dir();
    let lost = format!("resource_id = '{}'", secrets.resources[1]);
    let kept = sqlite(&folder, &[&format!("select sealed from credentials where {lost}")]).await?;
    for arguments in [&["vault", "rotate"][..], &["vault", "rotate", "--prune"]] {
        assert_eq!(parsed(&secrets.world.server, arguments).await?.0, Some(0));
    }
    let back = format!("update credentials set key_version = 1, sealed = '{}' where {lost}", text(&kept[0][0]));
    sqlite(&folder, &[&back]).await?;
    let (code, report) = parsed(&secrets.world.server, &["doctor"]).await?;
    let finding = report["findings"].as_array().context("findings")?.iter().find(|one| one["about"] == "master key");
    let what = finding.map(|finding| text(&finding["what"])).unwrap_or_default();
    ensure!(code == Some(1) && what.contains("key version 1, which encrypts credentials, is missing"), "{report}");
    secrets.world.server.launch().await?;
    secrets.world.api = secrets.world.server.api()?;
    ensure!(secrets.world.server.output().contains("master key version 1, which encrypts credentials"));
    assert_eq!(secrets.call(&secrets.resources[0]).await?["status"], "success");
    assert_eq!(secrets.call(&secrets.resources[1]).await?["status"], "error");
    Ok(())
}
