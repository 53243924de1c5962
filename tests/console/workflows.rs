//! The pages of workflows: definitions with faults at their lines, steps, versions and their differences, and triggers.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};

use super::conversations::{HOSTILE, is_safe};
use super::{Browser, base, hidden_fields};
use crate::http::made;
use crate::workflows::{definition_with, new_workflow};
use crate::world::{World, text};

async fn workflows(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/workflows").await?.1["items"].as_array().cloned().unwrap_or_default())
}

/// Returns a definition with steps in blocks, of the world's bot.
fn nested(world: &World, name: &str) -> String {
    format!(
        "workflow: {name}\nbot: {}\nsteps:\n  - {{ id: ask, approve: {{ text: \"Go on?\" }} }}\n  - id: way\n    choose:\n      \
         - {{ when: \"input.fast\", steps: [{{ id: now, emit: started }}] }}\n      \
         - {{ steps: [{{ id: later, wait: {{ for: 5m }} }}] }}\n\
         finally:\n  - {{ id: tell, emit: ended }}\n",
        world.bot
    )
}

#[tokio::test]
async fn a_workflow_is_made_changed_switched_off_and_deleted_by_forms() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/workflows"), format!("{base}/workflows/new"));
    assert!(browser.page(&list).await?.contains("There are no workflows yet."));
    let blank = browser.page(&form).await?;
    assert!(blank.contains("workflow: my-workflow") && blank.contains("bot: &#34;tester&#34;"), "{blank}");
    // Browsers end the lines of a form with two characters, which the definition does not have.
    let first = nested(&world, "release");
    let created = browser.submit(&form, &form, &[("definition", &first.replace('\n', "\r\n"))]).await?;
    assert_eq!(created.status, 303, "{}", created.text);
    let page = created.location().to_owned();
    let id = page.rsplit('/').next().unwrap_or_default().to_owned();
    let (_, saved) = world.api.get(&format!("/api/workflows/{id}")).await?;
    assert_eq!((&saved["definition"], &saved["version"]), (&json!(first), &json!(1)));
    let shown = browser.page(&page).await?;
    for part in ["Go on?", "if input.fast:", "otherwise:", "5m", "At the end in any case", "Version 1", "tester"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(shown.matches("<ol class=\"flow\">").count(), 4, "{shown}");
    let listed = browser.page(&list).await?;
    assert!(listed.contains(&page) && listed.contains("status success\">on"), "{listed}");
    let other = world.api.bot("other").await?;
    assert!(browser.page(&format!("{list}?bot_id={other}")).await?.contains("This bot has no workflows."));

    let edit = format!("{page}/edit");
    assert!(browser.page(&edit).await?.contains("Go on?"));
    // A definition that nobody has changed makes no version.
    let same = browser.submit(&edit, &edit, &[("definition", &first.replace('\n', "\r\n"))]).await?;
    assert_eq!((same.status, same.location()), (303, page.as_str()), "{}", same.text);
    assert_eq!(workflows(&world).await?[0]["version"], json!(1));
    let second = first.replace("5m", "10m");
    let changed = browser.submit(&edit, &edit, &[("definition", &second)]).await?;
    assert_eq!((changed.status, changed.location()), (303, page.as_str()), "{}", changed.text);
    assert!(browser.page(&page).await?.contains("The newest version is 2."));
    let version = browser.page(&format!("{page}/versions/2")).await?;
    assert!(version.contains("Changes since version 1"), "{version}");
    for class in ["removed", "added"] {
        assert_eq!(version.matches(&format!("<span class=\"{class}\">")).count(), 1, "{version}");
    }
    let first_version = browser.page(&format!("{page}/versions/1")).await?;
    assert!(!first_version.contains("Changes since") && first_version.contains("5m"), "{first_version}");
    let against = browser.page(&format!("{page}/versions/1?against=2")).await?;
    assert!(against.contains("Changes since version 2"), "{against}");
    for missing in ["3", "0", "x", "1?against=9", "1?against=x"] {
        assert_eq!(browser.get(&format!("{page}/versions/{missing}")).await?.status, 404, "{missing}");
    }

    let switch = format!("{page}/switch");
    let off = browser.submit(&page, &switch, &[("enabled", "false")]).await?;
    assert_eq!((off.status, off.location()), (303, page.as_str()), "{}", off.text);
    assert_eq!(workflows(&world).await?[0]["enabled"], json!(false));
    assert!(browser.page(&page).await?.contains("status stopped\">off"));
    browser.submit(&page, &switch, &[("enabled", "true")]).await?;
    assert_eq!(workflows(&world).await?[0]["enabled"], json!(true));

    let delete = format!("{page}/delete");
    let wrong = browser.submit(&delete, &delete, &[("name", "other")]).await?;
    assert_eq!((wrong.status, workflows(&world).await?.len()), (303, 1));
    let gone = browser.submit(&delete, &delete, &[("name", "release")]).await?;
    assert_eq!((gone.status, gone.location()), (303, list.as_str()), "{}", gone.text);
    assert_eq!(browser.get(&page).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn faults_are_shown_at_their_lines_and_nothing_is_saved() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let form = format!("{}/workflows/new", base(&world).await?);
    let faulty =
        format!("workflow: w\nbot: {}\nsteps:\n  - {{ id: a, emit: x }}\n  - {{ id: a, emti: y }}\n", world.bot);
    let refused = browser.submit(&form, &form, &[("definition", &faulty)]).await?;
    assert_eq!(refused.status, 422, "{}", refused.text);
    for part in
        ["href=\"#line-5\"", "id=\"line-5\" class=\"faulty\"", "id=\"line-3\"", "emti: y", "aria-invalid=\"true\""]
    {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    let hostile = format!("workflow: w\nbot: {}\nsteps:\n  - {{ id: a, emit: \"{}\" }}\n", world.bot, "<b>\u{202e}");
    let refused = browser.submit(&form, &form, &[("definition", &hostile)]).await?;
    assert!(refused.status == 422 && !refused.text.contains("<b>"), "{} {}", refused.status, refused.text);
    for text in ["", "a: [", "[]"] {
        assert_eq!(browser.submit(&form, &form, &[("definition", text)]).await?.status, 422, "{text}");
    }
    // A check saves nothing, and shows the steps of a definition without faults.
    let good = nested(&world, "checked");
    let checked = browser.submit(&form, &form, &[("definition", &good), ("check", "1")]).await?;
    assert_eq!(checked.status, 200, "{}", checked.text);
    for part in ["The definition has no faults.", "Go on?", "<ol class=\"flow\">"] {
        assert!(checked.text.contains(part), "{part}: {}", checked.text);
    }
    let checked = browser.submit(&form, &form, &[("definition", &faulty), ("check", "1")]).await?;
    assert!(checked.status == 422 && checked.text.contains("id=\"line-5\""), "{}", checked.text);
    // A tool that the bot does not have is a warning.
    let warned = definition_with("warned", &world.bot, "{ id: a, tool: no_such_tool }");
    let checked = browser.submit(&form, &form, &[("definition", &warned), ("check", "1")]).await?;
    assert!(checked.status == 200 && checked.text.contains("What may fail"), "{}", checked.text);
    assert!(workflows(&world).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_workflow_that_another_person_changed_meanwhile_is_not_overwritten() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let id = made(&world.api, "/api/workflows", &new_workflow("w", &world.bot)).await?;
    let page = format!("{}/workflows/{id}", base(&world).await?);
    let (edit, switch) = (format!("{page}/edit"), format!("{page}/switch"));
    let of_edit = hidden_fields(&browser.page(&edit).await?, &edit)?;
    let of_switch = hidden_fields(&browser.page(&page).await?, &switch)?;
    let theirs = definition_with("w", &world.bot, "{ id: theirs, emit: theirs }");
    world.api.patch(&format!("/api/workflows/{id}"), &json!({ "definition": theirs })).await?;
    let mine = definition_with("w", &world.bot, "{ id: mine, emit: mine }");
    let mut fields: Vec<(&str, &str)> = of_edit.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("definition", &mine));
    let refused = browser.send(Method::POST, &edit, &fields, &[]).await?;
    assert!(refused.status == 412 && refused.text.contains("id: mine"), "{} {}", refused.status, refused.text);
    let mut fields: Vec<(&str, &str)> = of_switch.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("enabled", "false"));
    assert_eq!(browser.send(Method::POST, &switch, &fields, &[]).await?.status, 412);
    let (_, saved) = world.api.get(&format!("/api/workflows/{id}")).await?;
    assert_eq!((&saved["definition"], &saved["enabled"]), (&json!(theirs), &json!(true)));
    Ok(())
}

#[tokio::test]
async fn triggers_are_made_switched_off_and_deleted_on_the_page_of_their_workflow() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let id = made(&world.api, "/api/workflows", &new_workflow("w", &world.bot)).await?;
    let (page, path) = (format!("{base}/workflows/{id}"), format!("/api/workflows/{id}/triggers"));
    let form = format!("{page}/triggers/new");
    let triggers = async || -> Result<Vec<Value>> {
        Ok(world.api.get(&path).await?.1["items"].as_array().cloned().unwrap_or_default())
    };
    assert!(browser.page(&page).await?.contains("No event starts this workflow."));
    let fields =
        [("event_pattern", "custom.deploy.*"), ("instruction", "typed text"), ("from", "own"), ("from", "any")];
    for (name, value, field) in [
        ("event_pattern", "", "event_pattern"),
        ("instruction", "typed text {x}", "instruction"),
        ("scopes", "{", "scopes"),
    ] {
        let mut wrong = fields.to_vec();
        wrong.retain(|(other, _)| *other != name);
        wrong.push((name, value));
        let answer = browser.submit(&form, &form, &wrong).await?;
        assert_eq!(answer.status, 422, "{name}: {}", answer.text);
        assert!(answer.text.contains(&format!("id=\"{field}-fault\"")), "{name}: {}", answer.text);
    }
    assert!(triggers().await?.is_empty());
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    assert_eq!(operator.submit(&form, &form, &fields).await?.status, 403, "wider sources are for admins");
    assert!(triggers().await?.is_empty());
    let created = browser.submit(&form, &form, &fields).await?;
    assert_eq!((created.status, created.location()), (303, page.as_str()), "{}", created.text);
    let trigger = triggers().await?[0].clone();
    assert_eq!((&trigger["event_pattern"], &trigger["from"]), (&json!("custom.deploy.*"), &json!(["own", "any"])));
    let shown = browser.page(&page).await?;
    for part in ["custom.deploy.*", "this bot, all bots", "typed text"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let of_trigger = format!("{page}/triggers/{}", text(&trigger["id"]));
    let switch = format!("{of_trigger}/switch");
    let off = browser.submit(&page, &switch, &[("enabled", "false")]).await?;
    assert_eq!((off.status, off.location()), (303, page.as_str()), "{}", off.text);
    assert_eq!(triggers().await?[0]["enabled"], json!(false));
    assert_eq!(operator.submit(&page, &switch, &[("enabled", "true")]).await?.status, 403);
    let delete = format!("{of_trigger}/delete");
    assert!(browser.page(&delete).await?.contains("custom.deploy.*"));
    assert_eq!(browser.send(Method::POST, &delete, &[("_token", "00")], &[]).await?.status, 403);
    let gone = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((gone.status, gone.location()), (303, page.as_str()), "{}", gone.text);
    assert_eq!(browser.get(&delete).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn only_keys_that_read_workflows_see_them_and_texts_of_people_are_text() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let step = json!({ "id": "ask", "approve": { "text": HOSTILE }, "when": "'<b>' == '<b>'" });
    let definition = json!({ "workflow": "odd", "bot": world.bot, "steps": [step] });
    let id = made(&world.api, "/api/workflows", &json!({ "definition": definition })).await?;
    let page = format!("{base}/workflows/{id}");
    let pages = [page.clone(), format!("{page}/edit"), format!("{page}/delete"), format!("{page}/versions/1")];
    for path in &pages {
        let shown = browser.page(path).await?;
        assert!(!shown.contains("<b>") && !shown.contains("<img src=x"), "{path}: {shown}");
    }
    is_safe(&page, &browser.page(&page).await?)?;
    // An object is edited as JSON, and stays one if nobody changes it.
    let edit = format!("{page}/edit");
    let form = browser.page(&edit).await?;
    let start = form.find("name=\"definition\"").and_then(|at| form[at..].find(">\n").map(|end| at + end + 2));
    let typed = form[start.context("a field")?..].split("</textarea>").next().unwrap_or_default();
    let typed = super::unescaped(typed);
    let kept = browser.submit(&edit, &edit, &[("definition", &typed)]).await?;
    assert_eq!(kept.status, 303, "{}", kept.text);
    let (_, saved) = world.api.get(&format!("/api/workflows/{id}")).await?;
    assert_eq!((&saved["version"], &saved["definition"]), (&json!(1), &definition));

    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    let forms = [format!("{base}/workflows"), format!("{base}/workflows/new"), format!("{page}/triggers/new")];
    for path in pages.iter().chain(&forms) {
        assert_eq!(approver.get(path).await?.status, 403, "{path}");
    }
    let acme = made(&world.api, "/api/workspaces", &json!({ "name": "acme" })).await?;
    let foreign = format!("/console/w/{acme}/workflows/{id}");
    for path in ["", "/edit", "/delete", "/versions/1", "/triggers/new"] {
        assert_eq!(browser.get(&format!("{foreign}{path}")).await?.status, 404, "{path}");
    }
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("触发器") && chinese.text.contains("审批"), "{}", chinese.text);
    Ok(())
}
