//! `GET /api/bots/{id}/prompt`: the appended text describes the sandbox that the bot has.

use std::sync::atomic::Ordering;

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::json;

use crate::http::send;
use crate::sandbox::Doors;
use crate::world::text;

#[tokio::test]
async fn a_prompt_ends_with_what_the_sandbox_really_has() -> Result<()> {
    let doors = Doors::open().await?;
    let path = format!("/api/bots/{}/prompt", doors.bot);
    let prompt = async |language: &str| {
        let request = doors.api.request(Method::GET, &path).header("accept-language", language);
        send(request).await.map(|(_, _, body)| text(&body["prompt"]).to_owned())
    };
    doors.api.patch(&format!("/api/bots/{}", doors.bot), &json!({ "system_prompt": "Be kind." })).await?;
    assert_snapshot!(prompt("en").await?, @"
    Be kind.

    This conversation has its own Linux sandbox, which the tool sandbox_shell uses: Debian GNU/Linux 12 (bookworm), with bash, python3, node, git and curl. Commands run with bash as root inside it and start in /workspace. Files under /workspace are kept as long as the conversation exists; running programs are ended when the sandbox has been idle for a while. It has no network: nothing can be downloaded or installed from outside. Limits: 1 CPU, 1024 MiB of memory, 2048 MiB of disk, 60 seconds for a command by default and at most 300.
    ");
    assert!(prompt("zh-CN").await?.starts_with("Be kind.\n\n本次会话有一台独立的 Linux 沙盒"));

    let (_, workspaces) = doors.api.get("/api/workspaces").await?;
    let workspace = format!("/api/workspaces/{}", text(&workspaces["items"][0]["id"]));
    let opened = json!({ "sandbox": { "network": "full", "limits": { "memory_mib": 512 } } });
    let (status, body) = doors.api.patch(&workspace, &opened).await?;
    assert_eq!(status, 200, "{body}");
    let open = prompt("en").await?;
    assert!(
        open.contains("It can reach public addresses on the internet") && open.contains("512 MiB of memory"),
        "{open}"
    );

    doors.machines.is_down.store(true, Ordering::SeqCst);
    assert!(prompt("en").await?.contains("the sandbox service is not available at the moment"));
    doors.switch(&doors.bot, false).await?;
    assert_eq!(prompt("en").await?, "Be kind.");
    Ok(())
}

#[tokio::test]
async fn a_bot_key_reads_its_own_bots_only() -> Result<()> {
    let doors = Doors::open().await?;
    let key = doors.key_of(&doors.bot).await?;
    let other = doors.api.bot("other").await?;
    assert_eq!(key.get(&format!("/api/bots/{}/prompt", doors.bot)).await?.0, 200);
    assert_eq!(key.get(&format!("/api/bots/{other}/prompt")).await?.0, 404);
    Ok(())
}
