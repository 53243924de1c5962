//! The pages: what a bot can do, what it did, why it was denied, and the change that allows it.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::json;

use super::{Browser, base};
use crate::world::{World, text};

/// A text with markup, attributes that run scripts, and invisible characters.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>x</script>\" hx-get='/api' data-copy='x' \u{202e}\u{200b}";

#[tokio::test]
async fn a_denied_call_is_explained_and_the_change_allows_it() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let scopes = json!({ "repos": ["acme/docs"] });
    let bound = world.grant("github", &["*"], &scopes).await?;
    let params = json!({ "repo": "acme/site" });
    let denied = world.call("github_list_issues", &params).await?;
    assert_eq!(denied["status"], "scope_violation", "{denied}");

    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let bot = format!("{base}/bots/{}", world.bot);
    let request = browser.page(&format!("{base}/activity/{}", text(&denied["request_id"]))).await?;
    let change =
        request.split("href=\"").find(|part| part.starts_with(&format!("{bot}/change?"))).context("a change")?;
    let change = change.split('"').next().context("a path")?.replace("&#38;", "&");
    let page = browser.page(&change).await?;
    assert!(page.contains("acme/site") && page.contains("acme/docs"), "before and after: {page}");

    let before = policy(&world).await?;
    let done = browser.submit(&change, &format!("{bot}/change"), &[]).await?;
    assert_eq!(done.status, 303, "{}", done.text);
    let shown = browser.page(done.location()).await?;
    assert!(shown.contains("why success"), "the new answer is shown: {shown}");
    assert_eq!(world.call("github_list_issues", &params).await?["status"], "success");
    let mut expected = before;
    expected["scope_constraints"]["repos"] = json!(["acme/docs", "acme/site"]);
    let after = policy(&world).await?;
    assert_eq!(after["scope_constraints"], expected["scope_constraints"]);
    assert_eq!(after["permissions"], expected["permissions"]);
    assert_eq!(after["id"], json!(bound.binding));

    // The same form again changes nothing: the page shows that there is nothing to change.
    let again = browser.get(&change).await?;
    assert_eq!(again.status, 200);
    Ok(())
}

async fn policy(world: &World) -> Result<serde_json::Value> {
    let (_, bindings) = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?;
    Ok(bindings["items"][0].clone())
}

#[tokio::test]
async fn a_change_that_somebody_else_made_meanwhile_is_shown_anew() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant("github", &["*"], &json!({ "repos": ["acme/docs"] })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let bot = format!("{}/bots/{}", base(&world).await?, world.bot);
    let change = format!("{bot}/change?tool=github_list_issues&params=%7B%22repo%22%3A%22acme%2Fsite%22%7D");
    let hidden = super::hidden_fields(&browser.page(&change).await?, &format!("{bot}/change"))?;
    world.rebind(&bound, &json!({ "scope_constraints": { "repos": ["acme/other"] } })).await?;
    let fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = browser.send(Method::POST, &format!("{bot}/change"), &fields, &[]).await?;
    assert_eq!(answer.status, 409);
    assert!(answer.text.contains("acme/other"), "{}", answer.text);
    assert_eq!(policy(&world).await?["scope_constraints"], json!({ "repos": ["acme/other"] }));
    Ok(())
}

