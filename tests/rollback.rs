//! A database that is older than its newest signed head. A start rejects it, `doctor` and `audit verify` report it, and
//! only `audit accept-loss` allows a start with that database.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, run, told};
use crate::tamper::sqlite;
use crate::world::{World, eventually};

const HEADS: &str = "audit-heads.log";
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];
/// The tables from which the policy is compiled, children first.
const POLICY_TABLES: [&str; 11] = [
    "policy_seals",
    "bot_resources",
    "credentials",
    "api_keys",
    "bots",
    "resources",
    "roles",
    "plugins",
    "trust",
    "oauth_providers",
    "workspaces",
];

/// A stopped server, and a copy of its database from before the deletion of a bot's key.
struct Restored {
    world: World,
    /// The text of the key that was deleted after the copy.
    revoked: String,
    older: tempfile::TempDir,
}

impl Restored {
    async fn make() -> Result<Restored> {
        let mut world = World::with(&["test-echo"]).await?;
        world.grant_all("test-echo").await?;
        let (status, key) = world.api.post("/api/keys", &json!({ "name": "leaver", "kind": "admin" })).await?;
        ensure!(status == 201, "{status} {key}");
        world.server.stop().await?;
        let older = tempfile::tempdir()?;
        copy_database(&world.server.data_dir(), older.path())?;
        world.server.launch().await?;
        world.api = world.server.api()?;
        let id = key["id"].as_str().context("the key has no id")?;
        let (status, body) = world.api.delete(&format!("/api/keys/{id}")).await?;
        ensure!(status == 204, "{status} {body}");
        world.call("test_echo_run", &json!({ "repo": "acme/site" })).await?;
        world.server.stop().await?;
        let revoked = key["key"].as_str().context("the new key has no text")?.to_owned();
        Ok(Restored { world, revoked, older })
    }

    fn server(&self) -> &Server {
        &self.world.server
    }

    /// Starts the server, expects it to exit with status 1, and returns its standard error.
    async fn refusal(&self) -> Result<String> {
        let output = run(self.server(), &SERVE).await?;
        ensure!(output.status.code() == Some(1), "the server started");
        Ok(String::from_utf8(output.stderr)?)
    }

    /// Returns the findings of `doctor` about the audit.
    async fn diagnosis(&self) -> Result<Vec<Value>> {
        let (_, report) = parsed(self.server(), &["doctor"]).await?;
        let findings = report["findings"].as_array().context("the report has no findings")?.clone();
        Ok(findings.into_iter().filter(|finding| finding["about"] == "audit").collect())
    }
}

fn copy_database(from: &Path, to: &Path) -> Result<()> {
    for name in ["monstrum.db-wal", "monstrum.db-shm"] {
        ensure!(!from.join(name).exists(), "{name}: the stopped server left its database in more than one file");
    }
    std::fs::copy(from.join("monstrum.db"), to.join("monstrum.db"))?;
    Ok(())
}

/// Replaces the policy of `data_dir` with the policy of the database in `from`. Does not change the audit.
async fn put_back_policy(data_dir: &Path, from: &Path) -> Result<()> {
    let attach = format!("attach '{}' as old", from.join("monstrum.db").display());
    let mut statements = vec![attach, "pragma foreign_keys = off".to_owned()];
    for table in POLICY_TABLES {
        statements.push(format!("delete from main.{table}"));
        statements.push(format!("insert into main.{table} select * from old.{table}"));
    }
    statements.push("update settings set generation = generation + 1".to_owned());
    statements.push("select changes()".to_owned());
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    assert_eq!(sqlite(data_dir, &statements).await?, json!([[1]]));
    Ok(())
}

#[tokio::test]
async fn an_older_database_alone_is_refused_until_its_loss_is_accepted() -> Result<()> {
    let mut restored = Restored::make().await?;
    let data_dir = restored.server().data_dir();
    copy_database(restored.older.path(), &data_dir)?;

    let refusal = restored.refusal().await?;
    ensure!(refusal.contains("the database is older than the signed heads of its audit"), "{refusal}");
    ensure!(refusal.contains("monstrum audit accept-loss --reason TEXT"), "{refusal}");
    ensure!(!restored.diagnosis().await?.is_empty(), "`doctor` does not report the older database");
    let folder = data_dir.to_str().context("the name of the temporary folder is not UTF-8")?;
    let (code, report) = parsed(restored.server(), &["audit", "verify", "--data-dir", folder]).await?;
    ensure!(code == Some(1) && report["valid"] == false, "{report}");

    let without_reason = told(restored.server(), &["audit", "accept-loss", "--reason", " "]).await?;
    ensure!(without_reason.contains("[exit 1]"), "{without_reason}");
    ensure!(!restored.refusal().await?.is_empty());
    let accept = ["audit", "accept-loss", "--reason", "its disk had failed"];
    let (code, accepted) = parsed(restored.server(), &accept).await?;
    ensure!(code == Some(0), "{accepted}");
    let kept = accepted["superseded_heads"].as_str().context("the old heads were not kept")?;
    ensure!(Path::new(kept).is_file(), "{kept}");
    let again = told(restored.server(), &accept).await?;
    ensure!(again.contains("there is no loss to accept"), "{again}");

    restored.world.server.launch().await?;
    restored.world.api = restored.world.server.api()?;
    let (status, changes) = restored.world.api.get("/api/audit/changes").await?;
    ensure!(status == 200, "{changes}");
    let change = &changes["items"][0];
    assert_eq!(
        (&change["change"], &change["key_kind"], &change["key_id"], &change["status"]),
        (&json!("audit.accept_loss"), &json!("offline"), &Value::Null, &json!("success"))
    );
    assert_eq!(change["after"]["reason"], "its disk had failed");
    ensure!(!change["after"]["lost"].as_array().context("the losses are not a list")?.is_empty());
    let (status, report) = restored.world.api.get("/api/audit/verify").await?;
    assert_eq!((status, &report["valid"], &report["problems"]), (200, &json!(true), &json!([])));
    restored.world.call("test_echo_run", &json!({ "repo": "acme/site" })).await?;
    restored.world.server.restart().await
}

