//! docs/operators-guide.md: the API accepts its requests.

use anyhow::{Context, Result, ensure};

use super::walk::{Place, indented};
use super::{page, search_path};
use crate::world::World;

/// The sections that need only a server: no OAuth provider, no sandbox, no waiting plugin.
const SECTIONS: [&str; 5] = ["2. ", "4. ", "5. ", "8. ", "9. "];

#[tokio::test]
async fn the_requests_of_the_operators_guide_are_accepted() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let home = world.server.home();
    let url = world.server.url().context("the server is not running")?;
    let network = "--allow-http --allow-address 127.0.0.0/8";
    let create = format!("create tracker --type github --config api_base={} {network}", world.github.url());
    let token = world.server.home().join("token.txt");
    std::fs::write(&token, world.github.token())?;
    let program = support::program()?;
    let folder = program.parent().context("the program is in no folder")?;
    let place = Place {
        folder: home,
        variables: vec![("MONSTRUM_URL", url.to_owned()), ("PATH", format!("{}:{}", folder.display(), search_path()?))],
        replacements: vec![
            ("http://127.0.0.1:8080", url.to_owned()),
            ("create tracker --type github", create),
            ("echo ghp_yourtoken", format!("cat {}", token.display())),
        ],
    };
    let examples = indented(&page("docs/operators-guide.md")?, &SECTIONS);
    ensure!(examples.len() == SECTIONS.len(), "the page lacks a section");
    let outputs = place.outputs(&examples).await?;
    for (example, output) in examples.iter().zip(&outputs) {
        ensure!(!output.contains("urn:monstrum:error"), "{}: {output}", example.section);
        ensure!(!output.contains("error:"), "{}: {output}", example.section);
        ensure!(!output.contains("curl:") && !output.contains("jq:"), "{}: {output}", example.section);
    }
    ensure!(outputs[0].contains("\"The home page is slow\""), "the bot cannot read issues: {}", outputs[0]);
    ensure!(outputs[1].contains("\"reason\":\"The issue is public.\""), "the gate was not saved: {}", outputs[1]);
    ensure!(outputs[3].contains("\"monthly_token_budget\":10000"), "the budget was not saved: {}", outputs[3]);
    ensure!(outputs[4].contains("\"delegate\":"), "the link was not saved: {}", outputs[4]);
    Ok(())
}