#[tokio::test]
async fn a_bot_is_made_bound_tried_and_deleted_without_a_script() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let (url, token) = (world.github.url(), world.github.token());
    let resource = world.api.resource("github", "hub", &url).await?;
    world.api.token(&resource, &token).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let new = format!("{base}/bots/new");
    let made = browser.submit(&new, &new, &[("name", "triage"), ("description", "sorts issues")]).await?;
    assert_eq!(made.status, 303, "{}", made.text);
    let bot = made.location().to_owned();
    let page = browser.page(&bot).await?;
    assert!(page.contains("triage") && page.contains("role=\"status\""), "the page tells what was made: {page}");
    assert!(!browser.page(&bot).await?.contains("role=\"status\""), "a message is shown once");
    let taken = browser.submit(&new, &new, &[("name", "triage")]).await?;
    assert_eq!(taken.status, 422);

    let bind = format!("{bot}/bind?resource={resource}");
    let fields = [
        ("operations.mode", "only"),
        ("operations.others", "issue.read"),
        ("scope.mode.repos", "only"),
        ("scope.entries.repos", "acme/site"),
        ("enabled", "on"),
    ];
    let preview = browser.submit(&bind, &bind, &[&fields[..], &[("preview", "1")]].concat()).await?;
    assert!(preview.status == 200 && preview.text.contains("github_list_issues"), "{}", preview.text);
    let none = world.api.get(&format!("/api/bots/{}/resources", bot.rsplit('/').next().context("an id")?)).await?.1;
    assert_eq!(none["items"], json!([]), "a preview saves nothing");
    let bad = [("operations.mode", "only"), ("operations.others", "issue.read"), ("calls_per_minute", "many")];
    let refused = browser.submit(&bind, &bind, &bad).await?;
    assert!(refused.status == 422 && refused.text.contains("calls_per_minute"), "{}", refused.text);
    let saved = browser.submit(&bind, &bind, &[&fields[..], &[("save", "1")]].concat()).await?;
    assert_eq!((saved.status, saved.location()), (303, bot.as_str()), "{}", saved.text);
    let page = browser.page(&bot).await?;
    assert!(page.contains("repos: only acme/site") && page.contains("github_list_issues"), "{page}");

    let tool = format!("{bot}/tools/github_list_issues");
    let run = browser.submit(&tool, &tool, &[("p.repo", "acme/site"), ("run", "1")]).await?;
    assert!(run.status == 200 && run.text.contains("status success"), "{}", run.text);
    let run = browser.submit(&tool, &tool, &[("p.repo", "acme/docs"), ("run", "1")]).await?;
    assert!(run.text.contains("status denied") && run.text.contains("why denied"), "{}", run.text);
    let check = browser.submit(&tool, &tool, &[("p.repo", "acme/site"), ("check", "1")]).await?;
    assert!(check.status == 303 && check.location().contains("params="), "{}", check.location());
    assert!(browser.page(&format!("{bot}/did")).await?.contains("github_list_issues"));
    assert!(browser.page(&format!("{bot}/denied")).await?.contains("acme/docs"));
    for tab in ["budget", "settings"] {
        browser.page(&format!("{bot}/{tab}")).await?;
    }

    let settings = format!("{bot}/settings");
    let changed = browser.submit(&settings, &settings, &[("name", "sorter"), ("monthly_token_budget", "1000")]).await?;
    assert_eq!(changed.status, 303, "{}", changed.text);
    let delete = format!("{bot}/delete");
    let kept = browser.submit(&delete, &delete, &[("name", "triage")]).await?;
    assert_eq!((kept.status, kept.location()), (303, delete.as_str()));
    let gone = browser.submit(&delete, &delete, &[("name", "sorter")]).await?;
    assert_eq!((gone.status, gone.location()), (303, format!("{base}/bots").as_str()));
    assert_eq!(browser.get(&bot).await?.status, 404);
    Ok(())
}

/// The API refuses the configuration of a resource from an operator, even if it stays the same.
#[tokio::test]
async fn an_operator_renames_a_resource_and_does_not_configure_it() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let edit = format!("{}/resources/{resource}/edit", base(&world).await?);
    let object = format!("/api/resources/{resource}");
    let before = world.api.get(&object).await?.1;
    let shown = operator.page(&edit).await?;
    assert!(shown.contains("Only admins") && !shown.contains("allow_addresses"), "{shown}");
    let saved = operator.submit(&edit, &edit, &[("name", "renamed"), ("allow_http", "on")]).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let after = world.api.get(&object).await?.1;
    assert_eq!(after["name"], "renamed");
    for field in ["config", "network", "labels"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    Ok(())
}

#[tokio::test]
async fn an_approval_is_decided_with_what_the_page_showed() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let gates = json!([{ "action": "ask", "reason": HOSTILE, "approvers": ["approver"] }]);
    world.rebind(&bound, &json!({ "gates": gates })).await?;
    let params = json!({ "any": HOSTILE });
    let waiting = world.call("test_echo_run", &params).await?;
    assert_eq!(waiting["status"], "approval_required", "{waiting}");
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    let base = base(&world).await?;
    let list = approver.page(&format!("{base}/approvals")).await?;
    let page = format!("{base}/approvals/{}", text(&waiting["approval"]["id"]));
    assert!(list.contains(&page), "{list}");
    let shown = approver.page(&page).await?;
    for raw in ["<img src=x", "<script>x", "\u{202e}", "\u{200b}"] {
        assert!(!shown.contains(raw) && !list.contains(raw), "{raw:?} is text: {shown}");
    }
    assert!(shown.contains("u{202e}"), "invisible characters are written out: {shown}");
    let changed = approver.submit(&page, &page, &[("digest", "sha256:0"), ("approve", "1")]).await?;
    assert!(matches!(changed.status, 409 | 422), "{}", changed.status);
    let done = approver.submit(&page, &page, &[("note", "fine"), ("approve", "1")]).await?;
    assert_eq!((done.status, done.location()), (303, format!("{base}/approvals").as_str()), "{}", done.text);
    assert_eq!(world.call("test_echo_run", &params).await?["status"], "success");
    let twice = approver.send(Method::GET, &page, &[], &[]).await?;
    assert!(twice.status == 200 && !twice.text.contains("name=\"approve\""), "{}", twice.text);
    Ok(())
}

