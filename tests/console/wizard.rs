//! The wizard of the demo, from an empty server to an allowed and a denied call, and the removal of the demo.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Postgres, Server};

use super::{Browser, base};
use crate::world::{World, text};

const STEPS: [&str; 4] = ["plugin", "bot", "credential", "access"];
/// A text with markup and an invisible character.
const HOSTILE: &str = "<script>x</script>\u{202e}";

/// Starts a server without bots and resources.
async fn empty(plugins: &[&str]) -> Result<World> {
    let world = World::with(plugins).await?;
    world.api.delete(&format!("/api/bots/{}", world.bot)).await?;
    Ok(world)
}

/// Makes a step through the API.
async fn step(world: &World, step: &str) -> Result<(u16, Value)> {
    world.api.post("/api/demo", &json!({ "step": step })).await
}

/// Makes all steps through the API, and returns the demo.
async fn set_up(world: &World) -> Result<Value> {
    let mut demo = Value::Null;
    for name in STEPS {
        let (status, answer) = step(world, name).await?;
        ensure!(status == 200, "{name}: {status} {answer}");
        demo = answer;
    }
    Ok(demo)
}

/// Returns the states of the steps.
fn states(demo: &Value) -> Vec<&str> {
    demo["steps"].as_array().into_iter().flatten().map(|step| text(&step["status"])).collect()
}

/// Returns the number of steps that a page shows.
fn cards(page: &str) -> usize {
    let list = page.split("<ol").nth(1).and_then(|rest| rest.split("</ol>").next());
    list.map_or(0, |list| list.matches("<li class=\"card\">").count())
}

async fn names(world: &World, path: &str) -> Result<Vec<String>> {
    let (_, list) = world.api.get(path).await?;
    Ok(list["items"].as_array().into_iter().flatten().map(|item| text(&item["name"]).to_owned()).collect())
}

