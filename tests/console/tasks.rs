//! The pages of tasks and sessions: starting, reading, following and cancelling, with hostile texts of people and models.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use support::LlmReply;

use super::conversations::{HOSTILE, is_safe};
use super::{Answer, Browser, base};
use crate::tasks::{Tasks, calls, ended, list};
use crate::world::{eventually, text};

struct Scene {
    tasks: Tasks,
    browser: Browser,
    base: String,
}

impl Scene {
    async fn open() -> Result<Scene> {
        let tasks = Tasks::start().await?;
        let browser = Browser::log_in(&tasks.world, tasks.api().key()).await?;
        let base = base(&tasks.world).await?;
        Ok(Scene { tasks, browser, base })
    }

    /// Starts a task by the form, and returns its page.
    async fn start(&self, fields: &[(&str, &str)]) -> Result<String> {
        let form = format!("{}/tasks/new", self.base);
        let all = [&[("bot_id", self.tasks.world.bot.as_str())], fields].concat();
        let started = self.browser.submit(&form, &form, &all).await?;
        ensure!(started.status == 303, "{} {}", started.status, started.text);
        Ok(started.location().to_owned())
    }

    async fn ended(&self, page: &str) -> Result<Value> {
        ended(self.tasks.api(), id_of(page)).await
    }

    /// Starts a task whose model begins an answer and stays silent.
    async fn running(&self) -> Result<String> {
        self.tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()]);
        let page = self.start(&[("instruction", "Go on.")]).await?;
        self.tasks.llm.is_answering().await;
        Ok(page)
    }
}

fn id_of(page: &str) -> &str {
    page.rsplit('/').next().unwrap_or_default()
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn a_task_is_started_by_a_form_and_shown_with_its_rounds_and_calls() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    let bot = format!("{base}/bots/{}", tasks.world.bot);
    for path in [format!("{base}/tasks"), format!("{bot}/tasks")] {
        let empty = browser.page(&path).await?;
        assert!(empty.contains("There are no tasks yet") && empty.contains(&format!("{base}/tasks/new")), "{empty}");
    }
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["There are ", "issues."])]);
    let page = scene.start(&[("instruction", "Look at the issues.\nThen stop."), ("limit.steps", "9")]).await?;
    let task = scene.ended(&page).await?;
    assert_eq!((text(&task["status"]), &task["steps"]), ("completed", &json!(3)), "{task}");

    let shown = browser.page(&page).await?;
    assert_eq!(shown.matches("<details class=\"fold card command\">").count(), 3, "folded: {shown}");
    let steps = tasks.steps(&task).await?;
    for step in &steps {
        assert!(shown.contains(&format!("href=\"{base}/activity/{}\"", text(&step["request_id"]))), "{step}: {shown}");
    }
    let session = format!("{base}/sessions/{}", text(&task["session_id"]));
    for part in [
        "status success\">completed",
        "Then stop.",
        "There are issues.",
        "github_list_issues",
        "acme/site",
        "small",
        "18 read, 6 written",
        session.as_str(),
        bot.as_str(),
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("data-wait") && !shown.contains("/cancel\""), "the task has ended: {shown}");

    let matching =
        ["", "?status=completed", &format!("?bot_id={}", tasks.world.bot)].map(|of| format!("{base}/tasks{of}"));
    for path in matching.into_iter().chain([format!("{bot}/tasks")]) {
        let listed = browser.page(&path).await?;
        assert!(listed.contains(&page) && listed.contains("Look at the issues."), "{path}: {listed}");
        assert!(!listed.contains("Then stop."), "the list has the first line: {listed}");
    }
    let none = browser.page(&format!("{base}/tasks?status=failed")).await?;
    assert!(none.contains("No task matches the filter."), "{none}");
    assert_eq!(browser.get(&format!("{base}/tasks?status=lost")).await?.status, 422);
    let later = browser.page(&format!("{page}?after=2")).await?;
    assert_eq!(later.matches("<details class=\"fold card command\">").count(), 1, "{later}");
    assert_eq!(browser.get(&format!("{page}?after=x")).await?.location(), page);

    // The call leads back to its task.
    let call = browser.page(&format!("{base}/activity/{}", text(&steps[1]["request_id"]))).await?;
    assert!(call.contains(&format!("href=\"{page}\"")), "{call}");
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("已完成") && chinese.text.contains("轮次与调用"), "{}", chinese.text);
    Ok(())
}