#[tokio::test]
async fn texts_of_others_are_text_on_every_page() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let (_, bot) = world
        .api
        .post("/api/bots", &json!({ "name": "hostile", "description": HOSTILE, "system_prompt": HOSTILE }))
        .await?;
    let bot = text(&bot["id"]);
    let bound = world.grant_all("test-echo").await?;
    let binding = json!({ "resource_id": bound.resource, "permissions": { "allowed_tools": ["*"] } });
    world.api.post(&format!("/api/bots/{bot}/resources"), &binding).await?;
    let call = world.api.call(bot, "test_echo_run", &json!({ "any": HOSTILE })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let mut pages = vec![format!("{base}/bots"), format!("{base}/activity")];
    pages.extend(
        ["", "/did", "/denied", "/settings", "/bind", "/tools/test_echo_run", "/delete"]
            .map(|tab| format!("{base}/bots/{bot}{tab}")),
    );
    pages.push(format!("{base}/activity/{}", text(&call["request_id"])));
    pages.push(format!("{base}/activity?tool=%3Cscript%3Ex&bot_id={bot}"));
    for path in pages {
        let page = browser.page(&path).await?;
        for raw in ["<img src=x", "<script>x", "' hx-get='"] {
            assert!(!page.contains(raw), "{path} shows {raw:?}: {page}");
        }
        // A field that a person edits has the text as it is.
        let shows_fields = path.ends_with("/settings");
        assert!(shows_fields || !page.contains(['\u{202e}', '\u{200b}']), "{path} shows invisible characters: {page}");
        for attribute in [" style=\"", " onclick=", "javascript:"] {
            assert!(!page.contains(attribute), "{path} has {attribute}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_tabs_of_a_bot_count_its_calls_and_its_denials_lead_to_their_calls() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/docs"] })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let bot = format!("{base}/bots/{}", world.bot);
    assert!(!browser.page(&bot).await?.contains("class=\"count"), "a bot without calls has no counts");
    for repo in ["acme/docs", "acme/site", "acme/site"] {
        world.call("github_list_issues", &json!({ "repo": repo })).await?;
    }
    for tab in ["", "/did", "/denied", "/tasks", "/conversations", "/budget", "/settings"] {
        let page = browser.page(&format!("{bot}{tab}")).await?;
        for (class, count) in [("calls", 3), ("denied", 2)] {
            let shown =
                format!("<span class=\"count {class}\">{count}<span class=\"unseen\"> in 24 hours</span></span>");
            assert!(page.contains(&shown), "{tab} lacks {shown}: {page}");
        }
    }
    let denied = browser.page(&format!("{bot}/denied")).await?;
    let link = denied.split("href=\"").find(|part| part.starts_with(&format!("{base}/activity?"))).context("a link")?;
    let link = link.split('"').next().context("a path")?.replace("&#38;", "&");
    let calls = browser.page(&link).await?;
    let rows = |page: &str| page.matches("<tr data-id=").count();
    assert_eq!((rows(&calls), rows(&browser.page(&format!("{base}/activity")).await?)), (2, 3), "{link}: {calls}");
    Ok(())
}

#[tokio::test]
async fn the_overview_shows_the_calls_of_a_day_and_the_newest_denials() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/site"] })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let overview = format!("{}/overview", base(&world).await?);
    let empty = browser.page(&overview).await?;
    assert!(!empty.contains("class=\"chart\"") && !empty.contains("id=\"denials\""), "nothing was called: {empty}");
    for repo in ["acme/site", "acme/site", "acme/docs"] {
        world.call("github_list_issues", &json!({ "repo": repo })).await?;
    }
    let page = browser.page(&overview).await?;
    for part in [
        "<span class=\"status success\">succeeded</span><strong>2</strong>",
        "<span class=\"status denied\">denied</span><strong>1</strong>",
        "<rect class=\"bar success\"",
        "<rect class=\"bar denied\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let denials = page.split("id=\"denials\"").nth(1).and_then(|rest| rest.split("</section>").next());
    let denials = denials.context("the newest denials")?;
    assert!(denials.contains("acme/docs") && !denials.contains("acme/site"), "{denials}");
    Ok(())
}

