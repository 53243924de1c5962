//! The pages of conversations: commands with hostile outputs, files with hostile names, downloads, and messages.

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Url};
use serde_json::json;
use support::{Build, FakeLlm, LlmReply};

use super::Browser;
use super::browser::opened;
use crate::sandbox::Doors;
use crate::tasks::give_model;
use crate::world::{eventually, text};

/// A text with markup, an attribute that runs scripts, terminal escapes, and invisible characters.
pub(super) const HOSTILE: &str =
    "<img src=x onerror=alert(1)></pre><script>x</script>\" hx-get='/api' \u{1b}[31mred\u{1b}[0m \u{202e}\u{200b}";

/// What no page contains: markup of others, terminal escapes, and characters that cannot be seen.
const RAW: [&str; 6] = ["<img src=x", "<script>x", "' hx-get='", "\u{1b}", "\u{202e}", "\u{200b}"];

struct Scene {
    doors: Doors,
    browser: Browser,
    base: String,
    /// The page of the conversation, whose sandbox runs.
    page: String,
}

impl Scene {
    async fn open() -> Result<Scene> {
        let doors = Doors::open().await?;
        doors.shell("echo first").await?;
        let browser = Browser::log_in_at(&doors.running.base_url, doors.api.key()).await?;
        let (_, me) = doors.api.get("/api/me").await?;
        let base = format!("/console/w/{}", text(&me["workspace_id"]));
        let page = format!("{base}/conversations/{}", text(&doors.sandbox().await?["id"]));
        Ok(Scene { doors, browser, base, page })
    }

    /// Stops the sandbox, whose files stay.
    async fn stop(&self) -> Result<()> {
        let Doors { bot, .. } = &self.doors;
        self.doors.switch(bot, false).await?;
        self.status("stopped").await?;
        self.doors.switch(bot, true).await
    }

    async fn status(&self, wanted: &str) -> Result<()> {
        let status = async || Ok((self.doors.sandbox().await?["status"] == wanted).then_some(()));
        eventually(wanted, status).await
    }
}

/// Returns the query for a file of the workspace.
fn query(name: &str) -> String {
    let path = format!("/workspace/{name}");
    let url = Url::parse_with_params("http://localhost", [("path", path.as_str())]).expect("the URL is valid");
    url.query().unwrap_or_default().to_owned()
}

pub(super) fn is_safe(path: &str, page: &str) -> Result<()> {
    for raw in RAW {
        ensure!(!page.contains(raw), "{path} shows {raw:?}: {page}");
    }
    for attribute in [" style=\"", " onclick=", "javascript:"] {
        ensure!(!page.contains(attribute), "{path} has {attribute}");
    }
    Ok(())
}

#[tokio::test]
async fn commands_are_shown_with_their_state_and_outputs_as_text() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, base, page } = &scene;
    doors.shell(&format!("echo {HOSTILE}")).await?;
    doors.shell("fail 3").await?;
    doors.shell("slow").await?;
    let shown = browser.page(page).await?;
    is_safe(page, &shown)?;
    assert_eq!(shown.matches("<details class=\"fold card command\">").count(), 4, "folded: {shown}");
    for word in ["status error\">timed out", "status error\">failed", "exit code 3", "status success\">success"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(shown.contains("&#60;img src=x") && shown.contains("u{202e}"), "the text is readable: {shown}");
    let outputs = shown.split("Output (stdout)</h3>").map(|part| part.split("</pre>").next().unwrap_or_default());
    let output = outputs.into_iter().skip(1).find(|output| output.contains("img src=x")).context("the output")?;
    assert!(output.contains("red ") && !output.contains("u{1b}") && !output.contains("[31m"), "{output}");
    for path in [format!("{base}/conversations"), format!("{base}/bots/{}/conversations", doors.bot)] {
        let list = browser.page(&path).await?;
        assert!(list.contains(page.as_str()), "{path}: {list}");
    }
    let navigation = browser.page(&format!("{base}/bots")).await?;
    assert!(navigation.contains(&format!("href=\"{base}/conversations\"")), "{navigation}");
    let chinese = browser.send(Method::GET, page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("超时") && chinese.text.contains("命令"), "{}", chinese.text);
    Ok(())
}

#[tokio::test]
async fn a_page_of_large_outputs_is_bounded_and_leads_to_the_whole_output() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, page, .. } = &scene;
    for _ in 0..14 {
        doors.shell("bytes 64000").await?;
    }
    let shown = browser.page(page).await?;
    assert!(shown.len() <= 512 << 10, "{} bytes", shown.len());
    assert_eq!(shown.matches("<details class=\"fold card command\">").count(), 10);
    assert_eq!(shown.matches(&"x".repeat(64_000)).count(), 1, "the first output is whole");
    let whole = shown.split("href=\"").find(|part| part.contains("cursor=")).context("a link to the whole output")?;
    let whole = whole.split('"').next().context("a path")?.replace("&#38;", "&");
    assert!(browser.page(&whole).await?.contains(&"x".repeat(64_000)));
    let next = shown.split("href=\"").find(|part| part.contains("rel=\"next\"")).context("a next page")?;
    let next = next.split('"').next().context("a path")?.replace("&#38;", "&");
    assert!(browser.page(&next).await?.contains("echo first"));
    let wrong = browser.get(&format!("{page}?cursor=x")).await?;
    assert_eq!((wrong.status, wrong.location()), (303, page.as_str()));
    Ok(())
}

