//! README.md: its first calls, run exactly as written.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::page;
use super::walk::{Place, examples};
use crate::world::World;

const PAGE: &str = "README.md";

/// The test uses the set-up of `cargo xtask demo --keep`: the bot may work with issues of acme/*.
#[tokio::test]
async fn the_first_calls_are_answered_as_the_readme_shows() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["issue.*"], &json!({ "repos": ["acme/*"] })).await?;
    let url = world.server.url().context("the server is not running")?.to_owned();
    let program = support::program()?;
    let folder = program.parent().context("the program is in no folder")?;
    let path = format!("{}:{}", folder.display(), super::search_path()?);
    let key = world.api.key().to_owned();
    let variables = vec![("MONSTRUM_URL", url), ("MONSTRUM_KEY", key), ("PATH", path)];
    let examples = examples(&page(PAGE)?);
    ensure!(examples.len() == 3, "the page must show an allowed call, a rejected call and a check");
    let replacements = vec![("triage", "tester".to_owned())];
    Place { folder: world.server.home(), variables, replacements }.run(&examples).await
}

#[test]
fn the_readme_is_one_page() -> Result<()> {
    let lines = page(PAGE)?.lines().count();
    ensure!(lines <= 110, "README.md has {lines} lines; move manuals to docs/");
    Ok(())
}