#[tokio::test]
async fn the_wizard_leads_from_an_empty_server_to_a_denied_call_and_leaves_nothing() -> Result<()> {
    let world = empty(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (demo, overview) = (format!("{base}/demo"), format!("{base}/overview"));
    let mut posts = 1;
    assert_eq!(cards(&browser.page(&overview).await?), 5);
    let mut page = overview.clone();
    for step in STEPS {
        assert!(browser.page(&page).await?.contains(&format!("name=\"step\" value=\"{step}\"")), "{step} is next");
        let made = browser.submit(&page, &demo, &[("step", step)]).await?;
        assert_eq!((made.status, made.location()), (303, demo.as_str()), "{}", made.text);
        posts += 1;
        page.clone_from(&demo);
    }
    let ready = browser.page(&demo).await?;
    assert_eq!(ready.matches("status success").count(), 4, "{ready}");
    assert!(ready.contains("opens the address 127.0.0.1 and http") && ready.contains("http://127.0.0.1:"), "{ready}");
    let call = format!("{demo}/call");
    for (which, message) in [("inside", "Welcome to the notebook"), ("outside", "Notebook board is not authorized")] {
        let called = browser.submit(&demo, &call, &[("which", which)]).await?;
        assert_eq!((called.status, called.location()), (303, demo.as_str()), "{}", called.text);
        posts += 1;
        let shown = browser.page(&demo).await?;
        assert!(shown.contains(message), "{which}: {shown}");
    }
    let denied = browser.page(&demo).await?;
    assert!(denied.contains("status denied") && denied.contains("why denied"), "{denied}");

    let change = denied.split("href=\"").find(|part| part.contains("/change?")).context("the change is offered")?;
    let change = change.split('"').next().context("a path")?.replace("&#38;", "&");
    let action = change.split('?').next().context("a path")?;
    assert_eq!(browser.submit(&change, action, &[]).await?.status, 303);
    browser.submit(&demo, &call, &[("which", "outside")]).await?;
    posts += 2;
    let allowed = browser.page(&demo).await?;
    assert!(allowed.contains("The minutes of the board") && !allowed.contains("status denied"), "{allowed}");

    let removed = browser.submit(&demo, &format!("{demo}/remove"), &[]).await?;
    posts += 1;
    assert_eq!((removed.status, removed.location()), (303, overview.as_str()), "{}", removed.text);
    assert!(posts <= 12, "{posts} posts");
    for path in ["/api/bots", "/api/resources", "/api/plugins", "/api/roles"] {
        assert_eq!(names(&world, path).await?, [""; 0], "{path}");
    }
    assert!(!world.server.plugins_dir().join("notebook").exists());
    assert!(!world.server.data_dir().join("demo.json").exists());
    assert_eq!(cards(&browser.page(&overview).await?), 5, "the server is empty again");
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn steps_are_made_once_and_in_order() -> Result<()> {
    let world = empty(&[]).await?;
    for name in ["credential", "access"] {
        assert_eq!(step(&world, name).await?.0, 409, "{name} needs an earlier step");
    }
    assert_eq!(step(&world, "other").await?.0, 422);
    let (first, second) = tokio::join!(step(&world, "bot"), step(&world, "bot"));
    assert_eq!(first?.1["bot"], second?.1["bot"]);
    let (first, second) = tokio::join!(step(&world, "plugin"), step(&world, "plugin"));
    assert_eq!(first?.1["upstream"], second?.1["upstream"]);
    let demo = set_up(&world).await?;
    assert_eq!(states(&demo), ["done"; 4]);
    assert_eq!(set_up(&world).await?["binding_id"], demo["binding_id"]);
    for path in ["/api/bots", "/api/resources", "/api/plugins"] {
        assert_eq!(names(&world, path).await?.len(), 1, "{path}");
    }
    // The token is sealed, and no answer shows it.
    assert!(!demo.to_string().contains("token"), "{demo}");
    Ok(())
}

#[tokio::test]
async fn objects_of_people_with_the_same_names_stay() -> Result<()> {
    let world = empty(&["test-echo"]).await?;
    world.api.bot("demo").await?;
    world.api.resource("test-echo", "demo-notebook", "https://echo.example").await?;
    let demo = set_up(&world).await?;
    assert_eq!(
        (text(&demo["bot"]["name"]), text(&demo["resource"]["name"])),
        ("demo-2", "demo-notebook-2"),
        "free names are taken"
    );
    let renamed = json!({ "name": HOSTILE });
    world.api.patch(&format!("/api/bots/{}", text(&demo["bot"]["id"])), &renamed).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = browser.page(&format!("{}/demo", base(&world).await?)).await?;
    assert!(page.contains("\\u{202e}") && !page.contains("<script>x") && !page.contains('\u{202e}'), "{page}");
    assert_eq!(world.api.delete("/api/demo").await?.0, 204);
    assert_eq!(names(&world, "/api/bots").await?, ["demo"]);
    assert_eq!(names(&world, "/api/resources").await?, ["demo-notebook"]);
    assert_eq!(world.api.delete("/api/demo").await?.0, 204, "nothing is left to remove");
    Ok(())
}

#[tokio::test]
async fn another_plugin_named_notebook_is_neither_replaced_nor_removed() -> Result<()> {
    let server = Server::prepare(&[])?;
    server.install_as("test-echo", "notebook")?;
    let world = World::on(server).await?;
    let manifest = world.server.plugins_dir().join("notebook/monstrum.yaml");
    let before = std::fs::read(&manifest)?;
    let (status, refused) = step(&world, "plugin").await?;
    assert_eq!(status, 409, "{refused}");
    assert!(text(&refused["detail"]).contains("which is not the bundled one"), "{refused}");
    assert_eq!(world.api.get("/api/demo").await?.1["upstream"], Value::Null, "the upstream does not run");
    assert_eq!(world.api.delete("/api/demo").await?.0, 204);
    assert_eq!(std::fs::read(&manifest)?, before);
    Ok(())
}

#[tokio::test]
async fn after_a_restart_the_upstream_is_started_again_with_a_new_token() -> Result<()> {
    let mut world = empty(&[]).await?;
    let before = set_up(&world).await?;
    world.server.restart().await?;
    world.api = world.server.api()?;
    let (_, demo) = world.api.get("/api/demo").await?;
    assert_eq!(states(&demo), ["stopped", "done", "done", "done"]);
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = format!("{}/demo", base(&world).await?);
    assert!(browser.page(&page).await?.contains("does not run any more"));
    let bot = text(&demo["bot"]["id"]);
    let read =
        async |world: &World| world.api.call(bot, text(&demo["inside"]["tool"]), &demo["inside"]["params"]).await;
    assert_eq!(read(&world).await?["status"], "error");
    assert_eq!(browser.submit(&page, &page, &[("step", "plugin")]).await?.status, 303);
    let (_, again) = world.api.get("/api/demo").await?;
    assert_eq!(states(&again), ["done"; 4]);
    assert_eq!(again["resource"], before["resource"]);
    assert_eq!(read(&world).await?["status"], "success");

    // The removal also works while the upstream does not run.
    world.server.restart().await?;
    world.api = world.server.api()?;
    assert_eq!(world.api.delete("/api/demo").await?.0, 204);
    for path in ["/api/bots", "/api/resources", "/api/plugins"] {
        assert_eq!(names(&world, path).await?, [""; 0], "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_removal_that_stops_half_way_is_repeated() -> Result<()> {
    let world = empty(&[]).await?;
    let demo = set_up(&world).await?;
    let other = world.api.bot("other").await?;
    let binding = json!({ "resource_id": demo["resource"]["id"], "permissions": { "allowed_tools": ["*"] } });
    assert_eq!(world.api.post(&format!("/api/bots/{other}/resources"), &binding).await?.0, 201);
    let (status, refused) = world.api.delete("/api/demo").await?;
    assert_eq!(status, 409);
    assert!(text(&refused["detail"]).contains("bound to another bot"), "{refused}");
    let (_, half) = world.api.get("/api/demo").await?;
    assert_eq!(states(&half), ["done", "todo", "done", "todo"]);
    world.api.delete(&format!("/api/bots/{other}")).await?;
    assert_eq!(world.api.delete("/api/demo").await?.0, 204);
    for path in ["/api/bots", "/api/resources", "/api/plugins"] {
        assert_eq!(names(&world, path).await?, [""; 0], "{path}");
    }
    assert_eq!(states(&set_up(&world).await?), ["done"; 4], "the demo can be set up again");
    Ok(())
}

#[tokio::test]
async fn a_record_that_another_program_changed_deletes_nothing() -> Result<()> {
    let world = empty(&[]).await?;
    let demo = set_up(&world).await?;
    let other = world.api.bot("other").await?;
    let path = world.server.data_dir().join("demo.json");
    let record = std::fs::read_to_string(&path)?;
    std::fs::write(&path, record.replace(text(&demo["bot"]["id"]), &other))?;
    assert_eq!(world.api.delete("/api/demo").await?.0, 409);
    assert_eq!(names(&world, "/api/bots").await?, ["demo", "other"]);
    Ok(())
}

#[tokio::test]
async fn a_skipped_wizard_leaves_an_empty_list() -> Result<()> {
    let world = empty(&[]).await?;
    let mut browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (overview, skip) = (format!("{base}/overview"), format!("{base}/demo/skip"));
    let skipped = browser.submit(&overview, &skip, &[]).await?;
    assert_eq!((skipped.status, skipped.location()), (303, overview.as_str()));
    browser.cookie = format!("{}; monstrum-demo=skipped", browser.cookie);
    let page = browser.page(&overview).await?;
    assert!(!page.contains("<ol") && page.contains(&format!("{base}/demo\"")), "{page}");
    Ok(())
}

#[tokio::test]
async fn only_a_root_key_sees_the_demo_and_only_in_its_workspace() -> Result<()> {
    let world = empty(&[]).await?;
    let base = base(&world).await?;
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    assert!(!admin.page(&format!("{base}/overview")).await?.contains("<ol"));
    assert_eq!(admin.get(&format!("{base}/demo")).await?.status, 403);
    set_up(&world).await?;
    let (_, other) = world.api.post("/api/workspaces", &json!({ "name": "other" })).await?;
    let root = Browser::log_in(&world, world.api.key()).await?;
    let elsewhere = root.page(&format!("/console/w/{}/demo", text(&other["id"]))).await?;
    assert!(elsewhere.contains("The demo is in another workspace"), "{elsewhere}");
    let removed = world.api.request(Method::DELETE, "/api/demo").header("Monstrum-Workspace", "other").send().await?;
    assert_eq!(removed.status(), 409);
    assert_eq!(names(&world, "/api/bots").await?, ["demo"]);
    Ok(())
}

#[tokio::test]
async fn a_server_on_a_shared_database_has_no_demo() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    postgres.sql("postgres", "create database monstrum")?;
    let server = Server::prepare(&[])?.variable("MONSTRUM_DATABASE_URL", &postgres.url("monstrum"));
    let world = World::on(server).await?;
    assert_eq!(world.api.get("/api/demo").await?.1["unavailable"], "shared_database");
    let (status, refused) = step(&world, "plugin").await?;
    assert_eq!(status, 409, "{refused}");
    assert!(text(&refused["detail"]).contains("no other host uses"), "{refused}");
    Ok(())
}
