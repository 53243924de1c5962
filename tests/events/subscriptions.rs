//! The whole answers of `/api/subscriptions`, and what they refuse.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use super::subscribe;
use crate::http::roles::faults;
use crate::world::{World, text};

const ABSENT: &str = "01939d2c-7f6a-7000-8000-000000000001";

async fn keys(world: &World) -> Result<(Api, Api)> {
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    Ok((operator, admin))
}

#[tokio::test]
async fn a_subscription_is_made_changed_listed_and_deleted() -> Result<()> {
    let world = World::with(&[]).await?;
    let ((api, _), bot) = (keys(&world).await?, &world.bot);
    let (_, me) = api.get("/api/me").await?;
    let body = json!({ "bot_id": bot, "pattern": "custom.order.*", "instruction": "{{a}} {event_type} {data}" });
    let (status, made) = api.post("/api/subscriptions", &body).await?;
    let expected = json!({
        "id": made["id"],
        "bot_id": bot,
        "pattern": "custom.order.*",
        "instruction": "{{a}} {event_type} {data}",
        "from": ["own", "platform"],
        "active": true,
        "made_by": { "kind": "key", "id": me["key_id"] },
        "created_at": made["created_at"],
    });
    assert_eq!((status, &made), (201, &expected));
    let path = format!("/api/subscriptions/{}", text(&made["id"]));
    assert_eq!(api.get(&path).await?, (200, expected.clone()));
    let list = json!({ "items": [expected], "next_cursor": null });
    assert_eq!(api.get("/api/subscriptions").await?, (200, list.clone()));
    assert_eq!(api.get(&format!("/api/subscriptions?bot_id={bot}")).await?, (200, list));
    assert_eq!(api.get(&format!("/api/subscriptions?bot_id={ABSENT}")).await?.1["items"], json!([]));

    let narrow = json!({ "allowed_tools": ["a_*"] });
    let change = json!({
        "pattern": "task.*", "instruction": "x", "from": ["own"], "narrow": narrow, "active": false,
        "expires_at": "2099-01-01T00:00:00Z",
    });
    let (status, changed) = api.patch(&path, &change).await?;
    let expected = json!({
        "id": made["id"],
        "bot_id": bot,
        "pattern": "task.*",
        "instruction": "x",
        "from": ["own"],
        "narrow": narrow,
        "active": false,
        "made_by": made["made_by"],
        "expires_at": "2099-01-01T00:00:00.000Z",
        "created_at": made["created_at"],
    });
    assert_eq!((status, &changed), (200, &expected));
    let (status, cleared) =
        api.patch(&path, &json!({ "narrow": null, "from": null, "expires_at": null, "active": true })).await?;
    assert_eq!((status, &cleared["from"]), (200, &json!(["own", "platform"])));
    ensure!(cleared.get("narrow").is_none() && cleared.get("expires_at").is_none(), "{cleared}");
    assert_eq!(api.delete(&path).await?, (204, Value::Null));
    assert_eq!((api.get(&path).await?.0, api.delete(&path).await?.0), (404, 404));
    let (_, changes) = world.api.get("/api/audit/changes?limit=4").await?;
    let recorded: Vec<&str> =
        changes["items"].as_array().into_iter().flatten().map(|change| text(&change["change"])).collect();
    let expected = ["subscription.delete", "subscription.update", "subscription.update", "subscription.create"];
    assert_eq!(recorded, expected);
    Ok(())
}

