//! The pages of budgets and usage.

use anyhow::Result;
use serde_json::{Value, json};
use support::LlmReply;

use super::{Browser, base};
use crate::tasks::Tasks;
use crate::world::{World, text};

/// A user with markup and characters that cannot be seen.
const USER: &str = "<img src=x onerror=alert(1)>\u{200b}";

async fn budgets(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/budgets").await?.1["items"].as_array().cloned().unwrap_or_default())
}

#[tokio::test]
async fn budgets_are_set_by_a_form_and_shown_with_what_is_spent() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/budgets"), format!("{base}/budgets/change"));
    assert!(browser.page(&list).await?.contains("There are no budgets."));
    let of_bot =
        [("subject", "bot"), ("bot_id", world.bot.as_str()), ("monthly_tokens", "1000"), ("monthly_credits", "2.5")];
    for fields in [
        &of_bot[..],
        &[("subject", "workspace"), ("monthly_tokens", "9000")],
        &[("subject", "user"), ("app_id", "app"), ("user_id", "ada"), ("monthly_credits", "1")],
        &[("subject", "each_user"), ("monthly_tokens", "70")],
    ] {
        let saved = browser.submit(&form, &form, fields).await?;
        assert_eq!((saved.status, saved.location()), (303, list.as_str()), "{fields:?}: {}", saved.text);
    }
    let shown = browser.page(&list).await?;
    for part in [
        "0 of 1000 tokens",
        "0 of 2.5 credits",
        "0 of 9000 tokens",
        "app / ada",
        "0 of 1 credits",
        "at most 70 tokens each",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(browser.page(&format!("{base}/bots")).await?.contains("0 of 1000 tokens"));

    // The form of the bot changes only the limit that a person changes.
    let change = shown.split("href=\"").find(|part| part.contains("subject=bot")).unwrap_or_default();
    let change = change.split('"').next().unwrap_or_default().replace("&#38;", "&");
    let saved = browser.submit(&change, &form, &[&of_bot[..3], &[("monthly_credits", "")]].concat()).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let all = budgets(&world).await?;
    let bot = all.iter().find(|budget| budget["subject"] == "bot").cloned().unwrap_or_default();
    assert_eq!((&bot["monthly_tokens"], &bot["monthly_credits"]), (&json!(1000), &Value::Null), "{all:?}");
    Ok(())
}

#[tokio::test]
async fn a_budget_that_is_not_valid_is_refused_and_stays_in_the_form() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let form = format!("{}/budgets/change", base(&world).await?);
    for (fields, told) in [
        (&[("subject", "bot"), ("bot_id", world.bot.as_str()), ("monthly_tokens", "many")][..], "not a whole number"),
        (&[("subject", "each_user"), ("monthly_credits", "NaN")], "not a number"),
        (&[("subject", "each_user"), ("monthly_credits", "-1")], "href=\"#monthly_credits\""),
        (&[("subject", "user"), ("app_id", ""), ("user_id", "ada"), ("monthly_tokens", "1")], "/id"),
    ] {
        let answer = browser.submit(&form, &form, fields).await?;
        assert_eq!(answer.status, 422, "{fields:?}: {}", answer.text);
        assert!(answer.text.contains(told), "{fields:?}: {}", answer.text);
    }
    let without_token = [("subject", "each_user"), ("monthly_tokens", "1")];
    let refused = browser.send(reqwest::Method::POST, &form, &without_token, &[]).await?;
    assert_eq!(refused.status, 403);
    assert!(budgets(&world).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn only_keys_that_may_set_a_budget_have_its_form() -> Result<()> {
    let world = World::with(&[]).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/budgets"), format!("{base}/budgets/change"));
    let limits = json!({ "subject": "workspace", "monthly_tokens": 5 });
    assert_eq!(world.api.put("/api/budgets", &limits).await?.0, 200);
    let hostile = json!({ "subject": "user", "id": { "app_id": "app", "user_id": USER }, "monthly_tokens": 3 });
    let is_stored = world.api.put("/api/budgets", &hostile).await?.0 == 200;

    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let shown = operator.page(&list).await?;
    assert!(shown.contains("0 of 5 tokens") && !shown.contains(&form), "{shown}");
    assert!(!shown.contains("<img src=x") && !shown.contains('\u{200b}'), "{shown}");
    assert_eq!(shown.contains("&#60;img src=x"), is_stored, "{shown}");
    assert_eq!(operator.get(&form).await?.status, 403);

    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let shown = admin.page(&form).await?;
    assert!(!shown.contains("value=\"workspace\""), "the workspace needs a root key: {shown}");
    let refused = admin.submit(&form, &form, &[("subject", "workspace"), ("monthly_tokens", "6")]).await?;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(admin.page(&list).await?.contains("0 of 5 tokens"));

    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    for path in [&list, &form, &format!("{base}/usage")] {
        assert_eq!(approver.get(path).await?.status, 403, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn the_usage_of_a_month_is_shown_by_bot_user_task_and_model() -> Result<()> {
    let tasks = Tasks::start().await?;
    let browser = Browser::log_in(&tasks.world, tasks.api().key()).await?;
    let base = base(&tasks.world).await?;
    let usage = format!("{base}/usage");
    assert!(browser.page(&usage).await?.contains("Nothing was used in this month."));
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let task = tasks.run("Is it so?").await?;
    let page = format!("{base}/tasks/{}", text(&task["id"]));
    let bot = format!("{base}/bots/{}", tasks.world.bot);
    for (by, part) in [
        ("", format!("href=\"{bot}\"")),
        ("bot", format!("href=\"{bot}\"")),
        ("task", format!("href=\"{page}\"")),
        ("model", "models/small".to_owned()),
        ("user", "task / ".to_owned()),
        ("other", format!("href=\"{bot}\"")),
    ] {
        let shown = browser.page(&format!("{usage}?by={by}")).await?;
        let table = shown.split("<tbody>").nth(1).unwrap_or_default();
        assert!(table.contains(&part), "{by}: {shown}");
        assert!(table.contains("<rect class=\"bar\" width=\"100\""), "{by}: {shown}");
    }
    assert!(browser.page(&format!("{usage}?month=2020-01")).await?.contains("Nothing was used in this month."));
    assert_eq!(browser.get(&format!("{usage}?month=x")).await?.status, 422);
    Ok(())
}
