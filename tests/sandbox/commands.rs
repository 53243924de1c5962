//! The command `monstrum sandbox`, which is a client of the routes.

use std::sync::atomic::Ordering;

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
    no sandboxes; the server creates a sandbox when a bot first uses it
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
    error: The input is invalid (422)
      /timeout: must be from 1 to 300
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
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

/// A sandbox can give its files any name.
#[tokio::test]
async fn a_name_with_a_line_feed_makes_no_row_of_a_table() -> Result<()> {
    let mut doors = Doors::open().await?;
    doors.home.set_variable("MONSTRUM_URL", Some(&doors.running.base_url.clone()));
    doors.shell("save a.txt").await?;
    doors.machines.put("/workspace/b\n file  5  \u{2028}forged", "x");
    let id = text(&doors.sandbox().await?["id"]).to_owned();
    assert_snapshot!(told(&doors.home, &["sandbox", "files", &id]).await?, @"
     TYPE  SIZE  PATH
     file  5     /workspace/a.txt
     file  1     /workspace/b� file  5  �forged
    [exit 0]
    ");
    let audit = told(&doors.home, &["audit", "list", "--operation", "sandbox.list"]).await?;
    let lines: Vec<&str> = audit.lines().collect();
    assert!(lines.len() == 3 && lines[1].contains("success") && lines[1].contains("sandbox.list"), "{audit}");
    Ok(())
}

#[tokio::test]
async fn a_download_is_there_whole_or_not_at_all() -> Result<()> {
    let mut doors = Doors::open().await?;
    doors.home.set_variable("MONSTRUM_URL", Some(&doors.running.base_url.clone()));
    doors.shell("save a.txt").await?;
    let id = text(&doors.sandbox().await?["id"]).to_owned();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("own");
    let download = async |path: &str| {
        let output = format!("--output={}", file.display());
        let told = told(&doors.home, &["sandbox", "download", &id, path, &output]).await?;
        anyhow::Ok(told.replace(&folder.path().display().to_string(), "[folder]"))
    };
    let mut lines = vec![download("a.txt").await?];
    assert_eq!(std::fs::read_to_string(&file)?, "saved");
    lines.push(download("/workspace").await?);
    assert_eq!(std::fs::read_to_string(&file)?, "PK of a.txt", "the existing file was not replaced");
    lines.push(download("none").await?);
    doors.machines.breaks_off.store(true, Ordering::SeqCst);
    let broken_off = download("a.txt").await?;
    assert!(broken_off.contains("error: ") && broken_off.ends_with("[exit 1]"), "{broken_off}");
    assert_eq!(
        std::fs::read_to_string(&file)?,
        "PK of a.txt",
        "the command treated an incomplete download as complete"
    );
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1, "the command left an incomplete file");
    assert_snapshot!(lines.join("\n"), @"
    [stderr]
    [folder]/own: 5 bytes
    [exit 0]
    [stderr]
    [folder]/own: 11 bytes
    [exit 0]
    [stderr]
    error: Not found (404)
      /workspace/none: no such file or folder
      request [id 1]
    hint: check the name or id with `list`; also check --workspace
    [exit 1]
    ");
    Ok(())
}
