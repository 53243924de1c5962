//! The pages of events: the list with its filters, one event with its deliveries, subscriptions, and failing turns.

use anyhow::Result;
use reqwest::Method;
use serde_json::{Value, json};

use super::conversations::{HOSTILE, is_safe};
use super::{Browser, base, hidden_fields};
use crate::http::made;
use crate::tasks::Tasks;
use crate::world::{World, eventually, text};

/// Emits an event, and returns its id.
async fn emit(world: &World, name: &str, data: &Value, bot: Option<&str>) -> Result<String> {
    let (status, emitted) =
        world.api.post("/api/events", &json!({ "name": name, "data": data, "bot_id": bot })).await?;
    anyhow::ensure!(status == 201, "{status} {emitted}");
    Ok(text(&emitted["event_id"]).to_owned())
}

/// Waits until an event is dispatched and no delivery of it is pending. Returns its deliveries.
async fn delivered(world: &World, id: &str) -> Result<Vec<Value>> {
    eventually("the event is delivered", async || {
        let (_, event) = world.api.get(&format!("/api/events/{id}")).await?;
        let deliveries = event["deliveries"].as_array().cloned().unwrap_or_default();
        let is_over = deliveries.iter().all(|delivery| delivery["status"] != "pending");
        Ok((!event["sequence"].is_null() && is_over).then_some(deliveries))
    })
    .await
}

async fn subscriptions(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/subscriptions").await?.1["items"].as_array().cloned().unwrap_or_default())
}

