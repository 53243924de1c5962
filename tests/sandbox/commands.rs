//! `monstrum sandbox`: a client of the routes.

use anyhow::Result;
use insta::assert_snapshot;

use crate::cli::told;
use crate::sandbox::Doors;
use crate::world::text;

#[tokio::test]
async fn sandboxes_are_looked_at_and_used_from_a_shell() -> Result<()> {
    let mut doors = Doors::open().await?;
    doors.home.set_variable("MONSTRUM_URL", Some(&doors.running.base_url.clone()));
    let mut lines = vec![told(&doors.home, &["sandbox", "list"]).await?];
    doors.shell("save a.txt").await?;
    let id = text(&doors.sandbox().await?["id"]).to_owned();
    for arguments in [
        &["exec", &id, "echo \u{1b}[31mred"][..],
        &["exec", &id, "fail 7"],
        &["exec", &id, "echo x", "--timeout", "301"],
        &["files", &id],
        &["delete", &id],
    ] {
        lines.push(format!("> {}\n{}", arguments[0], told(&doors.home, &[&["sandbox"], arguments].concat()).await?));
    }
    assert_snapshot!(lines.join("\n"), @"
    [stderr]
    there are no sandboxes; one is made when a bot first uses it
    [exit 0]
    > exec
    �[31mred
    [exit 0]
    > exec
    [stderr]
    failed
    [exit 7]
    > exec
    [stderr]
    error: Invalid parameters: /timeout: 301 is greater than the maximum of 300
    [exit 1]
    > files
     TYPE  SIZE  PATH
     file  5     /workspace/a.txt
    [exit 0]
    > delete
    [stderr]
    [id 1] is being deleted
    [exit 0]
    ");
    Ok(())
}
