//! An attacker with write access to the database only. The rows that the attacker writes permit nothing, and the log,
//! `doctor` and the verification of the audit report them.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use support::{Bound, Postgres, Server};

use crate::http::send;
use crate::tamper::sqlite;
use crate::world::{World, eventually, text};

/// The statement that announces a change. Other hosts detect changes by the column `generation`.
const BELL: &str = "update settings set generation = generation + 1";

/// The database whose rows are attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgres,
}

/// Returns the server that all tests of this file share.
fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::for_all(&["fsync=off", "max_connections=300"]).expect("PostgreSQL starts"))
}

/// A server with a bot that may use one operation. A call of the bot succeeds.
struct Scene {
    world: World,
    bound: Bound,
    /// The name of the database on PostgreSQL.
    database: Option<String>,
}

impl Scene {
    async fn make() -> Result<Scene> {
        Scene::on(Kind::Sqlite).await
    }

    async fn on(kind: Kind) -> Result<Scene> {
        let (mut server, mut database) = (Server::prepare(&["test-echo"])?, None);
        if kind == Kind::Postgres {
            let url = postgres().database()?;
            database = url.split(['/', '?']).nth(3).map(str::to_owned);
            server = server.variable("MONSTRUM_DATABASE_URL", &url);
        }
        let world = World::on(server).await?;
        let bound = world.grant("test-echo", &["echo.*"], &json!({ "repos": ["acme/*"] })).await?;
        let scene = Scene { world, bound, database };
        ensure!(scene.call().await?.0 == 200, "the call works before the attack");
        Ok(scene)
    }

    /// Runs the statements on the database of a running server, or of a server that is started afterwards.
    async fn attack_while(&mut self, is_running: bool, statements: &[&str]) -> Result<()> {
        if is_running {
            return self.attack(&[statements, &[BELL]].concat()).await;
        }
        self.world.server.stop().await?;
        self.attack(statements).await?;
        self.world.server.launch().await?;
        self.world.api = self.world.server.api()?;
        Ok(())
    }

    async fn call(&self) -> Result<(u16, Value)> {
        let path = format!("/api/bots/{}/tools/test_echo_run/call", self.world.bot);
        self.world.api.post(&path, &json!({ "params": { "repo": "acme/site" } })).await
    }

    fn binding(&self) -> String {
        format!("/api/bots/{}/resources/{}", self.world.bot, self.bound.binding)
    }

    /// Runs the statements in one transaction, so that no host reads only a part of the changes.
    async fn attack(&self, statements: &[&str]) -> Result<()> {
        match &self.database {
            None => {
                let statements = [&["begin immediate"], statements, &["commit"]].concat();
                sqlite(&self.world.server.data_dir(), &statements).await?;
            }
            // All statements of one `psql` command run in one transaction.
            Some(database) => drop(postgres().sql(database, &statements.join("; "))?),
        }
        Ok(())
    }

    /// Returns the newest generation of the seals.
    async fn generation(&self) -> Result<i64> {
        const NEWEST: &str = "select max(generation) from policy_seals";
        match &self.database {
            None => {
                let rows = sqlite(&self.world.server.data_dir(), &[NEWEST]).await?;
                rows[0][0].as_i64().context("there are no seals")
            }
            Some(database) => Ok(postgres().sql(database, NEWEST)?.trim().parse()?),
        }
    }

    /// Checks that calls, changes and exports are rejected, and that the log, `doctor` and the verification of the
    /// audit report the row or scope.
    async fn is_refused_and_named(&self, named: &str) -> Result<()> {
        let is_unverified =
            |(status, body): &(u16, Value)| *status == 503 && text(&body["type"]) == "urn:monstrum:error:unverified";
        eventually("the call is rejected", async || Ok(is_unverified(&self.call().await?).then_some(()))).await?;
        let change = self.world.api.post("/api/roles", &json!({ "name": "new" })).await?;
        ensure!(is_unverified(&change), "a change was not rejected: {change:?}");
        let export = self.world.api.get("/api/export").await?;
        ensure!(is_unverified(&export), "an export of all workspaces was not rejected: {export:?}");
        let export = self.world.api.request(Method::GET, "/api/export").header("Monstrum-Workspace", "default");
        let (status, _, answer) = send(export).await?;
        ensure!(
            is_unverified(&(status, answer.clone())),
            "an export of one workspace was not rejected: {status} {answer}"
        );
        let import = self.world.api.request(Method::POST, "/api/import").body("");
        let (status, _, answer) = send(import).await?;
        ensure!(is_unverified(&(status, answer.clone())), "an import is refused, too: {status} {answer}");
        self.is_named(named).await
    }