#[tokio::test]
async fn files_are_shown_as_text_and_downloaded_as_attachments() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, page, .. } = &scene;
    let name = "<img src=x onerror=alert(1)>\u{202e}\u{200b}\u{1b}[31m.html";
    for (name, content) in [
        (name, HOSTILE.as_bytes().to_vec()),
        ("x.html", b"<script>x</script>".to_vec()),
        ("binary", vec![0xff, 0xfe, 0x00]),
        ("large.txt", vec![b'a'; (256 << 10) + 1]),
        ("fits.txt", vec![b'a'; 256 << 10]),
        ("markup.txt", vec![b'<'; 200 << 10]),
        ("sub/inner.txt", b"inner".to_vec()),
    ] {
        doors.machines.put(&format!("/workspace/{name}"), content);
    }
    let closed = browser.page(page).await?;
    assert!(!closed.contains("x.html"), "files are listed on request: {closed}");
    let listed = browser.page(&format!("{page}?path=%2Fworkspace")).await?;
    is_safe(page, &listed)?;
    for part in ["x.html", "256.0 KiB", "folder", "path=%2Fworkspace%2Fsub", "Download this folder"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let folder = browser.page(&format!("{page}?path=%2Fworkspace%2Fsub")).await?;
    assert!(folder.contains("inner.txt") && folder.contains("path=%2Fworkspace\">workspace</a>"), "{folder}");

    let file = |name: &str| format!("{page}/file?{}", query(name));
    for (name, expected) in [
        (name, "&#60;img src=x onerror=alert(1)&#62;&#60;/pre&#62;"),
        ("x.html", "&#60;script&#62;x&#60;/script&#62;"),
        ("binary", "The file is not text"),
        ("large.txt", "larger than 256 KiB"),
        ("fits.txt", "aaaa"),
        ("markup.txt", "The page shows the start of the file"),
    ] {
        let shown = browser.page(&file(name)).await?;
        assert!(shown.contains(expected), "{name}: {shown}");
        assert!(shown.len() <= 512 << 10, "{name}: {} bytes", shown.len());
        is_safe(name, &shown)?;
    }
    assert_eq!(browser.get(&file("absent")).await?.status, 404);
    assert_eq!(browser.get(&file("sub")).await?.status, 404, "a folder is not a file");
    assert_eq!(browser.get(&file("../etc/passwd")).await?.status, 422);
    for at in ["?", "/file?", "/download?"] {
        let deep = browser.get(&format!("{page}{at}path={}", "a/".repeat(4096))).await?;
        assert_eq!(deep.status, 404, "{at}: a page with a link to each folder would be huge");
    }

    // A page of another site uses no sandbox with the session of its visitor.
    let elsewhere = [("sec-fetch-site", "cross-site")];
    let foreign = browser.send(Method::GET, &format!("{page}?path=%2Fworkspace"), &[], &elsewhere).await?;
    assert!(foreign.status == 200 && !foreign.text.contains("x.html"), "{}", foreign.text);
    for what in ["file", "download"] {
        let path = format!("{page}/{what}?{}", query("x.html"));
        assert_eq!(browser.send(Method::GET, &path, &[], &elsewhere).await?.status, 303, "{what}");
    }

    for name in ["x.html", name, "sub"] {
        let answer = browser.get(&format!("{page}/download?{}", query(name))).await?;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert!(header("content-disposition").starts_with("attachment; filename="), "{:?}", answer.headers);
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(header("content-security-policy").starts_with("sandbox;"), "{:?}", answer.headers);
        let kind = if name == "sub" { "application/zip" } else { "application/octet-stream" };
        assert_eq!(header("content-type"), kind);
        assert!(!header("content-disposition").contains(['<', '\u{202e}']), "{:?}", answer.headers);
    }
    Ok(())
}

#[tokio::test]
async fn looking_at_a_stopped_sandbox_starts_nothing_without_the_button() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, page, .. } = &scene;
    doors.shell("save a.txt").await?;
    scene.stop().await?;
    let listed = format!("{page}?path=%2Fworkspace");
    for path in [page, &listed] {
        let shown = browser.page(path).await?;
        assert!(shown.contains("Looking at the files starts it") && !shown.contains("a.txt</a>"), "{shown}");
    }
    for rest in ["file", "download"] {
        let answer = browser.get(&format!("{page}/{rest}?path=%2Fworkspace%2Fa.txt")).await?;
        assert_eq!((answer.status, answer.location()), (303, listed.as_str()), "{rest}");
    }
    assert_eq!(doors.sandbox().await?["status"], "stopped", "reading pages starts nothing");
    let look = format!("{page}/look");
    let without = browser.send(Method::POST, &look, &[("path", "/workspace")], &[]).await?;
    assert_eq!(without.status, 403, "a form needs its token");
    assert_eq!(browser.get(&look).await?.status, 405);
    assert_eq!(doors.sandbox().await?["status"], "stopped");
    let started = browser.submit(page, &look, &[]).await?;
    assert_eq!((started.status, started.location()), (303, listed.as_str()), "{}", started.text);
    assert_eq!(doors.sandbox().await?["status"], "running");
    assert!(browser.page(&listed).await?.contains("a.txt</a>"));
    Ok(())
}