#[tokio::test]
async fn a_hidden_tool_says_why_in_the_language_of_the_page() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": [] })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = format!("{}/bots/{}?hidden=1", base(&world).await?, world.bot);
    let cases = [
        ("en-US", "hidden: scope.repos · The scope repos allows no call of this tool."),
        ("zh-CN", "scope.repos · 范围 repos 不允许此工具的任何调用。"),
    ];
    for (language, sentence) in cases {
        let shown = browser.send(Method::GET, &page, &[], &[("accept-language", language)]).await?.text;
        assert!(shown.contains(sentence), "{language}: {shown}");
    }
    Ok(())
}

#[tokio::test]
async fn a_key_is_shown_once_and_deleted_by_its_name() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let new = format!("{base}/keys/new");
    let fields = [("name", "nightly"), ("kind", "operator")];
    let made = browser.submit(&new, &new, &fields).await?;
    let key = made.text.split("mk_").nth(1).and_then(|rest| rest.split('<').next()).context("a key is shown")?;
    let key = format!("mk_{key}");
    assert_eq!(world.api.with_key(&key).get("/api/bots").await?.0, 200);
    assert_eq!(browser.submit(&new, &new, &fields).await?.status, 409, "a second key of this name");
    let (_, keys) = world.api.get("/api/keys").await?;
    let listed = keys["items"].as_array().into_iter().flatten().find(|key| key["name"] == "nightly");
    let page = format!("{base}/keys/{}", text(&listed.context("the key")?["id"]));
    for path in [&page, &format!("{base}/keys")] {
        assert!(!browser.page(path).await?.contains(&key), "{path}");
    }
    let rotated = browser.submit(&page, &format!("{page}/rotate"), &[]).await?;
    assert!(rotated.text.contains("mk_") && !rotated.text.contains(&key), "{}", rotated.text);
    assert_eq!(world.api.with_key(&key).get("/api/bots").await?.0, 401);
    let kept = browser.submit(&page, &format!("{page}/delete"), &[("name", "other")]).await?;
    assert_eq!((kept.status, kept.location()), (303, page.as_str()));
    let gone = browser.submit(&page, &format!("{page}/delete"), &[("name", "nightly")]).await?;
    assert_eq!((gone.status, gone.location()), (303, format!("{base}/keys").as_str()));
    assert_eq!(browser.get(&page).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_form_that_is_sent_twice_makes_one_bot() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let new = format!("{}/bots/new", base(&world).await?);
    let hidden = super::hidden_fields(&browser.page(&new).await?, &new)?;
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("name", "twice"));
    let once = browser.send(Method::POST, &new, &fields, &[]).await?;
    let again = browser.send(Method::POST, &new, &fields, &[]).await?;
    assert_eq!((once.status, again.status), (303, 303), "{}", again.text);
    assert_eq!(once.location(), again.location());
    let (_, bots) = world.api.get("/api/bots").await?;
    assert_eq!(bots["items"].as_array().map(Vec::len), Some(2), "{bots}");
    Ok(())
}

#[tokio::test]
async fn a_denial_is_explained_by_stages_and_in_the_language_of_the_page() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/docs"] })).await?;
    let denied = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let request = format!("{base}/activity/{}", text(&denied["request_id"]));
    let stages = |words: [&str; 4], states: [&str; 3]| {
        let [passes, refuses, waits] = states;
        let classes = [("success", passes), ("success", passes), ("denied", refuses), ("hidden", waits)];
        let one = |(word, (class, state)): (&str, (&str, &str))| {
            format!("<li><span class=\"status {class}\">{word}</span><span class=\"quiet\">{state}</span></li>")
        };
        words.into_iter().zip(classes).map(one).collect::<String>()
    };
    let english =
        stages(["Tool", "Operation and tool granted", "Scopes", "Gates"], ["passes", "refuses", "not reached"]);
    let chinese = stages(["工具", "操作和工具的授权", "范围", "关卡"], ["通过", "拒绝", "未到达"]);
    let cases = [
        ("en-US", english, "The scope repos does not allow this call."),
        ("zh-CN", chinese, "范围 repos 不允许此调用。"),
    ];
    for (language, stages, sentence) in cases {
        let read = async |path: &str| browser.send(Method::GET, path, &[], &[("accept-language", language)]).await;
        let page = read(&request).await?.text;
        assert!(page.contains(&stages) && page.contains(sentence), "{language}: {page}");
        let page = read(&format!("{base}/bots/{}/denied", world.bot)).await?.text;
        assert!(page.contains(&format!("{sentence} <code>scope.repos</code>")), "{language}: {page}");
    }
    Ok(())
}