/// The rows and the seal are valid. Only the head outside the database shows that the rows and the seal are old.
#[tokio::test]
async fn an_older_policy_with_its_seals_is_refused_though_the_audit_is_whole() -> Result<()> {
    let restored = Restored::make().await?;
    let data_dir = restored.server().data_dir();
    put_back_policy(&data_dir, restored.older.path()).await?;
    let refusal = restored.refusal().await?;
    ensure!(refusal.contains("the policy was signed at generation"), "{refusal}");
    let diagnosis = restored.diagnosis().await?;
    ensure!(diagnosis.iter().any(|finding| finding["what"].to_string().contains("generation")), "{diagnosis:?}");
    let folder = data_dir.to_str().context("the name of the temporary folder is not UTF-8")?;
    let (code, report) = parsed(restored.server(), &["audit", "verify", "--data-dir", folder]).await?;
    ensure!(code == Some(1) && report["problems"].to_string().contains("generation"), "{report}");
    ensure!(!restored.revoked.is_empty());
    Ok(())
}

#[tokio::test]
async fn heads_of_another_database_are_refused() -> Result<()> {
    let restored = Restored::make().await?;
    let other = World::with(&[]).await?;
    let mut other = other.server;
    other.stop().await?;
    std::fs::copy(other.data_dir().join(HEADS), restored.server().data_dir().join(HEADS))?;
    let refusal = restored.refusal().await?;
    ensure!(refusal.contains("the audit keys of the database signed none of the newest heads"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_change_is_covered_by_a_head_soon_and_a_running_server_accepts_no_loss() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let heads = world.server.data_dir().join(HEADS);
    let generation = || -> Result<i64> {
        let text = std::fs::read_to_string(&heads)?;
        let last: Value = serde_json::from_str(text.lines().last().context("the audit has no signed head")?)?;
        assert_eq!((&last["v"], &last["row_key_version"]), (&json!(4), &json!(1)));
        last["policy_generation"].as_i64().context("the head does not contain the state of the policy")
    };
    let before = generation()?;
    world.grant_all("test-echo").await?;
    eventually("a head covers the change", async || Ok((generation()? > before).then_some(()))).await?;
    let refused = told(&world.server, &["audit", "accept-loss", "--reason", "none"]).await?;
    ensure!(refused.contains("a server is using the data folder"), "{refused}");
    Ok(())
}

/// A database that has no seals resembles a database from before rows were authenticated. A signed head proves that its
/// rows had been authenticated.
#[tokio::test]
async fn dropped_seals_are_sealed_anew_only_after_the_loss_is_accepted() -> Result<()> {
    let mut restored = Restored::make().await?;
    sqlite(&restored.server().data_dir(), &["delete from policy_seals"]).await?;
    let refusal = restored.refusal().await?;
    ensure!(refusal.contains("older than the signed heads"), "{refusal}");
    let refused = told(restored.server(), &["vault", "seal", "--yes"]).await?;
    ensure!(refused.contains("were sealed before") && refused.contains("[exit 1]"), "{refused}");
    let accepted = told(restored.server(), &["audit", "accept-loss", "--reason", "checked by hand"]).await?;
    ensure!(accepted.contains("[exit 0]"), "{accepted}");
    let sealed = told(restored.server(), &["vault", "seal", "--yes"]).await?;
    ensure!(sealed.contains("[exit 0]"), "{sealed}");
    restored.world.server.launch().await?;
    restored.world.api = restored.world.server.api()?;
    let (status, report) = restored.world.api.get("/api/audit/verify").await?;
    assert_eq!((status, &report["valid"]), (200, &json!(true)), "{report}");
    Ok(())
}

/// A rejected start creates nothing: no workspace, no key, and no `admin.key` that would replace the existing file.
#[tokio::test]
async fn a_lost_database_is_not_begun_anew_under_its_old_heads() -> Result<()> {
    let restored = Restored::make().await?;
    let data_dir = restored.server().data_dir();
    let admin_key = std::fs::read(data_dir.join("admin.key"))?;
    std::fs::remove_file(data_dir.join("monstrum.db"))?;
    for _ in 0..2 {
        let refusal = restored.refusal().await?;
        ensure!(refusal.contains("the audit keys of the database signed none of the newest heads"), "{refusal}");
    }
    let written = "select (select count(*) from instance_keys) + (select count(*) from workspaces) \
                   + (select count(*) from api_keys) + (select count(*) from policy_seals)";
    assert_eq!(sqlite(&data_dir, &[written]).await?, json!([[0]]));
    ensure!(std::fs::read(data_dir.join("admin.key"))? == admin_key, "another root key was written to the file");

    // An operator may still start with a new database.
    let accepted = told(restored.server(), &["audit", "accept-loss", "--reason", "the disk is gone"]).await?;
    ensure!(accepted.contains("[exit 0]"), "{accepted}");
    Ok(())
}

/// Keys are listed in the order of their ids, and forged keys may precede all other keys.
#[tokio::test]
async fn forged_root_keys_do_not_hide_the_one_that_there_is() -> Result<()> {
    let mut world = World::with(&[]).await?;
    world.server.stop().await?;
    let data_dir = world.server.data_dir();
    let admin_key = std::fs::read(data_dir.join("admin.key"))?;
    let forged = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000) \
                  insert into api_keys (id, name, kind, prefix, hash, created_at) \
                  select printf('01900000-0000-7000-8000-%012d', i), 'forged' || i, 'root', 'mk_', 'hash' || i, 0 from n";
    sqlite(&data_dir, &[forged]).await?;
    world.server.launch().await?;
    ensure!(std::fs::read(data_dir.join("admin.key"))? == admin_key, "another root key was created");
    assert_eq!(sqlite(&data_dir, &["select count(*) from api_keys where mac is not null"]).await?, json!([[1]]));
    let api = world.server.api()?;
    assert_eq!(api.get("/api/workspaces").await?.0, 200);
    Ok(())
}

/// The abandoned database has valid seals and a policy of a higher generation than the database that replaced it.
#[tokio::test]
async fn a_state_that_was_given_up_is_refused_when_it_comes_back() -> Result<()> {
    let mut restored = Restored::make().await?;
    let data_dir = restored.server().data_dir();
    let lost = tempfile::tempdir()?;
    copy_database(&data_dir, lost.path())?;
    copy_database(restored.older.path(), &data_dir)?;
    let accepted = told(restored.server(), &["audit", "accept-loss", "--reason", "the disk had failed"]).await?;
    ensure!(accepted.contains("[exit 0]") && !accepted.contains("warning"), "{accepted}");
    restored.world.server.restart().await?;
    restored.world.server.stop().await?;

    put_back_policy(&data_dir, lost.path()).await?;
    let refusal = restored.refusal().await?;
    ensure!(refusal.contains("the policy was signed at generation"), "{refusal}");
    Ok(())
}

/// A folder whose `node.id` was lost starts another chain. The heads of the new chain do not cover the previous chain.
#[tokio::test]
async fn heads_of_a_chain_that_is_cut_are_not_kept_for_another_chain() -> Result<()> {
    let mut restored = Restored::make().await?;
    let data_dir = restored.server().data_dir();
    let first = std::fs::read_to_string(data_dir.join("node.id"))?.trim().to_owned();
    std::fs::remove_file(data_dir.join("node.id"))?;
    restored.world.server.restart().await?;
    restored.world.server.stop().await?;
    let disarm = "drop trigger audit_rows_no_delete";
    let cut = format!("delete from audit_rows where writer = '{first}' and sequence > 3");
    let second = "delete from audit_rows where sequence = (select max(sequence) from audit_rows where writer <> $W) and writer <> $W";
    let second = second.replace("$W", &format!("'{first}'"));
    restored.world.server.launch().await?;
    restored.world.api = restored.world.server.api()?;
    restored.world.call("test_echo_run", &json!({ "repo": "acme/site" })).await?;
    restored.world.server.stop().await?;
    sqlite(&data_dir, &[disarm, &cut, &second]).await?;
    let accepted = told(restored.server(), &["audit", "accept-loss", "--reason", "checked by hand"]).await?;
    ensure!(accepted.contains("[exit 0]"), "{accepted}");
    let heads = std::fs::read_to_string(data_dir.join(HEADS))?;
    for line in heads.lines() {
        let head: Value = serde_json::from_str(line)?;
        let is_cut = head["writer"] == first.as_str() && head["sequence"].as_i64() > Some(3);
        ensure!(!is_cut, "a head of missing rows was kept: {head}");
    }
    Ok(())
}