#[tokio::test]
async fn a_form_that_cannot_start_a_task_says_why_and_keeps_what_was_typed() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    let form = format!("{base}/tasks/new");
    let bot = tasks.world.bot.as_str();
    let other = tasks.api().bot("no-model").await?;
    let cases = [
        (&[("bot_id", ""), ("instruction", "typed")][..], 422, "Choose a bot."),
        (&[("bot_id", bot), ("instruction", " ")], 422, "href=\"#instruction\""),
        (&[("bot_id", bot), ("instruction", "typed"), ("limit.steps", "some")], 422, "This is not a whole number."),
        (&[("bot_id", bot), ("instruction", "typed"), ("limit.steps", "51")], 422, "href=\"#limit.steps\""),
        (&[("bot_id", bot), ("instruction", "typed"), ("limit.credits", "inf")], 422, "This is not a number."),
        (&[("bot_id", &other), ("instruction", "typed")], 409, "model"),
    ];
    for (fields, status, told) in cases {
        let answer = browser.submit(&form, &form, fields).await?;
        assert_eq!(answer.status, status, "{fields:?}: {}", answer.text);
        assert!(answer.text.contains(told), "{fields:?}: {}", answer.text);
        assert!(answer.text.contains(fields[1].1), "{fields:?}: {}", answer.text);
    }
    assert_eq!(tasks.api().get("/api/tasks").await?.1["items"], json!([]));
    let sent_twice = super::hidden_fields(&browser.page(&form).await?, &form)?;
    let mut fields: Vec<(&str, &str)> =
        sent_twice.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.extend([("bot_id", bot), ("instruction", "Once.")]);
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let once = browser.send(Method::POST, &form, &fields, &[]).await?;
    let again = browser.send(Method::POST, &form, &fields, &[]).await?;
    assert_eq!((once.status, again.location()), (303, once.location()), "{}", once.text);
    Ok(())
}

#[tokio::test]
async fn a_running_task_is_followed_and_cancelled_by_a_form() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, .. } = &scene;
    let page = scene.running().await?;
    let shown = browser.page(&page).await?;
    assert!(shown.contains(&format!("data-wait=\"{page}/state\"")) && shown.contains("Refresh"), "{shown}");
    let state = browser.get(&format!("{page}/state")).await?;
    assert!(state.status == 200 && state.text.starts_with("running "), "{} {}", state.status, state.text);
    assert!(shown.contains(&format!("data-state=\"{}\"", state.text)), "{shown}");

    let cancel = format!("{page}/cancel");
    let forged = browser.send(Method::POST, &cancel, &[("_token", &"00".repeat(48))], &[]).await?;
    let absent = browser.send(Method::POST, &cancel, &[], &[]).await?;
    let foreign = browser.send(Method::POST, &cancel, &[], &[("sec-fetch-site", "cross-site")]).await?;
    assert_eq!([forged.status, absent.status, foreign.status], [403; 3]);
    let (_, task) = tasks.api().get(&format!("/api/tasks/{}", id_of(&page))).await?;
    assert_eq!(task["ended_at"], Value::Null, "a form without a token cancels nothing: {task}");

    let done = browser.submit(&cancel, &cancel, &[]).await?;
    assert_eq!((done.status, done.location()), (303, page.as_str()), "{}", done.text);
    let task = scene.ended(&page).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    let told = browser.get(&cancel).await?;
    assert_eq!((told.status, told.location()), (303, page.as_str()), "{}", told.text);
    assert!(browser.page(&page).await?.contains("The task has ended already."));
    Ok(())
}