    /// Returns the complete output of `doctor`.
    async fn doctor(&self) -> Result<String> {
        let folder = self.world.server.data_dir();
        let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
        let doctor = self.world.server.command(&["doctor", "--data-dir", folder]).await?;
        Ok(format!("{}{}", String::from_utf8_lossy(&doctor.stdout), String::from_utf8_lossy(&doctor.stderr)))
    }

    async fn is_named(&self, named: &str) -> Result<()> {
        let report = self.world.api.verify_audit().await?;
        ensure!(
            report["valid"] == false && report.to_string().contains(named),
            "`audit verify` does not report {named}: {report}"
        );
        let found = self.doctor().await?;
        ensure!(found.contains(named), "`doctor` does not report {named}: {found}");
        let log = self.world.server.output();
        ensure!(log.contains(named), "the log does not report {named}: {log}");
        Ok(())
    }
}

/// Gates restrict what is granted, so a row without its gates would grant more.
#[rstest]
#[case::of_the_bot("bots", "update bots set gates = null")]
#[case::of_the_role("roles", "update roles set gates = '[]'")]
#[case::of_the_binding("bot_resources", "update bot_resources set gates = replace(gates, 'deny', 'ask')")]
#[case::labels("resources", "update resources set labels = null")]
#[case::of_a_bot_without_gates("bots", "update bots set gates = '[{\"action\":\"ask\"}]' where gates is null")]
#[tokio::test]
async fn gates_and_labels_are_not_edited(#[case] table: &str, #[case] statement: &str) -> Result<()> {
    let mut scene = Scene::make().await?;
    let (api, gates) = (&scene.world.api, json!([{ "action": "deny", "when": { "repos": ["acme/secret"] } }]));
    let roles = api.get("/api/roles").await?.1;
    for (path, change) in [
        (format!("/api/bots/{}", scene.world.bot), json!({ "gates": gates })),
        (format!("/api/roles/{}", text(&roles["items"][0]["id"])), json!({ "gates": gates })),
        (scene.binding(), json!({ "gates": gates })),
        (format!("/api/resources/{}", scene.bound.resource), json!({ "labels": ["private"] })),
    ] {
        let (status, answer) = api.patch(&path, &change).await?;
        ensure!(status == 200, "{path}: {answer}");
    }
    api.bot("other").await?;
    ensure!(scene.call().await?.0 == 200, "the call works before the attack");
    scene.attack_while(true, &[statement]).await?;
    scene.is_refused_and_named(&format!("row {table}/")).await
}

/// Each case has the table that the reports name, and the change of the attacker.
#[rstest]
#[case::role_widened("roles", "update roles set allowed_operations = '[\"*\"]', scope_constraints = '{}'")]
#[case::resource_moved("resources", "update resources set config = replace(config, '127.0.0.1', '127.0.0.9')")]
#[case::credential_for_another_audience(
    "credentials",
    "update credentials set given_for = replace(given_for, '127.0.0.1', '127.0.0.9')"
)]
#[case::bot_edited("bots", "update bots set system_prompt = 'obey'")]
#[case::binding_without_end("bot_resources", "update bot_resources set scope_constraints = '{}'")]
#[tokio::test]
async fn an_edited_row_stops_its_workspace(
    #[case] table: &str,
    #[case] statement: &str,
    #[values(true, false)] is_running: bool,
) -> Result<()> {
    let mut scene = Scene::make().await?;
    scene.attack_while(is_running, &[statement]).await?;
    scene.is_refused_and_named(&format!("row {table}/")).await
}

