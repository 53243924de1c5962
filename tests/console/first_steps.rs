//! The first steps on a server: what an empty page says to do next.

use anyhow::Result;
use serde_json::json;

use super::{Browser, base};
use crate::world::World;

#[tokio::test]
async fn a_server_without_plugins_says_how_to_get_one() -> Result<()> {
    let world = World::with(&[]).await?;
    let folder = world.server.plugins_dir().canonicalize()?.display().to_string();
    let base = base(&world).await?;
    let root = Browser::log_in(&world, world.api.key()).await?;
    let page = root.page(&format!("{base}/plugins")).await?;
    for part in [folder.as_str(), "monstrum plugin reload NAME", "monstrum plugin install NAME-VERSION.mst"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // A key that cannot install plugins does not read a path of the server.
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let page = admin.page(&format!("{base}/plugins")).await?;
    assert!(!page.contains(&folder) && page.contains("Only a person with a root key"), "{page}");
    let types = root.page(&format!("{base}/resources/new")).await?;
    assert!(types.contains("Missing a type? Install its plugin."), "{types}");
    Ok(())
}

#[tokio::test]
async fn the_overview_leads_to_the_first_step_that_is_not_done() -> Result<()> {
    let next =
        |page: &str, base: &str, path: &str| page.contains(&format!("class=\"button primary\" href=\"{base}/{path}\""));
    for (plugins, makes_resource, expected) in [
        (&[][..], false, "plugins"),
        (&["test-echo"][..], false, "resources/new"),
        (&["test-echo"][..], true, "bots/new"),
    ] {
        let world = World::with(plugins).await?;
        if makes_resource {
            world.api.resource("test-echo", "echo", &world.github.url()).await?;
        }
        let browser = Browser::log_in(&world, world.api.key()).await?;
        let base = base(&world).await?;
        let page = browser.page(&format!("{base}/overview")).await?;
        for path in ["plugins", "resources/new", "bots/new"] {
            assert_eq!(next(&page, &base, path), path == expected, "{path}, {expected}: {page}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_binding_without_a_grant_names_the_field_that_lacks_it() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let bind = format!("{}/bots/{}/bind?resource={resource}", base(&world).await?, world.bot);
    let page = browser.page(&bind).await?;
    assert!(page.contains("name=\"operations.mode\" value=\"only\" checked"), "{page}");
    let mode = |value| [("operations.mode", value), ("tools.mode", "all"), ("enabled", "on"), ("save", "1")];
    for (value, label) in [("all", "<a href=\"#role_id\">Role</a>"), ("only", "<a href=\"#operations\">Operations</a>")]
    {
        let refused = browser.submit(&bind, &bind, &mode(value)).await?;
        assert!(refused.status == 422 && refused.text.contains(label), "{value}: {}", refused.text);
    }
    // A value that is ticked counts, also beside the choice of no restriction.
    let fields = [&mode("all")[..], &[("operations.known", "echo.read")]].concat();
    let saved = browser.submit(&bind, &bind, &fields).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let (_, bindings) = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?;
    assert_eq!(bindings["items"][0]["permissions"], json!({ "allowed_operations": ["echo.read"] }));
    Ok(())
}

#[tokio::test]
async fn a_resource_whose_address_is_not_opened_says_so_and_leads_to_the_field() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let new = format!("{}/resources/new?type=github", base(&world).await?);
    assert!(browser.page(&new).await?.contains("The credential comes next"), "the form says what comes next");
    let made = browser.submit(&new, &new, &[("name", "near"), ("p.api_base", "http://127.0.0.1:9000")]).await?;
    assert_eq!(made.status, 303, "{}", made.text);
    let resource = made.location().to_owned();
    let page = browser.page(&resource).await?;
    for field in ["allow_http", "allow_addresses"] {
        assert!(page.contains(&format!("href=\"{resource}/edit#{field}\"")), "{field}: {page}");
    }
    // Without an OAuth app, the page of the credential opens on the method that needs none.
    let credential = browser.page(&format!("{resource}/credential")).await?;
    assert!(credential.contains("name=\"p.access_token\""), "{credential}");
    let edit = format!("{resource}/edit");
    let opened = [
        ("name", "near"),
        ("p.api_base", "http://127.0.0.1:9000"),
        ("allow_http", "on"),
        ("allow_addresses", "127.0.0.0/8"),
    ];
    let saved = browser.submit(&edit, &edit, &opened).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    assert!(!browser.page(&resource).await?.contains("/edit#"), "nothing is missing any more");
    Ok(())
}