#[tokio::test]
async fn events_are_listed_by_their_filters_and_shown_as_text() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let list = format!("{base}/events");
    assert!(browser.page(&list).await?.contains("There are no events yet."));
    let paid = emit(&world, "order.paid", &json!({ "note": HOSTILE }), None).await?;
    let moved = emit(&world, "stock.moved", &json!({}), Some(&world.bot)).await?;
    delivered(&world, &paid).await?;
    let all = browser.page(&list).await?;
    assert!(all.contains(&format!("{list}/{paid}")) && all.contains(&format!("{list}/{moved}")), "{all}");
    let by_bot = format!("bot_id={}", world.bot);
    for (query, has) in [
        ("event_type=custom.order.*", [true, false]),
        ("source_type=platform", [true, true]),
        ("source_type=task", [false, false]),
        ("since=2000-01-01T00:00:00Z&until=2001-01-01T00:00:00Z", [false, false]),
        (by_bot.as_str(), [false, true]),
    ] {
        let shown = browser.page(&format!("{list}?{query}")).await?;
        let found = [&paid, &moved].map(|id| shown.contains(&format!("{list}/{id}")));
        assert_eq!(found, has, "{query}: {shown}");
        assert!(has[0] || has[1] || shown.contains("No event matches the filter."), "{query}: {shown}");
    }
    assert_eq!(browser.get(&format!("{list}?since=yesterday")).await?.status, 422);
    let page = format!("{list}/{paid}");
    let shown = browser.page(&page).await?;
    is_safe(&page, &shown)?;
    assert!(shown.contains("custom.order.paid") && shown.contains("No subscription or trigger"), "{shown}");
    assert_eq!(browser.get(&format!("{list}/{}", world.bot)).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_dead_delivery_is_shown_with_its_reason_and_tried_again() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let deliveries = format!("{base}/deliveries");
    assert!(browser.page(&deliveries).await?.contains("There are no deliveries yet."));
    // The bot has no model, so that the delivery starts no task.
    let new = json!({ "bot_id": world.bot, "pattern": "custom.order.*", "instruction": "Look at {data}." });
    let subscription = made(&world.api, "/api/subscriptions", &new).await?;
    let event = emit(&world, "order.paid", &json!({}), None).await?;
    let found = delivered(&world, &event).await?;
    let (id, page) = (text(&found[0]["id"]).to_owned(), format!("{base}/events/{event}"));
    let target = format!("{base}/subscriptions/{subscription}");
    for path in [&deliveries, &format!("{deliveries}?status=dead"), &page] {
        let shown = browser.page(path).await?;
        for part in ["status error\">dead", "The bot has no model.", &target, "Try again"] {
            assert!(shown.contains(part), "{path} {part}: {shown}");
        }
    }
    assert!(browser.page(&format!("{deliveries}?status=done")).await?.contains("No delivery has this status."));
    assert_eq!(browser.get(&format!("{deliveries}?status=odd")).await?.status, 422);

    let retry = format!("{deliveries}/{id}/retry");
    for (fields, headers) in
        [(&[][..], &[][..]), (&[("_token", "00")], &[]), (&[], &[("sec-fetch-site", "cross-site")])]
    {
        assert_eq!(browser.send(Method::POST, &retry, fields, headers).await?.status, 403);
    }
    let retried = browser.submit(&page, &retry, &[]).await?;
    assert_eq!((retried.status, retried.location()), (303, page.as_str()), "{}", retried.text);
    eventually("the delivery is dead again", async || {
        let (_, shown) = world.api.get(&format!("/api/events/{event}")).await?;
        let delivery = &shown["deliveries"][0];
        Ok((delivery["status"] == "dead" && delivery["ended_at"] != found[0]["ended_at"]).then_some(()))
    })
    .await?;
    // An approver sees none of it.
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    for path in [&deliveries, &page, &format!("{base}/events"), &format!("{base}/wakes"), &target] {
        assert_eq!(approver.get(path).await?.status, 403, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_delivery_leads_to_the_task_that_it_has_started() -> Result<()> {
    let tasks = Tasks::start().await?;
    let world = &tasks.world;
    let browser = Browser::log_in(world, tasks.api().key()).await?;
    let base = base(world).await?;
    tasks.llm.prepare([support::LlmReply::says(&["Seen."])]);
    let new = json!({ "bot_id": world.bot, "pattern": "custom.x", "instruction": "Look." });
    made(tasks.api(), "/api/subscriptions", &new).await?;
    let event = emit(world, "x", &json!({}), None).await?;
    let found = delivered(world, &event).await?;
    let task = text(&found[0]["task_id"]).to_owned();
    let shown = browser.page(&format!("{base}/events/{event}")).await?;
    assert!(shown.contains("status success\">done") && shown.contains(&format!("{base}/tasks/{task}")), "{shown}");
    assert!(!shown.contains("/retry\""), "a delivery that is done is not tried again: {shown}");
    crate::tasks::ended(tasks.api(), &task).await?;
    let completed = eventually("the end of the task is an event", async || {
        let (_, listed) = tasks.api().get("/api/events?event_type=task.completed").await?;
        Ok(listed["items"].get(0).map(|event| text(&event["id"]).to_owned()))
    })
    .await?;
    let shown = browser.page(&format!("{base}/events/{completed}")).await?;
    for part in ["First event of the chain", &event, &format!("{base}/tasks/{task}")] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    Ok(())
}

#[tokio::test]
async fn a_subscription_is_made_changed_paused_and_deleted_by_forms() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/subscriptions"), format!("{base}/subscriptions/new"));
    assert!(browser.page(&list).await?.contains("There are no subscriptions yet."));
    let fields = [
        ("bot_id", world.bot.as_str()),
        ("pattern", "custom.order.*"),
        ("instruction", "Thank for {data}.\nThen stop."),
        ("from", "own"),
        ("from", "platform"),
        ("expires_at", "2099-01-31T09:00:00Z"),
        ("tools.mode", "only"),
        ("tools", "github_*"),
    ];
    let made = browser.submit(&form, &form, &fields).await?;
    assert_eq!(made.status, 303, "{}", made.text);
    let page = made.location().to_owned();
    let saved = &subscriptions(&world).await?[0];
    assert_eq!(
        (&saved["from"], &saved["narrow"]["allowed_tools"]),
        (&json!(["own", "platform"]), &json!(["github_*"]))
    );
    assert_eq!(saved["expires_at"], json!("2099-01-31T09:00:00.000Z"));
    let shown = browser.page(&page).await?;
    for part in ["custom.order.*", "Then stop.", "github_*", "this bot, the platform", "2099-01-31"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("Confirm"), "a key has made it: {shown}");
    let listed = browser.page(&list).await?;
    assert!(listed.contains(&page) && listed.contains("tester"), "{listed}");
    let other = world.api.bot("other").await?;
    assert!(browser.page(&format!("{list}?bot_id={other}")).await?.contains("This bot has no subscriptions."));

    let edit = format!("{page}/edit");
    let changed: Vec<_> = fields[2..]
        .iter()
        .copied()
        .chain([("pattern", "custom.*"), ("from", "any"), ("from.bots", other.as_str())])
        .collect();
    let kept = browser.submit(&edit, &edit, &changed).await?;
    assert_eq!((kept.status, kept.location()), (303, page.as_str()), "{}", kept.text);
    let saved = &subscriptions(&world).await?[0];
    assert_eq!((&saved["pattern"], &saved["from"]), (&json!("custom.*"), &json!(["own", "platform", "any", other])));

    let switch = format!("{page}/switch");
    let off = browser.submit(&page, &switch, &[("active", "false")]).await?;
    assert_eq!((off.status, off.location()), (303, page.as_str()), "{}", off.text);
    assert_eq!(subscriptions(&world).await?[0]["active"], json!(false));
    assert!(browser.page(&page).await?.contains("status stopped\">paused"));

    let delete = format!("{page}/delete");
    let gone = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((gone.status, gone.location()), (303, list.as_str()), "{}", gone.text);
    assert_eq!(browser.get(&page).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_subscription_that_is_not_valid_is_refused_at_its_fields() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let form = format!("{}/subscriptions/new", base(&world).await?);
    let valid = [
        ("bot_id", world.bot.as_str()),
        ("pattern", "custom.x"),
        ("instruction", "typed text"),
        ("from", "own"),
        ("tools.mode", "all"),
    ];
    let long = "x".repeat(257);
    for (name, value, field) in [
        ("bot_id", "", "bot_id"),
        ("pattern", "", "pattern"),
        ("pattern", long.as_str(), "pattern"),
        ("instruction", "typed text {other}", "instruction"),
        ("expires_at", "tomorrow", "expires_at"),
        ("from", "odd", "from"),
        ("scopes", "{", "scopes"),
        ("tools", "a", "tools"),
    ] {
        let mut fields = valid.to_vec();
        fields.retain(|(other, _)| *other != name);
        fields.push((name, value));
        let answer = browser.submit(&form, &form, &fields).await?;
        assert_eq!(answer.status, 422, "{name} {value}: {}", answer.text);
        assert!(answer.text.contains(&format!("href=\"#{field}\"")), "{name} {value}: {}", answer.text);
        assert!(answer.text.contains(&format!("id=\"{field}-fault\"")), "{name} {value}: {}", answer.text);
        assert!(answer.text.contains("typed text"), "{name} {value}: {}", answer.text);
    }
    assert!(subscriptions(&world).await?.is_empty());
    // A form that is sent twice makes one subscription.
    let hidden = hidden_fields(&browser.page(&form).await?, &form)?;
    let mut twice: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    twice.extend(valid);
    let once = browser.send(Method::POST, &form, &twice, &[]).await?;
    let again = browser.send(Method::POST, &form, &twice, &[]).await?;
    assert_eq!((once.status, again.location()), (303, once.location()), "{}", once.text);
    assert_eq!(subscriptions(&world).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn an_operator_cannot_choose_the_events_of_other_bots() -> Result<()> {
    let world = World::with(&[]).await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let base = base(&world).await?;
    let form = format!("{base}/subscriptions/new");
    let shown = operator.page(&form).await?;
    assert!(shown.contains("Only an admin key may choose the events of other bots."), "{shown}");
    assert!(shown.contains("name=\"from\" value=\"any\" disabled"), "{shown}");
    let fields = [("bot_id", world.bot.as_str()), ("pattern", "custom.x"), ("instruction", "x"), ("from", "any")];
    let refused = operator.submit(&form, &form, &fields).await?;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(subscriptions(&world).await?.is_empty());
    // The subscription of an admin to the events of all bots is not switched on by an operator, only off.
    let wide = json!({ "bot_id": world.bot, "pattern": "*", "instruction": "x", "from": ["any"] });
    let page = format!("{base}/subscriptions/{}", made(&world.api, "/api/subscriptions", &wide).await?);
    let switch = format!("{page}/switch");
    assert_eq!(operator.submit(&page, &switch, &[("active", "false")]).await?.status, 303);
    assert_eq!(operator.submit(&page, &switch, &[("active", "true")]).await?.status, 403);
    // Confirming is for admins, and for subscriptions of plugins.
    let confirm = format!("{page}/confirm");
    assert_eq!(operator.send(Method::POST, &confirm, &[], &[]).await?.status, 403);
    assert!(!operator.page(&page).await?.contains(&confirm));
    Ok(())
}

#[tokio::test]
async fn texts_of_a_subscription_are_text_and_other_workspaces_do_not_see_it() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let instruction = HOSTILE.replace('{', "{{").replace('}', "}}");
    let new = json!({ "bot_id": world.bot, "pattern": "<b>\u{202e}", "instruction": instruction });
    let id = made(&world.api, "/api/subscriptions", &new).await?;
    let page = format!("{base}/subscriptions/{id}");
    for path in [&page, &format!("{page}/edit"), &format!("{page}/delete"), &format!("{base}/subscriptions")] {
        let shown = browser.page(path).await?;
        assert!(!shown.contains("<b>") && !shown.contains("<img src=x"), "{path}: {shown}");
    }
    is_safe(&page, &browser.page(&page).await?)?;
    let acme = made(&world.api, "/api/workspaces", &json!({ "name": "acme" })).await?;
    let event = emit(&world, "x", &json!({}), None).await?;
    for path in [format!("subscriptions/{id}"), format!("subscriptions/{id}/edit"), format!("events/{event}")] {
        assert_eq!(browser.get(&format!("/console/w/{acme}/{path}")).await?.status, 404, "{path}");
    }
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("谁的事件"), "{}", chinese.text);
    Ok(())
}

#[tokio::test]
async fn turns_that_have_not_failed_are_shown_on_demand() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let schedule = json!({ "name": "daily", "bot_id": world.bot, "instruction": "x", "every_s": 86_400 });
    let schedule = made(&world.api, "/api/schedules", &schedule).await?;
    let wakes = format!("{base}/wakes");
    assert!(browser.page(&wakes).await?.contains("No turn has failed."));
    let all = browser.page(&format!("{wakes}?show=all")).await?;
    assert!(all.contains(&format!("{base}/schedules/{schedule}")) && all.contains("status waiting\">due"), "{all}");
    Ok(())
}
