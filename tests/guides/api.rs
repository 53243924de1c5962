//! docs/api.md: its examples run exactly as written, and its lists of statuses and codes are complete.

use anyhow::{Context, Result, ensure};
use monstrum_types::{Code, Status};

use super::page;
use super::walk::{Place, examples};
use crate::world::World;

const PAGE: &str = "docs/api.md";

#[tokio::test]
async fn requests_are_answered_as_the_page_shows() -> Result<()> {
    let world = World::with(&[]).await?;
    let url = world.server.url().context("the server is not running")?.to_owned();
    let variables = vec![("URL", url), ("KEY", world.api.key().to_owned())];
    let examples = examples(&page(PAGE)?);
    ensure!(examples.len() >= 5, "only {} examples were found", examples.len());
    Place { folder: world.server.home(), variables, replacements: Vec::new() }.run(&examples).await
}

#[test]
fn every_status_and_code_of_a_call_is_explained() -> Result<()> {
    let page = page(PAGE)?;
    let is_explained = |word: &str| {
        page.lines().any(|line| {
            let words = line.strip_prefix("| ").and_then(|line| line.split(" | ").next()).unwrap_or_default();
            words.split(", ").any(|listed| listed == format!("`{word}`"))
        })
    };
    for word in Status::ALL.iter().map(|status| status.as_str()).chain(Code::ALL.iter().map(|code| code.as_str())) {
        ensure!(is_explained(word), "the page does not explain {word}");
    }
    Ok(())
}
