//! Trust for names of plugins does not let a key take over a resource type of another plugin.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use monstrum_package::SigningKey;
use serde_json::{Value, json};
use support::{Server, TOKEN};

use super::{Source, detail, left, trusted};
use crate::stable::lines;
use crate::world::{World, text};

/// Returns `test-echo` under another name, with this version and type.
fn echo_as(name: &str, version: &str, resource_type: &str) -> Result<Source> {
    let mut source = Source::of("test-echo", version)?;
    source.name = name.to_owned();
    source.edit(|text| {
        let text = text.replace("name: test-echo\n", &format!("name: {name}\n"));
        text.replace("id: test-echo\n", &format!("id: {resource_type}\n"))
    })?;
    Ok(source)
}

async fn trust(world: &World, key: &SigningKey, name_glob: &str, type_glob: Option<&str>) -> Result<()> {
    let mut body = json!({ "public_key": key.public().to_string(), "name_glob": name_glob });
    if let Some(glob) = type_glob {
        body["type_glob"] = json!(glob);
    }
    let (status, answer) = world.api.post("/api/trust", &body).await?;
    ensure!(status == 201, "{answer}");
    Ok(())
}

#[tokio::test]
async fn after_an_uninstall_the_package_of_another_plugin_does_not_get_the_type() -> Result<()> {
    let world = World::with(&[]).await?;
    let own = trusted(&world.api).await?;
    assert_eq!(Source::of("test-echo", "1.0.0")?.packed(&own)?.to(&world.api).await?.0, 201);
    let bound = world.grant_all("test-echo").await?;
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    assert_eq!(world.api.delete(&path).await?.0, 204);
    assert_eq!(world.api.delete("/api/plugins/test-echo").await?.0, 204);

    // Trust for the name alone does not allow this type.
    let acme = SigningKey::generate()?;
    let thief = echo_as("acme-t", "1.0.0", "test-echo")?.packed(&acme)?;
    trust(&world, &acme, "acme-*", None).await?;
    let refused = detail(&thief.to(&world.api).await?).replace(&acme.public().to_string(), "[key]");
    assert_snapshot!(refused, @"422 /signature: the package is signed by [key], which is trusted for the resource types `acme-*` but not for `test-echo`, and plugin `acme-t` does not own `test-echo`; to trust the key for more types, run `monstrum trust add --type`");
    assert_eq!(left(&world.server)?, ["plugins"]);

    // With trust for the type, the package is installed and waits for a root key.
    trust(&world, &acme, "acme-t", Some("test_echo")).await?;
    let (status, entry) = thief.to(&world.api).await?;
    assert_eq!((status, &entry["status"], &entry["version"]), (201, &json!("needs_approval"), &Value::Null), "{entry}");
    assert_eq!(entry["pending"]["grows"][0], "takes type `test-echo` from plugin `test-echo`");
    let role = world.api.role("again", &["*"]).await?;
    world.api.bind(&world.bot, &bound.resource, &role, &json!({})).await?;
    assert_eq!(world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?["status"], "permission_denied");

    // After the approval, the plugin serves the type, and the credential waits for a confirmation.
    assert_eq!(world.api.post("/api/plugins/acme-t/approve", &json!({})).await?.0, 200);
    let (_, shown) = world.api.get(&format!("/api/resources/{}", bound.resource)).await?;
    assert_eq!(shown["credential"]["status"], "needs-authorization", "{shown}");
    world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
    assert_eq!(lines(&world.github.take_requests(), TOKEN), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_type_must_match_at_the_first_install_and_not_at_an_update_by_its_owner() -> Result<()> {
    let world = World::with(&[]).await?;
    let key = SigningKey::generate()?;
    trust(&world, &key, "acme-*", None).await?;
    let mut told = Vec::new();
    for (name, version, resource_type) in [
        ("acme-crm", "1.0.0", "tracker"),
        // `-` and `_` count as the same character.
        ("acme-crm", "1.0.0", "acme_crm"),
        ("acme-crm", "1.1.0", "acme_crm"),
        // A new type of the plugin is treated like a first install.
        ("acme-crm", "1.2.0", "tracker"),
    ] {
        let (status, body) = echo_as(name, version, resource_type)?.packed(&key)?.to(&world.api).await?;
        told.push(format!("{name} {version} {resource_type}: {status} {}", text(&body["status"])));
    }
    // Without trust for its type, the plugin can still be updated.
    let (_, list) = world.api.get("/api/trust").await?;
    assert_eq!(world.api.delete(&format!("/api/trust/{}", text(&list["items"][0]["id"]))).await?.0, 204);
    trust(&world, &key, "acme-*", Some("other")).await?;
    for (version, resource_type) in [("1.3.0", "acme_crm"), ("1.4.0", "acme-crm")] {
        let (status, body) = echo_as("acme-crm", version, resource_type)?.packed(&key)?.to(&world.api).await?;
        told.push(format!("acme-crm {version} {resource_type}: {status} {}", text(&body["status"])));
    }
    assert_snapshot!(told.join("\n"), @r"
    acme-crm 1.0.0 tracker: 422 
    acme-crm 1.0.0 acme_crm: 201 loaded
    acme-crm 1.1.0 acme_crm: 200 loaded
    acme-crm 1.2.0 tracker: 422 
    acme-crm 1.3.0 acme_crm: 200 loaded
    acme-crm 1.4.0 acme-crm: 422 
    ");
    Ok(())
}

/// If a waiting package is denied, the owner does not change.
#[tokio::test]
async fn a_takeover_by_a_package_that_is_denied_leaves_the_owner_serving() -> Result<()> {
    let world = World::on(Server::prepare(&["test-echo"])?).await?;
    world.grant_all("test-echo").await?;
    let key = trusted(&world.api).await?;
    let (status, entry) = echo_as("acme-t", "1.0.0", "test-echo")?.packed(&key)?.to(&world.api).await?;
    assert_eq!((status, &entry["status"]), (201, &json!("needs_approval")), "{entry}");
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");
    assert_eq!(world.api.delete("/api/plugins/acme-t").await?.0, 204);
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");
    Ok(())
}