#[rstest]
#[tokio::test]
async fn a_forged_root_key_does_not_exist(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) -> Result<()> {
    let scene = Scene::on(kind).await?;
    let hash = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";
    let forged = format!(
        "insert into api_keys (id, workspace_id, name, kind, bot_id, prefix, hash, created_at, mac) \
         select '019a0000-0000-7000-8000-000000000001', null, 'forged', 'root', null, prefix, '{hash}', created_at, mac \
         from api_keys where kind = 'root'"
    );
    scene.attack(&[&forged, BELL]).await?;
    let named = "row api_keys/019a0000-0000-7000-8000-000000000001";
    eventually("the log names the key", async || Ok(scene.world.server.output().contains(named).then_some(()))).await?;
    scene.is_named(named).await?;
    ensure!(scene.call().await?.0 == 200, "the additional row affects other rows");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn a_bot_key_does_not_become_a_root_key(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) -> Result<()> {
    let scene = Scene::on(kind).await?;
    let body = json!({ "name": "b", "kind": "bot", "bot_id": scene.world.bot });
    let key = scene.world.api.post("/api/keys", &body).await?.1;
    let bot = scene.world.api.with_key(text(&key["key"]));
    let widened = "update api_keys set kind = 'root', workspace_id = null, bot_id = null where kind = 'bot'";
    scene.attack(&[widened, BELL]).await?;
    scene.is_refused_and_named("row api_keys/").await?;
    assert_eq!(bot.get("/api/workspaces").await?.0, 401);
    Ok(())
}

/// An agent key does not become the key of another resource.
#[rstest]
#[tokio::test]
async fn an_agent_key_stays_with_its_resource(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) -> Result<()> {
    let scene = Scene::on(kind).await?;
    let mut keys = Vec::new();
    for name in ["one", "two"] {
        let resource = json!({ "resource_type": "agent", "name": name });
        let (_, resource) = scene.world.api.post("/api/resources", &resource).await?;
        let body = json!({ "name": name, "kind": "agent", "resource_id": resource["id"] });
        let key = scene.world.api.post("/api/keys", &body).await?.1;
        keys.push(scene.world.api.with_key(text(&key["key"])));
    }
    assert_eq!(keys[0].get("/ws/agent").await?.0, 426);
    let moved = "update api_keys set resource_id = (select id from resources where name = 'two') where name = 'one'";
    scene.attack(&[moved, BELL]).await?;
    scene.is_refused_and_named("row api_keys/").await?;
    assert_eq!(keys[0].get("/ws/agent").await?.0, 401);
    Ok(())
}

#[rstest]
#[tokio::test]
async fn a_deleted_key_and_a_deleted_binding_stay_deleted(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) -> Result<()> {
    let scene = Scene::on(kind).await?;
    let key = scene.world.api.post("/api/keys", &json!({ "name": "k", "kind": "admin" })).await?.1;
    let keep = ["create table kept_keys as select * from api_keys", "create table kept as select * from bot_resources"];
    scene.attack(&keep).await?;
    let of_key = format!("/api/keys/{}", text(&key["id"]));
    assert_eq!(scene.world.api.delete(&of_key).await?.0, 204);
    assert_eq!(scene.world.api.delete(&scene.binding()).await?.0, 204);
    let back = [
        "insert into api_keys select * from kept_keys where name = 'k'",
        "insert into bot_resources select * from kept",
        BELL,
    ];
    scene.attack(&back).await?;
    scene.is_refused_and_named("failed verification").await?;
    let log = scene.world.server.output();
    ensure!(log.contains(text(&key["id"])) && log.contains(&scene.bound.binding), "{log}");
    let found = scene.doctor().await?;
    for row in [format!("row api_keys/{}", text(&key["id"])), format!("row bot_resources/{}", scene.bound.binding)] {
        ensure!(found.contains(&format!("{row} exists, but the audit records its deletion at")), "{found}");
    }
    let revoked = scene.world.api.with_key(text(&key["key"]));
    assert_eq!(revoked.get("/api/bots").await?.0, 401, "this host does not remember the deletion of the key");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn a_binding_that_was_switched_off_is_not_switched_on_again(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) -> Result<()> {
    let scene = Scene::on(kind).await?;
    scene.attack(&["create table kept as select * from bot_resources"]).await?;
    assert_eq!(scene.world.api.patch(&scene.binding(), &json!({ "enabled": false })).await?.0, 200);
    let back = ["delete from bot_resources", "insert into bot_resources select * from kept", BELL];
    scene.attack(&back).await?;
    scene.is_refused_and_named("failed verification").await?;
    let row = format!("row bot_resources/{}", scene.bound.binding);
    let found = scene.doctor().await?;
    ensure!(found.contains(&format!("{row} differs from its last change in the audit at")), "{found}");
    scene.attack(&["delete from bot_resources", BELL]).await?;
    let found = scene.doctor().await?;
    ensure!(found.contains(&format!("{row} is missing; the audit records its last change at")), "{found}");
    Ok(())
}

/// Each row keeps its content and MAC, but has the id of the other row.
#[rstest]
#[tokio::test]
async fn two_rows_do_not_change_places(
    #[values(true, false)] is_running: bool,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) -> Result<()> {
    let mut scene = Scene::on(kind).await?;
    let roles = scene.world.api.get("/api/roles").await?.1;
    let here = text(&roles["items"][0]["id"]).to_owned();
    let there = scene.world.api.role("wide", &["*"]).await?;
    let columns =
        ["name", "allowed_operations", "allowed_tools", "scope_constraints", "created_at", "updated_at", "mac"];
    let taken: Vec<String> = columns
        .iter()
        .map(|column| {
            format!(
                "{column} = (select {column} from kept where kept.id <> roles.id and kept.id in ('{here}', '{there}'))"
            )
        })
        .collect();
    let swap = format!("update roles set {} where id in ('{here}', '{there}')", taken.join(", "));
    // Names must be unique at every moment.
    let aside = "update roles set name = id";
    scene.attack_while(is_running, &["create table kept as select * from roles", aside, &swap]).await?;
    for role in [&here, &there] {
        scene.is_refused_and_named(&format!("row roles/{role}")).await?;
    }
    Ok(())
}

/// The row and its seal are valid, but older than the row and the seal that this host has read.
#[rstest]
#[tokio::test]
async fn a_seal_is_not_put_back_with_its_rows(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) -> Result<()> {
    let scene = Scene::on(kind).await?;
    scene
        .attack(&[
            "create table kept as select * from bot_resources",
            "create table kept_seals as select * from policy_seals",
        ])
        .await?;
    let signed = || -> Result<i64> {
        let heads = std::fs::read_to_string(scene.world.server.data_dir().join("audit-heads.log"))?;
        let last: Value = serde_json::from_str(heads.lines().last().context("the audit has no signed head")?)?;
        last["policy_generation"].as_i64().context("the head does not contain the state of the policy")
    };
    // The newest head may be older than these seals, so it says nothing about them.
    let kept = scene.generation().await?;
    assert_eq!(scene.world.api.delete(&scene.binding()).await?.0, 204);
    eventually("a head covers the deletion", async || Ok((signed()? > kept).then_some(()))).await?;
    let back = [
        "delete from policy_seals",
        "insert into policy_seals select * from kept_seals",
        "insert into bot_resources select * from kept",
        BELL,
    ];
    scene.attack(&back).await?;
    // This host has read the newer seal. `doctor`, as a new process, has the head that was signed for it.
    scene.is_refused_and_named("generation").await?;
    let log = scene.world.server.output();
    ensure!(log.contains("its seal has generation"), "{log}");
    Ok(())
}

#[rstest]
#[case::dropped(&["delete from policy_seals", BELL])]
#[case::of_another_plugin_version(&["update plugins set version = '9.9.9'", BELL])]
#[tokio::test]
async fn an_instance_that_is_not_verified_is_not_ready(
    #[case] statements: &[&str],
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) -> Result<()> {
    let scene = Scene::on(kind).await?;
    scene.attack(statements).await?;
    scene.is_refused_and_named("scope `instance`").await?;
    assert_eq!(scene.world.api.get("/readyz").await?.0, 503);
    Ok(())
}

#[tokio::test]
async fn an_operator_looks_and_seals_what_is_there() -> Result<()> {
    let mut scene = Scene::make().await?;
    scene.world.server.stop().await?;
    scene.attack(&["update roles set name = 'renamed'"]).await?;
    let folder = scene.world.server.data_dir();
    let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
    let seal = ["vault", "seal", "--scope", "default", "--data-dir", folder];
    let asked = scene.world.server.command(&seal).await?;
    ensure!(!asked.status.success(), "rows were sealed before the operator confirmed");
    ensure!(
        String::from_utf8_lossy(&asked.stdout).contains("missing or wrong MAC"),
        "the output does not show the row"
    );
    let sealed = scene.world.server.command(&[&seal[..], &["--yes"]].concat()).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    scene.world.server.launch().await?;
    scene.world.api = scene.world.server.api()?;
    ensure!(scene.call().await?.0 == 200, "the workspace is not served again");
    let changes = scene.world.api.get("/api/audit/changes").await?.1;
    ensure!(changes.to_string().contains("vault.seal"), "the audit does not record the sealing: {changes}");
    ensure!(scene.world.api.verify_audit().await?["valid"] == true, "the audit is whole");
    Ok(())
}

/// Converts the database of a data folder to a database from before rows were authenticated: the rows have no MAC, and
/// the folder has no seals, no row key, and no head of the audit that indicates otherwise.
pub(crate) async fn strip(data_dir: &Path) -> Result<()> {
    let tables = [
        "workspaces",
        "api_keys",
        "roles",
        "bots",
        "resources",
        "credentials",
        "bot_resources",
        "oauth_providers",
        "plugins",
        "plugin_versions",
        "trust",
        "owners",
    ];
    let mut statements: Vec<String> = tables.iter().map(|table| format!("update {table} set mac = null")).collect();
    statements.push("update plugin_versions set locales_digest = null".to_owned());
    statements.push("delete from policy_seals".to_owned());
    statements.push("delete from instance_keys where name = 'rows'".to_owned());
    sqlite(data_dir, &statements.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    Ok(std::fs::remove_file(data_dir.join("audit-heads.log"))?)
}

#[tokio::test]
async fn a_database_from_before_is_sealed_by_an_operator_only() -> Result<()> {
    let mut scene = Scene::make().await?;
    scene.world.server.stop().await?;
    strip(&scene.world.server.data_dir()).await?;
    ensure!(scene.world.server.launch().await.is_err(), "the start sealed rows");
    let output = scene.world.server.output();
    ensure!(output.contains("monstrum vault seal"), "the output does not name the command: {output}");
    let folder = scene.world.server.data_dir();
    let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
    let sealed = scene.world.server.command(&["vault", "seal", "--yes", "--data-dir", folder]).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    let shown = String::from_utf8_lossy(&sealed.stdout).into_owned();
    ensure!(
        shown.contains("root") && shown.contains("test-echo"),
        "the output does not list keys and plugins: {shown}"
    );
    scene.world.server.launch().await?;
    scene.world.api = scene.world.server.api()?;
    ensure!(scene.call().await?.0 == 200, "calls are not served again");
    let again = scene.world.server.command(&["vault", "seal", "--yes", "--data-dir", folder]).await?;
    ensure!(!again.status.success(), "the rows were sealed more than once");
    scene.world.server.stop().await?;
    let again = scene.world.server.command(&["vault", "seal", "--yes", "--data-dir", folder]).await?;
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(!again.status.success() && told.contains("are already sealed"), "{told}");
    ensure!(!told.contains("accept-loss"), "the output suggests `accept-loss` although nothing is lost: {told}");
    Ok(())
}
