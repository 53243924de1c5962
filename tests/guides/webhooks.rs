//! docs/webhooks.md, executed as it stands.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use support::Server;

use super::walk::{Place, examples};
use super::{page, search_path};

const PAGE: &str = "docs/webhooks.md";

#[tokio::test]
async fn requests_to_webhooks_are_answered_as_the_page_shows() -> Result<()> {
    let server = Server::start(&[]).await?;
    let home = server.home();
    fs::create_dir(home.join("bin"))?;
    symlink(support::program()?, home.join("bin/monstrum"))?;
    let variables = vec![
        ("PATH", format!("{}:{}", home.join("bin").display(), search_path()?)),
        ("MONSTRUM_URL", server.url().context("the server is not running")?.to_owned()),
        ("MONSTRUM_KEY", fs::read_to_string(server.key_file())?.trim().to_owned()),
    ];
    let found = examples(&page(PAGE)?);
    ensure!(found.len() >= 4, "the page has only {} examples", found.len());
    Place { folder: home, variables, replacements: Vec::new() }.run(&found).await?;
    let (_, webhooks) = server.api()?.get("/api/webhooks").await?;
    assert_eq!(webhooks["items"].as_array().map(Vec::len), Some(2));
    Ok(())
}