#[tokio::test]
async fn texts_of_people_models_and_tools_are_text() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    let made_up = calls(&[("github_list_issues", json!({ "repo": HOSTILE, HOSTILE: [HOSTILE] }))]);
    tasks.llm.prepare([made_up, LlmReply::says(&[HOSTILE])]);
    let page = scene.start(&[("instruction", HOSTILE)]).await?;
    let task = scene.ended(&page).await?;
    let session = format!("{base}/sessions/{}", text(&task["session_id"]));
    let shown = browser.page(&page).await?;
    assert!(shown.contains("&#60;img src=x") && shown.contains("u{202e}"), "the text is readable: {shown}");
    for path in
        [&page, &session, &format!("{base}/tasks"), &format!("{base}/sessions"), &format!("{base}/usage?by=task")]
    {
        is_safe(path, &browser.page(path).await?)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_page_of_a_large_task_is_bounded_and_the_whole_task_is_a_download() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["Yes."])]);
    let large = "<".repeat(20 << 10);
    let page = scene.start(&[("instruction", &large)]).await?;
    let task = scene.ended(&page).await?;
    let shown = browser.page(&page).await?;
    assert!(shown.len() <= 64 << 10, "{} bytes", shown.len());
    assert!(shown.contains(&format!("href=\"{page}/export\"")), "{shown}");
    let session = browser.page(&format!("{base}/sessions/{}", text(&task["session_id"]))).await?;
    assert!(session.len() <= 64 << 10, "{} bytes", session.len());
    let whole = browser.get(&format!("{page}/export")).await?;
    assert_eq!(serde_json::from_str::<Value>(&whole.text)?["instruction"], json!(large));
    let step = browser.get(&format!("{page}/export?step=2")).await?;
    assert_eq!(serde_json::from_str::<Value>(&step.text)?["items"][0]["tool"], "github_list_issues");
    for answer in [whole, step] {
        assert_eq!(header(&answer, "content-disposition"), "attachment; filename=\"task.json\"");
        assert!(header(&answer, "content-security-policy").contains("sandbox"), "{:?}", answer.headers);
    }
    Ok(())
}

