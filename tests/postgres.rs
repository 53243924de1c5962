//! PostgreSQL instead of SQLite. Only the address of the database changes. Several hosts can share a database. After
//! any failure of the database, the audit is complete and service resumes automatically.

mod agents;
mod faults;
pub(crate) mod hosts;
mod load;
mod owners;
mod rows;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use support::{Postgres, Server};

use crate::world::{World, text};

/// The variable that names the database.
const VARIABLE: &str = "MONSTRUM_DATABASE_URL";

/// Prepares a server whose database is at `url`.
pub(crate) fn server_on(url: &str) -> Result<Server> {
    Ok(Server::prepare(&["github"])?.variable(VARIABLE, url))
}

#[tokio::test]
async fn the_address_is_all_that_changes() -> Result<()> {
    let postgres = Postgres::on_tcp(&[])?;
    postgres.sql("postgres", "create database monstrum")?;
    let url = postgres.tcp_url("monstrum");
    let server = Server::prepare(&["github"])?.argument("--database-url").argument(&url);
    let mut world = World::on(server.variable("MONSTRUM_LOG", "info,monstrum=trace,sqlx=trace")).await?;
    world.grant("github", &["issue.*"], &json!({ "repos": ["acme/*"] })).await?;

    let served = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    assert_eq!(served["status"], "success", "{served}");
    let refused = world.call("github_list_issues", &json!({ "repo": "other/secret" })).await?;
    assert_eq!(refused["status"], "scope_violation", "{refused}");
    let audit = world.audit_of(&served).await?;
    let kinds: Vec<_> =
        audit["events"].as_array().context("events")?.iter().map(|event| text(&event["kind"])).collect();
    assert_eq!(kinds, ["started", "finished"]);
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    let of_calls = "select count(*) from audit_rows where tool is not null";
    assert_eq!(postgres.sql("monstrum", of_calls)?, "3");

    world.server.restart().await?;
    world.api = world.server.api()?;
    let again = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    assert_eq!(again["status"], "success", "{again}");
    assert!(!world.server.data_dir().join("monstrum.db").exists(), "the server also created a SQLite database");

    world.server.stop().await?;
    let folder = world.server.data_dir();
    let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
    let verify = ["audit", "verify", "--data-dir", folder, "--database-url", &url];
    let output = world.server.command(&verify).await?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told, "audit chain verified: 15 rows\n", "{}", String::from_utf8_lossy(&output.stderr));

    // The verification detects a changed row, like in SQLite.
    postgres.sql("monstrum", "drop trigger audit_rows_no_update on audit_rows")?;
    postgres.sql("monstrum", "update audit_rows set tool = 'github_get_issue' where sequence = 12")?;
    let output = world.server.command(&verify).await?;
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(1) && told.contains("the row was changed after it was written"), "{told}");

    let printed = world.server.output() + &told;
    ensure!(printed.contains("ready"), "the log contains no lines");
    for password in
        [postgres.password().to_owned(), url.split(['/', '@']).nth(2).context("a login")?.replace("postgres:", "")]
    {
        ensure!(!printed.contains(&password), "the password was shown");
    }
    Ok(())
}
