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
    let fields = [&mode("all")[..], &[("operations.known", "echo.run")]].concat();
    let saved = browser.submit(&bind, &bind, &fields).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let (_, bindings) = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?;
    assert_eq!(bindings["items"][0]["permissions"], json!({ "allowed_operations": ["echo.run"] }));
    Ok(())
}
