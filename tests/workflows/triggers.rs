//! Triggers of workflows.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{changes, show, workflow};
use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::{World, text};

const ABSENT: &str = "01939d2c-7f6a-7000-8000-000000000001";

#[tokio::test]
async fn a_trigger_is_created_changed_listed_and_deleted() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let path = workflow(api, "release", &world.bot).await?;
    let triggers = format!("{path}/triggers");
    let (status, created) = api.post(&triggers, &json!({ "event_pattern": "custom.deploy.*" })).await?;
    let workflow_id = path.trim_start_matches("/api/workflows/");
    let expected = json!({
        "id": created["id"], "workflow_id": workflow_id, "event_pattern": "custom.deploy.*", "instruction": "",
        "from": ["own", "platform"], "narrow": null, "enabled": true, "created_at": created["created_at"],
    });
    assert_eq!((status, &created), (201, &expected));
    let narrow = json!({ "allowed_tools": ["test_*"], "scope_constraints": { "repos": ["acme/*"] } });
    let whole = json!({
        "event_pattern": "*", "instruction": "See {data}, not {{data}}.", "from": [world.bot, "platform"],
        "narrow": narrow, "enabled": false,
    });
    let (status, second) = api.post(&triggers, &whole).await?;
    assert_eq!((status, &second["narrow"], &second["from"]), (201, &narrow, &json!([world.bot, "platform"])));
    assert_eq!(show(api, &triggers).await?, json!({ "items": [second, created], "next_cursor": null }));

    let one = format!("{triggers}/{}", text(&created["id"]));
    let (status, disabled) = api.patch(&one, &json!({ "enabled": false })).await?;
    let mut expected = created.clone();
    expected["enabled"] = json!(false);
    assert_eq!((status, &disabled), (200, &expected));
    assert_eq!(api.patch(&one, &json!({})).await?, (200, expected), "nothing to change");
    assert_eq!(api.patch(&one, &json!({ "event_pattern": "*" })).await?.0, 422, "only `enabled` changes");
    let other = workflow(api, "other", &world.bot).await?;
    let foreign = format!("{other}/triggers/{}", text(&created["id"]));
    assert_eq!((api.patch(&foreign, &json!({ "enabled": true })).await?.0, api.delete(&foreign).await?.0), (404, 404));
    assert_eq!(api.delete(&one).await?.0, 204);
    assert_eq!((api.delete(&one).await?.0, api.patch(&one, &json!({ "enabled": true })).await?.0), (404, 404));
    for name in ["workflow_trigger.create", "workflow_trigger.update", "workflow_trigger.delete"] {
        assert!(changes(api).await?.iter().any(|change| change == name), "{name}");
    }
    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!(api.get(&triggers).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn invalid_triggers_are_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let triggers = format!("{}/triggers", workflow(api, "release", &world.bot).await?);
    let mut answers = Answers::default();
    for (label, body) in [
        ("no pattern", json!({})),
        ("empty pattern", json!({ "event_pattern": "" })),
        ("long pattern", json!({ "event_pattern": "x".repeat(257) })),
        ("control character", json!({ "event_pattern": "a\nb" })),
        ("long instruction", json!({ "event_pattern": "*", "instruction": "x".repeat(8193) })),
        ("no sources", json!({ "event_pattern": "*", "from": [] })),
        ("unknown source", json!({ "event_pattern": "*", "from": ["own", "all"] })),
        ("unknown bot", json!({ "event_pattern": "*", "from": [ABSENT] })),
        ("twice", json!({ "event_pattern": "*", "from": ["own", "own"] })),
        ("too many sources", json!({ "event_pattern": "*", "from": vec!["own"; 201] })),
        ("unknown field", json!({ "event_pattern": "*", "pattern": "*" })),
    ] {
        answers.add(label, faults(api.post(&triggers, &body).await?));
    }
    assert_snapshot!(answers, @r#"
    no pattern: 422 [{"path":"/event_pattern","message":"required field is missing"}]
    empty pattern: 422 [{"path":"/event_pattern","message":"must not be empty"}]
    long pattern: 422 [{"path":"/event_pattern","message":"must have at most 256 characters"}]
    control character: 422 [{"path":"/event_pattern","message":"must not contain control characters"}]
    long instruction: 422 [{"path":"/instruction","message":"must have at most 8192 bytes, but has 8193"}]
    no sources: 422 [{"path":"/from","message":"must not be empty"}]
    unknown source: 422 [{"path":"/from/1","message":"expected `own`, `platform`, `any` or the id of a bot"}]
    unknown bot: 422 [{"path":"/from/0","message":"no such bot"}]
    twice: 422 [{"path":"/from/1","message":"duplicate item"}]
    too many sources: 422 [{"path":"/from","message":"must have at most 200 items"}]
    unknown field: 422 [{"path":"/pattern","message":"unknown field `pattern`, expected one of `event_pattern`, `instruction`, `from`, `narrow`, `enabled`"}]
    "#);
    for (instruction, word) in [("{name}", "unknown placeholder"), ("a {data", "without its"), ("}", "without its")] {
        let body = json!({ "event_pattern": "*", "instruction": instruction });
        let (status, refused) = api.post(&triggers, &body).await?;
        assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/instruction")), "{refused}");
        assert!(text(&refused["errors"][0]["message"]).contains(word), "{refused}");
    }
    let narrow = json!({ "allowed_tools": vec!["x"; 201] });
    let (status, refused) = api.post(&triggers, &json!({ "event_pattern": "*", "narrow": narrow })).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/narrow/allowed_tools")));
    assert_eq!(show(api, &triggers).await?["items"], json!([]), "nothing was saved");
    Ok(())
}

/// With the events of another bot, that bot could steer the bot of the workflow.
#[tokio::test]
async fn only_an_admin_takes_the_events_of_other_bots() -> Result<()> {
    let world = World::with(&[]).await?;
    let (admin, other) = (&world.api, world.api.bot("other").await?);
    let operator = admin.with_key(&admin.new_key("operator", None).await?);
    let triggers = format!("{}/triggers", workflow(&operator, "release", &world.bot).await?);
    for from in [json!(["any"]), json!([other]), json!(["own", other])] {
        let body = json!({ "event_pattern": "custom.x", "from": from });
        let (status, refused) = operator.post(&triggers, &body).await?;
        let why = "an admin key is required for a trigger that takes the events of other bots";
        assert_eq!((status, text(&refused["detail"])), (403, why), "{from}");
        let trigger = format!("{triggers}/{}", made(admin, &triggers, &body).await?);
        let set = async |api: &support::Api, enabled: bool| -> Result<u16> {
            Ok(api.patch(&trigger, &json!({ "enabled": enabled })).await?.0)
        };
        assert_eq!(set(&operator, false).await?, 200, "an operator may stop it");
        assert_eq!(set(&operator, true).await?, 403, "to enable a trigger is to grant it again");
        assert_eq!(set(admin, true).await?, 200);
        assert_eq!(operator.delete(&trigger).await?.0, 204);
    }
    let own: Value = json!({ "event_pattern": "custom.x", "from": [world.bot, "platform", "own"] });
    assert_eq!(operator.post(&triggers, &own).await?.0, 201, "the events of its own bot");
    Ok(())
}

#[tokio::test]
async fn a_workflow_has_at_most_50_triggers() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let triggers = format!("{}/triggers", workflow(api, "release", &world.bot).await?);
    for number in 0..50 {
        made(api, &triggers, &json!({ "event_pattern": format!("custom.{number}") })).await?;
    }
    let (status, full) = api.post(&triggers, &json!({ "event_pattern": "custom.50" })).await?;
    let why = "the workflow has 50 triggers, which is the maximum; delete one first";
    assert_eq!((status, text(&full["detail"])), (409, why));
    Ok(())
}