#[tokio::test]
async fn every_fault_of_a_subscription_has_a_pointer() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, bot) = (&world.api, &world.bot);
    let with = |fields: Value| {
        let mut body = json!({ "bot_id": bot, "pattern": "*", "instruction": "x" });
        if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
            body.extend(fields);
        }
        body
    };
    let id = subscribe(api, bot, "*", &json!({ "active": false })).await?;
    let unknown =
        "unknown placeholder `{name}`: expected one of {event_type}, {source_type}, {source_id}, {data} and {metadata}";
    for (fields, path, message) in [
        (json!({ "pattern": "" }), "/pattern", "must not be empty"),
        (json!({ "pattern": "x".repeat(257) }), "/pattern", "must have at most 256 characters"),
        (json!({ "instruction": " " }), "/instruction", "must not be empty"),
        (json!({ "instruction": "x".repeat(8193) }), "/instruction", "must have at most 8192 bytes, but has 8193"),
        (json!({ "instruction": "{name}" }), "/instruction", unknown),
        (json!({ "instruction": "a {" }), "/instruction", "a `{` without its `}` at byte 2; write `{{` for a brace"),
        (json!({ "from": [] }), "/from", "must not be empty"),
        (json!({ "from": ["own", "all"] }), "/from/1", "expected `own`, `platform`, `any` or the id of a bot"),
        (json!({ "from": [ABSENT] }), "/from/0", "no such bot"),
        (json!({ "expires_at": "2020-01-01T00:00:00Z" }), "/expires_at", "must be in the future"),
        (json!({ "narrow": { "allowed_tools": ["x".repeat(4097)] } }), "/narrow/allowed_tools/0", ""),
    ] {
        let asked = [
            ("POST", api.post("/api/subscriptions", &with(fields.clone())).await?),
            ("PATCH", api.patch(&format!("/api/subscriptions/{id}"), &fields).await?),
        ];
        for (method, answer) in asked {
            let (status, faults) = faults(answer);
            assert_eq!((status, &faults[0]["path"]), (422, &json!(path)), "{method} {fields}: {faults}");
            assert!(message.is_empty() || faults[0]["message"] == message, "{method} {fields}: {faults}");
        }
    }
    let foreign = with(json!({ "bot_id": ABSENT }));
    let expected = json!([{ "path": "/bot_id", "message": "no such bot" }]);
    assert_eq!(faults(api.post("/api/subscriptions", &foreign).await?), (422, expected));
    assert_eq!(api.get("/api/subscriptions?bot_id=x").await?.0, 422);
    Ok(())
}

#[tokio::test]
async fn a_bot_has_a_hundred_subscriptions() -> Result<()> {
    let world = World::with(&[]).await?;
    for _ in 0..100 {
        subscribe(&world.api, &world.bot, "*", &json!({ "active": false })).await?;
    }
    let body = json!({ "bot_id": world.bot, "pattern": "*", "instruction": "x", "active": false });
    let (status, refused) = world.api.post("/api/subscriptions", &body).await?;
    assert_eq!(status, 409);
    assert_eq!(refused["detail"], "the bot has 100 subscriptions, which is the maximum; delete one first");
    let other = world.api.bot("other").await?;
    subscribe(&world.api, &other, "*", &json!({ "active": false })).await?;
    Ok(())
}

#[tokio::test]
async fn only_an_admin_subscribes_a_bot_to_the_events_of_others() -> Result<()> {
    let world = World::with(&[]).await?;
    let ((operator, admin), bot) = (keys(&world).await?, &world.bot);
    let other = world.api.bot("other").await?;
    for from in [json!(["any"]), json!([other]), json!(["own", other])] {
        let body = json!({ "bot_id": bot, "pattern": "*", "instruction": "x", "from": from, "active": false });
        let (status, refused) = operator.post("/api/subscriptions", &body).await?;
        assert_eq!((status, &refused["detail"]), (403, &json!("an admin key is required")), "{from}");
        let id = subscribe(&admin, bot, "*", &json!({ "from": from, "active": true })).await?;
        let path = format!("/api/subscriptions/{id}");
        // An operator does not change what an admin has permitted, but can switch it off and delete it.
        for change in [json!({ "instruction": "y" }), json!({ "active": true }), json!({ "from": from })] {
            assert_eq!(operator.patch(&path, &change).await?.0, 403, "{change}");
        }
        assert_eq!(operator.patch(&path, &json!({ "active": false })).await?.0, 200);
        assert_eq!(operator.delete(&path).await?.0, 204);
    }
    let own = subscribe(&operator, bot, "*", &json!({ "from": [bot], "active": false })).await?;
    let path = format!("/api/subscriptions/{own}");
    assert_eq!(operator.patch(&path, &json!({ "from": ["any"] })).await?.0, 403);
    assert_eq!(admin.patch(&path, &json!({ "from": ["any"] })).await?.0, 200);
    assert_eq!(operator.post(&format!("{path}/confirm"), &Value::Null).await?.0, 403);
    let (status, refused) = admin.post(&format!("{path}/confirm"), &Value::Null).await?;
    let why = "only a subscription that a plugin has made needs to be confirmed";
    assert_eq!((status, &refused["detail"]), (409, &json!(why)));
    Ok(())
}
