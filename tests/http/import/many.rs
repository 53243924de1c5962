//! Imports of many objects, which are written in several transactions.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{Postgres, Server};

use super::{IMPORT, binding, bot, changes, import, joined, post, resource, role};
use crate::http::export::exported;
use crate::http::workspace;
use crate::world::{World, text};

const BOTS: usize = 30;
const RESOURCES: usize = 100;

/// Returns lines with one binding of each resource to each bot.
fn many(repos: &[&str]) -> String {
    let mut lines = vec![role("reader", repos)];
    lines.extend((0..BOTS).map(|number| bot(&format!("bot {number}"))));
    lines.extend((0..RESOURCES).map(|number| resource(&format!("resource {number}"))));
    for bot in 0..BOTS {
        let of_bot =
            (0..RESOURCES).map(|number| binding(&format!("bot {bot}"), &format!("resource {number}"), "reader"));
        lines.extend(of_bot);
    }
    joined(&lines)
}

#[tokio::test]
async fn thousands_of_bindings_are_imported_in_one_request() -> Result<()> {
    imported_in_transactions(&World::with(&["test-echo"]).await?).await
}

#[tokio::test]
async fn on_postgresql_it_is_the_same() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    postgres.sql("postgres", "create database monstrum")?;
    let server = Server::prepare(&["test-echo"])?.variable("MONSTRUM_DATABASE_URL", &postgres.url("monstrum"));
    imported_in_transactions(&World::on(server).await?).await
}

/// The time limit is much longer than the duration of the import, and much shorter than the duration of the same number
/// of single requests.
async fn imported_in_transactions(world: &World) -> Result<()> {
    let admin = workspace(&world.api, "acme").await?;
    let lines = many(&["acme/*"]);
    let began = Instant::now();
    let answer = import(&admin, &lines).await?;
    ensure!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let of_workspace = &answer["workspaces"][0];
    assert_eq!(of_workspace["created"]["bindings"], json!(BOTS * RESOURCES));
    let listed: usize = of_workspace["permissions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|bot| bot["gains"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!((listed, &of_workspace["permissions_left_out"]), (1000, &json!(BOTS * RESOURCES - 1000)));

    assert_eq!(exported(&admin).await?.lines().count(), lines.lines().count());
    let rows: Vec<(Value, usize)> = changes(&admin)
        .await?
        .into_iter()
        .filter(|change| change["change"] == "import.apply")
        .map(|change| (change["status"].clone(), change["after"]["objects"].as_array().map_or(0, Vec::len)))
        .collect();
    assert_eq!(rows, [131, 1000, 1000, 1000].map(|objects| (json!("success"), objects)));
    let again = import(&admin, &lines).await?;
    assert_eq!(again["workspaces"][0]["unchanged"]["bindings"], json!(BOTS * RESOURCES));
    Ok(())
}

/// If several imports into one workspace are sent at the same time, at most one runs at a time, and the others are
/// rejected.
#[tokio::test]
async fn a_workspace_has_one_import_at_a_time() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let admin = workspace(&world.api, "acme").await?;
    let lines = many(&["acme/*"]);
    let (first, second) = tokio::try_join!(post(&admin, IMPORT, &lines), post(&admin, IMPORT, &lines))?;
    let (done, refused) = if first.0 == 200 { (first, second) } else { (second, first) };
    assert_eq!((done.0, refused.0), (200, 409), "{} {}", done.1, refused.1);
    ensure!(text(&refused.1["detail"]).contains("another import into this workspace is running"), "{}", refused.1);
    import(&admin, &lines).await?;
    Ok(())
}

/// The database fails in the third transaction.
#[tokio::test]
async fn an_import_that_was_broken_off_goes_on() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let data = world.server.data_dir();
    let lines = many(&["acme/*"]);
    let fail = "create trigger fail before insert on bot_resources \
                when (select count(*) from bot_resources) >= 1900 begin select raise(abort, 'no'); end";
    crate::tamper::sqlite(&data, &[fail]).await?;
    let (status, answer) = post(&world.api, IMPORT, &lines).await?;
    let done = "2000 of 3131 changed objects were written; repeat the import to write the remaining objects";
    ensure!(status == 500 && text(&answer["detail"]).ends_with(done), "{status} {answer}");
    let errors = changes(&world.api).await?.into_iter().filter(|change| change["status"] == "error").count();
    assert_eq!(errors, 1, "the audit has the transaction that failed");

    crate::tamper::sqlite(&data, &["drop trigger fail"]).await?;
    let again = import(&world.api, &lines).await?;
    let of_workspace = &again["workspaces"][0];
    assert_eq!(
        (&of_workspace["unchanged"]["bindings"], &of_workspace["created"]["bindings"]),
        (&json!(1869), &json!(1131))
    );
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

/// A row changes after it was checked: a trigger changes it when the audit row of the import is written, before the
/// import writes its rows.
#[tokio::test]
async fn an_object_that_changed_meanwhile_is_a_conflict() -> Result<()> {
    let world = World::with(&[]).await?;
    let change = "create trigger change after insert on audit_rows when new.body like '%import.apply%' \
                  begin update bots set updated_at = updated_at + 1; end";
    crate::tamper::sqlite(&world.server.data_dir(), &[change]).await?;
    let mut tester = bot("tester");
    tester["description"] = json!("another");
    let (status, answer) = post(&world.api, IMPORT, &joined(&[role("new", &[]), tester])).await?;
    let detail = text(&answer["detail"]);
    ensure!(status == 409 && detail.contains("changed or deleted by another request"), "{status} {answer}");
    ensure!(detail.contains("0 of 2 changed objects were written"), "{detail}");
    assert_eq!(world.api.get("/api/roles").await?.1["items"], json!([]), "nothing of the transaction was written");
    Ok(())
}