#[tokio::test]
async fn a_conversation_of_another_workspace_or_kind_of_key_is_not_shown() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, base, page } = &scene;
    let (status, other) = doors.api.post("/api/workspaces", &json!({ "name": "other" })).await?;
    ensure!(status == 201, "{other}");
    let foreign = page.replace(base, &format!("/console/w/{}", text(&other["id"])));
    for rest in ["", "/file?path=%2Fworkspace%2Fa", "/download?path=%2Fworkspace%2Fa"] {
        let answer = browser.get(&format!("{foreign}{rest}")).await?;
        assert_eq!(answer.status, 404, "{rest}: {}", answer.text);
        assert!(!answer.text.contains("echo first"), "{}", answer.text);
    }
    let approver = doors.api.new_key("approver", None).await?;
    let approver = Browser::log_in_at(&doors.running.base_url, &approver).await?;
    let answer = approver.get(page).await?;
    assert!(answer.status == 403 && !answer.text.contains("echo first"), "{} {}", answer.status, answer.text);
    let approvals = approver.page(&format!("{base}/approvals")).await?;
    assert!(!approvals.contains("/conversations\""), "{approvals}");
    Ok(())
}

/// Like the other pages, these pages are opened in Chromium.
#[tokio::test]
async fn conversations_are_accessible_and_fit_their_window() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, base, page, .. } = &scene;
    let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
    doors.shell(&format!("echo {long}")).await?;
    doors.shell("fail 3").await?;
    doors.machines.put(&format!("/workspace/{}", &long[..200]), long.clone());
    doors.machines.put("/workspace/a.txt", long.clone());
    let mut pages = vec![
        ("conversations", format!("{base}/conversations")),
        ("bot-conversations", format!("{base}/bots/{}/conversations", doors.bot)),
        ("conversation", page.clone()),
        ("conversation-files", format!("{page}?path=%2Fworkspace")),
        ("file", format!("{page}/file?{}", query("a.txt"))),
    ];
    let looks = [("en-US", "light", 1280), ("zh-CN", "dark", 360)];
    for is_stopped in [false, true] {
        if is_stopped {
            scene.stop().await?;
            pages = vec![("conversation-stopped", page.clone())];
        }
        let plan = json!({
            "url": doors.running.base_url,
            "key": doors.api.key(),
            "pages": pages.iter().map(|(name, path)| json!({ "name": name, "path": path })).collect::<Vec<_>>(),
            "looks": looks.map(|(language, theme, width)| json!({ "language": language, "theme": theme, "width": width })),
            "pictures": Build::current()?.target()?.join("console"),
        });
        let report = opened(&plan).await?;
        assert_eq!(report["problems"], json!([]), "{report:#}");
        assert_eq!(report["opened"], json!(looks.len() * (pages.len() + 1)));
    }
    Ok(())
}

#[tokio::test]
async fn a_conversation_shows_the_newest_messages_of_its_session() -> Result<()> {
    let scene = Scene::open().await?;
    let Scene { doors, browser, base, page } = &scene;
    assert!(!browser.page(page).await?.contains("id=\"messages\""), "the conversation has no session");
    let llm = FakeLlm::start().await?;
    give_model(&doors.api, &doors.bot, "models", &llm).await?;
    llm.prepare([LlmReply::says(&["Hello, Ada."])]);
    let input = json!({ "instruction": format!("I am Ada. {HOSTILE}"), "chat": Doors::chat("c") });
    let (status, task) = doors.api.post(&format!("/api/bots/{}/tasks", doors.bot), &input).await?;
    ensure!(status == 202, "{status} {task}");
    let session = format!("{base}/sessions/{}", text(&task["session_id"]));
    let shown = browser.page(page).await?;
    is_safe(page, &shown)?;
    assert!(shown.contains("I am Ada.") && shown.contains(&session), "{shown}");
    let of_session = browser.page(&session).await?;
    assert!(of_session.contains(&format!("href=\"{page}\"")), "the session leads back: {of_session}");
    // The session of another conversation of the same user.
    let other = json!({ "instruction": "I am elsewhere.", "chat": Doors::chat("d") });
    let (status, task) = doors.api.post(&format!("/api/bots/{}/tasks", doors.bot), &other).await?;
    ensure!(status == 202, "{status} {task}");
    assert!(!browser.page(page).await?.contains("I am elsewhere."));
    Ok(())
}