#[tokio::test]
async fn a_session_takes_messages_and_is_deleted() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    tasks.llm.prepare([LlmReply::says(&["Hello, Ada."]), LlmReply::says(&["You are Ada."])]);
    let first = scene.start(&[("instruction", "I am Ada.")]).await?;
    let task = scene.ended(&first).await?;
    let session = format!("{base}/sessions/{}", text(&task["session_id"]));
    let sent = browser.submit(&session, &session, &[("text", "Who am I?")]).await?;
    assert_eq!(sent.status, 303, "{}", sent.text);
    let second = sent.location().to_owned();
    scene.ended(&second).await?;
    let shown = browser.page(&session).await?;
    for part in ["I am Ada.", "Hello, Ada.", "Who am I?", "You are Ada.", &first, &second] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    for path in [format!("{base}/sessions"), format!("{base}/sessions?bot_id={}", tasks.world.bot)] {
        assert!(browser.page(&path).await?.contains(&session), "{path}");
    }
    let empty = browser.submit(&session, &session, &[("text", " ")]).await?;
    assert!(empty.status == 422 && empty.text.contains("href=\"#text\""), "{} {}", empty.status, empty.text);
    assert_eq!(browser.get(&format!("{session}?cursor=x")).await?.location(), session);

    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()]);
    let sent = browser.submit(&session, &session, &[("text", "Go on.")]).await?;
    assert_eq!(sent.status, 303, "{}", sent.text);
    tasks.llm.is_answering().await;
    let busy = browser.submit(&session, &session, &[("text", "And this?")]).await?;
    assert!(busy.status == 409 && busy.text.contains("And this?"), "{} {}", busy.status, busy.text);
    let delete = format!("{session}/delete");
    let kept = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((kept.status, kept.location()), (303, session.as_str()));
    let cancel = format!("{}/cancel", sent.location());
    browser.submit(&cancel, &cancel, &[]).await?;
    scene.ended(sent.location()).await?;

    let without_token = browser.send(Method::POST, &delete, &[], &[]).await?;
    assert_eq!(without_token.status, 403);
    let gone = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((gone.status, gone.location()), (303, format!("{base}/sessions").as_str()), "{}", gone.text);
    for path in [&session, &first, &second] {
        assert_eq!(browser.get(path).await?.status, 404, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn an_approval_leads_to_the_task_that_asks() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, browser, base } = &scene;
    let gates = json!([{ "action": "ask", "approvers": ["approver"] }]);
    tasks.world.rebind(&tasks.github, &json!({ "gates": gates })).await?;
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["I wait."])]);
    let page = scene.start(&[("instruction", "Look at the issues.")]).await?;
    let approval = eventually("the call of the task waits for a person", async || {
        let (_, list) = tasks.api().get("/api/approvals").await?;
        Ok(list["items"][0]["id"].as_str().map(str::to_owned))
    })
    .await?;
    let path = format!("{base}/approvals/{approval}");
    let link = format!("href=\"{page}\"");
    assert!(browser.page(&path).await?.contains(&link));
    // An approver sees no tasks.
    let approver = Browser::log_in(&tasks.world, &tasks.api().new_key("approver", None).await?).await?;
    assert!(!approver.page(&path).await?.contains(&link));
    for page in [format!("{base}/tasks"), format!("{base}/tasks/new"), format!("{base}/sessions"), page] {
        assert_eq!(approver.get(&page).await?.status, 403, "{page}");
    }
    let navigation = approver.page(&format!("{base}/approvals")).await?;
    assert!(!navigation.contains(&format!("href=\"{base}/tasks\"")), "{navigation}");
    Ok(())
}

#[tokio::test]
async fn tasks_and_sessions_of_another_workspace_do_not_exist() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { tasks, .. } = &scene;
    let page = scene.running().await?;
    let (_, task) = tasks.api().get(&format!("/api/tasks/{}", id_of(&page))).await?;
    let foreign = crate::http::workspace(tasks.api(), "foreign").await?;
    let (_, me) = foreign.get("/api/me").await?;
    let base = format!("/console/w/{}", text(&me["workspace_id"]));
    let stranger = Browser::log_in(&tasks.world, foreign.key()).await?;
    let mut pages = ["", "/state", "/export", "/cancel"].map(|rest| format!("tasks/{}{rest}", id_of(&page))).to_vec();
    pages.extend(["", "/delete"].map(|rest| format!("sessions/{}{rest}", text(&task["session_id"]))));
    pages.extend([format!("bots/{}/tasks", tasks.world.bot), format!("tasks/new?bot_id={}", tasks.world.bot)]);
    for path in pages {
        let answer = stranger.get(&format!("{base}/{path}")).await?;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
        assert!(!answer.text.contains("Go on."), "{path}: {}", answer.text);
    }
    for list in ["tasks", "sessions", "usage?by=task"] {
        let shown = stranger.page(&format!("{base}/{list}")).await?;
        assert!(!shown.contains(id_of(&page)) && !shown.contains("Go on."), "{list}: {shown}");
    }
    // A form of this workspace with the bot of another one.
    let form = format!("{base}/tasks/new");
    let fields = [("bot_id", tasks.world.bot.as_str()), ("instruction", "Do it.")];
    assert_eq!(stranger.submit(&form, &form, &fields).await?.status, 404);
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    let count = listed["items"].as_array().context("the tasks")?.len();
    assert_eq!((count, &listed["items"][0]["ended_at"]), (1, &Value::Null), "{listed}");
    Ok(())
}
