//! The pages of schedules: forms, next times, firing, pausing and deleting, with hostile texts of people.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};
use support::LlmReply;

use super::conversations::{HOSTILE, is_safe};
use super::{Browser, base, hidden_fields};
use crate::tamper::sqlite;
use crate::tasks::{Tasks, ended};
use crate::world::{World, eventually, text};

/// The choices of a form that nobody has changed.
const CHOICES: [(&str, &str); 3] = [("overlap", "skip"), ("missed", "once"), ("tools.mode", "all")];

async fn schedules(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/schedules").await?.1["items"].as_array().cloned().unwrap_or_default())
}

/// Creates a schedule by the form of a world's bot. Returns the path of its page.
async fn created(browser: &Browser, world: &World, fields: &[(&str, &str)]) -> Result<String> {
    let form = format!("{}/schedules/new", base(world).await?);
    let all = [&[("bot_id", world.bot.as_str())], &CHOICES[..], fields].concat();
    let created = browser.submit(&form, &form, &all).await?;
    anyhow::ensure!(created.status == 303, "{} {}", created.status, created.text);
    Ok(created.location().to_owned())
}

#[tokio::test]
async fn a_schedule_is_made_changed_paused_and_deleted_by_forms() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/schedules"), format!("{base}/schedules/new"));
    assert!(browser.page(&list).await?.contains("There are no schedules yet."));
    let fields = [
        ("name", "nightly"),
        ("instruction", "Sort the issues.\nThen stop."),
        ("when", "cron"),
        ("cron", "30 2 * * *"),
        ("timezone", "Europe/Berlin"),
        ("every", "9"),
        ("jitter_s", "60"),
        ("tools", "github_*"),
        ("scopes", "{\"repos\": [\"acme/*\"]}"),
    ];
    let all = [&[("bot_id", world.bot.as_str())], &CHOICES[..2], &[("tools.mode", "only")], &fields].concat();
    let preview = browser.submit(&form, &form, &[&all[..], &[("preview", "1")]].concat()).await?;
    assert_eq!(preview.status, 200, "{}", preview.text);
    assert_eq!(preview.text.matches("<li>20").count(), 5, "{}", preview.text);
    assert!(preview.text.contains("value=\"30 2 * * *\"") && preview.text.contains("Then stop."), "{}", preview.text);
    assert!(schedules(&world).await?.is_empty(), "a preview saves nothing");

    let made = browser.submit(&form, &form, &all).await?;
    assert_eq!(made.status, 303, "{}", made.text);
    let page = made.location().to_owned();
    let saved = schedules(&world).await?;
    let expected = json!({ "allowed_tools": ["github_*"], "scope_constraints": { "repos": ["acme/*"] } });
    assert_eq!((&saved[0]["narrow"], &saved[0]["jitter_s"]), (&expected, &json!(60)), "{saved:?}");
    assert_eq!((&saved[0]["cron"], &saved[0]["every_s"]), (&json!("30 2 * * *"), &Value::Null));
    let shown = browser.page(&page).await?;
    let (_, times) =
        world.api.post("/api/schedules/preview", &json!({ "cron": "30 2 * * *", "timezone": "Europe/Berlin" })).await?;
    for at in times["next"].as_array().context("times")? {
        assert!(shown.contains(&format!("<li>{}", text(at))), "{at}: {shown}");
    }
    for part in ["Sort the issues.", "github_*", "acme/*", "30 2 * * *", "Europe/Berlin", "There are no tasks yet"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let listed = browser.page(&list).await?;
    assert!(listed.contains(&page) && listed.contains("nightly") && listed.contains("tester"), "{listed}");
    let other = browser.page(&format!("{list}?bot_id={}", world.api.bot("other").await?)).await?;
    assert!(other.contains("This bot has no schedules."), "{other}");

    // What stays as it was is not saved again, so that the next time stays.
    let edit = format!("{page}/edit");
    let renamed = [&all[1..], &[("name", "weekly"), ("instruction", "Sort the issues.\r\nThen stop.")]].concat();
    let renamed: Vec<_> = renamed.into_iter().filter(|(name, value)| *name != "name" || *value == "weekly").collect();
    let kept = browser.submit(&edit, &edit, &renamed).await?;
    assert_eq!((kept.status, kept.location()), (303, page.as_str()), "{}", kept.text);
    let after = &schedules(&world).await?[0];
    assert_eq!((&after["name"], &after["next_at"]), (&json!("weekly"), &saved[0]["next_at"]));
    assert_eq!((&after["instruction"], &after["narrow"]), (&saved[0]["instruction"], &saved[0]["narrow"]));

    let switch = format!("{page}/switch");
    let off = browser.submit(&page, &switch, &[("enabled", "false")]).await?;
    assert_eq!((off.status, off.location()), (303, page.as_str()), "{}", off.text);
    assert_eq!(schedules(&world).await?[0]["enabled"], json!(false));
    let shown = browser.page(&page).await?;
    assert!(shown.contains("The schedule does not fire.") && shown.contains("Resume"), "{shown}");
    browser.submit(&page, &switch, &[("enabled", "true")]).await?;
    assert_eq!(schedules(&world).await?[0]["next_at"], saved[0]["next_at"]);

    let delete = format!("{page}/delete");
    let gone = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((gone.status, gone.location()), (303, list.as_str()), "{}", gone.text);
    assert_eq!(browser.get(&page).await?.status, 404);
    assert!(schedules(&world).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_schedule_that_is_not_valid_is_refused_at_its_fields_and_stays_in_the_form() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let form = format!("{base}/schedules/new");
    let valid = [
        ("bot_id", world.bot.as_str()),
        ("name", "nightly"),
        ("instruction", "typed text"),
        ("when", "cron"),
        ("cron", "0 1 * * *"),
        ("timezone", "UTC"),
    ];
    let with = |changed: &[(&'static str, &'static str)]| {
        let mut all = [&valid[..], &CHOICES[..]].concat();
        all.retain(|(name, _)| !changed.iter().any(|(other, _)| other == name));
        [&all[..], changed].concat()
    };
    for (changed, field) in [
        (&[("bot_id", "")][..], "bot_id"),
        (&[("name", " ")], "name"),
        (&[("instruction", " ")], "instruction"),
        (&[("cron", "0 0 31 2 *")], "cron"),
        (&[("cron", "x")], "cron"),
        (&[("timezone", "Nowhere/None")], "timezone"),
        (&[("when", "every"), ("every", "many")], "every"),
        (&[("when", "every"), ("every", "1"), ("unit", "seconds")], "every"),
        (&[("when", "at"), ("at", "tomorrow")], "at"),
        (&[("when", "at"), ("at", "2020-01-01T00:00:00Z")], "at"),
        (&[("jitter_s", "3601")], "jitter_s"),
        (&[("scopes", "{")], "scopes"),
        (&[("tools", "a")], "tools"),
    ] {
        let answer = browser.submit(&form, &form, &with(changed)).await?;
        assert_eq!(answer.status, 422, "{changed:?}: {}", answer.text);
        // The field is marked without a script, beside the summary.
        assert!(answer.text.contains(&format!("id=\"{field}-fault\"")), "{changed:?}: {}", answer.text);
        assert!(answer.text.contains(&format!("href=\"#{field}\"")), "{changed:?}: {}", answer.text);
        assert!(answer.text.contains("aria-invalid=\"true\""), "{changed:?}: {}", answer.text);
        assert!(*field == *"instruction" || answer.text.contains("typed text"), "{changed:?}: {}", answer.text);
    }
    let long = format!("{{\"repos\": [\"{}\"]}}", "x".repeat(4097));
    let mut too_long = with(&[]);
    too_long.push(("scopes", &long));
    let answer = browser.submit(&form, &form, &too_long).await?;
    assert!(answer.status == 422 && answer.text.contains("id=\"scopes-fault\""), "{}", answer.text);
    assert!(schedules(&world).await?.is_empty());

    // A form that is sent twice makes one schedule, and another with its name is refused.
    let sent = hidden_fields(&browser.page(&form).await?, &form)?;
    let mut twice: Vec<(&str, &str)> = sent.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    twice.extend(with(&[]));
    let once = browser.send(Method::POST, &form, &twice, &[]).await?;
    let again = browser.send(Method::POST, &form, &twice, &[]).await?;
    assert_eq!((once.status, again.location()), (303, once.location()), "{}", once.text);
    let taken = browser.submit(&form, &form, &with(&[])).await?;
    assert!(matches!(taken.status, 409 | 422) && taken.text.contains("typed text"), "{}", taken.text);

    // A schedule that another person changed meanwhile is not overwritten.
    let page = once.location();
    let edit = format!("{page}/edit");
    let hidden = hidden_fields(&browser.page(&edit).await?, &edit)?;
    let id = text(&schedules(&world).await?[0]["id"]).to_owned();
    world.api.patch(&format!("/api/schedules/{id}"), &json!({ "instruction": "theirs" })).await?;
    let mut mine: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    mine.extend(with(&[]));
    let refused = browser.send(Method::POST, &edit, &mine, &[]).await?;
    assert!(refused.status == 412 && refused.text.contains("typed text"), "{} {}", refused.status, refused.text);
    let kept = &schedules(&world).await?[0];
    assert_eq!((schedules(&world).await?.len(), &kept["instruction"]), (1, &json!("theirs")));
    Ok(())
}

#[tokio::test]
async fn a_schedule_is_fired_and_shows_its_tasks_and_failures() -> Result<()> {
    let tasks = Tasks::start().await?;
    let browser = Browser::log_in(&tasks.world, tasks.api().key()).await?;
    let base = base(&tasks.world).await?;
    let fields =
        [("name", "hourly"), ("instruction", "Is it so?"), ("when", "every"), ("every", "2"), ("unit", "hours")];
    let page = created(&browser, &tasks.world, &fields).await?;
    assert!(browser.page(&page).await?.contains("every 2 h"));
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let fire = format!("{page}/fire");
    for (fields, headers) in
        [(&[][..], &[][..]), (&[("_token", "00")], &[]), (&[], &[("sec-fetch-site", "cross-site")])]
    {
        assert_eq!(browser.send(Method::POST, &fire, fields, headers).await?.status, 403);
    }
    assert_eq!(tasks.api().get("/api/tasks").await?.1["items"], json!([]), "a form without a token fires nothing");
    let hidden = hidden_fields(&browser.page(&page).await?, &fire)?;
    let hidden: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let fired = browser.send(Method::POST, &fire, &hidden, &[]).await?;
    assert_eq!(fired.status, 303, "{}", fired.text);
    let task = fired.location().to_owned();
    let again = browser.send(Method::POST, &fire, &hidden, &[]).await?;
    assert_eq!(again.location(), task, "a form that is sent twice starts one task");
    assert!(task.starts_with(&format!("{base}/tasks/")), "{task}");
    ended(tasks.api(), task.rsplit('/').next().unwrap_or_default()).await?;
    // Another task of the bot is not one of the schedule.
    tasks.llm.prepare([LlmReply::says(&["No."])]);
    let other = tasks.run("Another one").await?;
    let shown = browser.page(&page).await?;
    assert!(shown.contains(&task) && shown.contains("status success\">completed"), "{shown}");
    assert!(!shown.contains(text(&other["id"])), "{shown}");
    let id = page.rsplit('/').next().unwrap_or_default();
    let filtered = browser.page(&format!("{base}/tasks?schedule_id={id}")).await?;
    assert!(filtered.contains(&task) && !filtered.contains(text(&other["id"])), "{filtered}");
    assert_eq!(browser.get(&format!("{base}/tasks?schedule_id=x")).await?.status, 422);

    // A bot without a model cannot be fired, and the page says why.
    let idle = tasks.api().bot("idle").await?;
    let body = json!({ "name": "idle", "bot_id": idle, "instruction": "x", "every_s": 3600 });
    let idle = crate::http::made(tasks.api(), "/api/schedules", &body).await?;
    let idle = format!("{base}/schedules/{idle}");
    let refused = browser.submit(&idle, &format!("{idle}/fire"), &[]).await?;
    assert_eq!((refused.status, refused.location()), (303, idle.as_str()), "{}", refused.text);
    assert!(browser.page(&idle).await?.contains("model"), "the page tells why");
    Ok(())
}

#[tokio::test]
async fn a_paused_schedule_needs_a_person_and_is_resumed() -> Result<()> {
    let tasks = Tasks::start().await?;
    let browser = Browser::log_in(&tasks.world, tasks.api().key()).await?;
    let base = base(&tasks.world).await?;
    let body = json!({ "name": "broken", "bot_id": tasks.world.bot, "instruction": "x", "every_s": 3600 });
    let id = crate::http::made(tasks.api(), "/api/schedules", &body).await?;
    let attention = async || -> Result<Vec<Value>> {
        let (_, listed) = tasks.api().get("/api/attention").await?;
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        Ok(items.into_iter().filter(|item| item["kind"] == "schedule").collect())
    };
    assert!(attention().await?.is_empty());
    sqlite(&tasks.world.server.data_dir(), &["update schedules set failures = 5"]).await?;
    let items = attention().await?;
    assert_eq!((items.len(), text(&items[0]["id"])), (1, id.as_str()), "{items:?}");
    let page = format!("{base}/schedules/{id}");
    let overview = browser.page(&format!("{base}/overview")).await?;
    assert!(overview.contains(&format!("href=\"{page}\"")), "{overview}");
    let shown = browser.page(&page).await?;
    assert!(shown.contains("paused by failures") && shown.contains("Resume"), "{shown}");
    let resumed = browser.submit(&page, &format!("{page}/switch"), &[("enabled", "true")]).await?;
    assert_eq!(resumed.status, 303, "{}", resumed.text);
    assert!(attention().await?.is_empty());
    eventually("the schedule fires again", async || {
        let (_, schedule) = tasks.api().get(&format!("/api/schedules/{id}")).await?;
        Ok((schedule["failures"] == 0 && !schedule["next_at"].is_null()).then_some(()))
    })
    .await
}

#[tokio::test]
async fn only_keys_that_read_schedules_see_them_and_texts_of_people_are_text() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let fields = [
        ("name", "odd <b>\u{202e}</b>"),
        ("instruction", HOSTILE),
        ("when", "every"),
        ("every", "2"),
        ("unit", "days"),
    ];
    let page = created(&browser, &world, &fields).await?;
    let (list, form) = (format!("{base}/schedules"), format!("{base}/schedules/new"));
    for path in [&page, &list, &format!("{page}/edit"), &format!("{page}/delete")] {
        let shown = browser.page(path).await?;
        assert!(!shown.contains("<b>") && !shown.contains("<img src=x"), "{path}: {shown}");
    }
    is_safe(&page, &browser.page(&page).await?)?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    assert!(operator.page(&list).await?.contains(&form));
    assert!(operator.page(&page).await?.contains("Fire now"));
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    for path in [&list, &form, &page, &format!("{page}/edit"), &format!("{page}/delete")] {
        assert_eq!(approver.get(path).await?.status, 403, "{path}");
    }
    // A schedule of another workspace does not exist here.
    let acme = crate::http::made(&world.api, "/api/workspaces", &json!({ "name": "acme" })).await?;
    let foreign = format!("/console/w/{acme}/schedules/{}", page.rsplit('/').next().unwrap_or_default());
    for path in [&foreign, &format!("{foreign}/edit"), &format!("{foreign}/delete")] {
        assert_eq!(browser.get(path).await?.status, 404, "{path}");
    }
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("立即触发") && chinese.text.contains("每 2 天"), "{}", chinese.text);
    Ok(())
}
