//! Which keys may use which bot.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{Client, Scene};
use crate::http::{send, workspace};
use crate::world::text;

async fn seen(client: &Client) -> Result<(u16, Value)> {
    let (status, _, body) = send(client.stateless("server/discover", &json!({}))).await?;
    Ok((status, body["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["title"].clone()))
}

#[tokio::test]
async fn a_bot_is_named_by_its_id_or_its_name_and_only_its_own_bot_key_may_use_it() -> Result<()> {
    let scene = Scene::start().await?;
    let api = &scene.world.api;
    let other = api.bot("other").await?;
    let (_, key) = api.post("/api/keys", &json!({"name": "other", "kind": "bot", "bot_id": other})).await?;
    let other_key = text(&key["key"]).to_owned();
    let keys = [
        ("root", api.clone()),
        ("admin", api.with_key(&api.new_key("admin", None).await?)),
        ("operator", api.with_key(&api.new_key("operator", None).await?)),
        ("bot", scene.client.api.clone()),
        ("other bot", api.with_key(&other_key)),
    ];
    let mut table = Vec::new();
    for (kind, api) in &keys {
        for name in [scene.world.bot.as_str(), "tester"] {
            table.push(format!("{kind}: {:?}", seen(&Client::new(api, name)).await?));
        }
        table.push(format!("{kind}, absent: {:?}", seen(&Client::new(api, "absent")).await?));
    }
    assert_snapshot!(table.join("\n"), @r#"
    root: (200, String("tester"))
    root: (200, String("tester"))
    root, absent: (404, Null)
    admin: (200, String("tester"))
    admin: (200, String("tester"))
    admin, absent: (404, Null)
    operator: (200, String("tester"))
    operator: (200, String("tester"))
    operator, absent: (404, Null)
    bot: (200, String("tester"))
    bot: (200, String("tester"))
    bot, absent: (404, Null)
    other bot: (404, Null)
    other bot: (404, Null)
    other bot, absent: (404, Null)
    "#);
    Ok(())
}

/// A name belongs to a workspace: the same name means another bot for a key of another workspace.
#[tokio::test]
async fn a_bot_of_the_same_name_in_another_workspace_is_another_bot() -> Result<()> {
    let scene = Scene::start().await?;
    let foreign = workspace(&scene.world.api, "foreign").await?;
    let twin = foreign.bot("tester").await?;
    let tools =
        async |client: Client| Ok::<_, anyhow::Error>(client.ask("tools/list", &json!({})).await?["tools"].clone());
    let own = tools(Client::new(&scene.client.api, "tester")).await?;
    assert!(own.as_array().is_some_and(|tools| !tools.is_empty()), "{own}");
    assert_eq!(tools(Client::new(&foreign, "tester")).await?, json!([]), "the twin has no tools");
    assert_eq!(seen(&Client::new(&foreign, &twin)).await?.0, 200);
    assert_eq!(seen(&Client::new(&foreign, &scene.world.bot)).await?.0, 404, "the id of the other workspace's bot");
    assert_eq!(seen(&Client::new(&scene.client.api, &twin)).await?.0, 404);
    // A root key names the workspace by the header.
    let root = Client::new(&scene.world.api, "tester");
    let request = root.stateless("tools/list", &json!({})).header("monstrum-workspace", "foreign");
    assert_eq!(send(request).await?.2["result"]["tools"], json!([]));
    Ok(())
}

#[tokio::test]
async fn a_deleted_key_is_refused_with_the_way_to_authenticate() -> Result<()> {
    let scene = Scene::start().await?;
    assert_eq!(seen(&scene.client).await?.0, 200);
    let (_, keys) = scene.world.api.get("/api/keys").await?;
    let key = keys["items"].as_array().into_iter().flatten().find(|key| key["kind"] == "bot").cloned();
    scene.world.api.delete(&format!("/api/keys/{}", text(&key.unwrap_or_default()["id"]))).await?;
    let (status, headers, body) = send(scene.client.stateless("tools/list", &json!({}))).await?;
    assert_eq!((status, &headers["www-authenticate"]), (401, &"Bearer".parse()?), "{body}");
    Ok(())
}
