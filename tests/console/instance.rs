//! The live calls, the OAuth apps, the check of the audit, and the pages about the whole server.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use support::Server;
use tokio::time::timeout;

use super::{Browser, base, hidden_fields};
use crate::tamper::sqlite;
use crate::world::{World, text};

/// A time-out that is far longer than any event needs.
const EVENT_MAX: Duration = Duration::from_secs(30);
const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}\u{200b}";
const PUBLIC_KEY: &str = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

/// An open stream of the console.
pub(super) struct Feed {
    response: Response,
    text: String,
}

impl Feed {
    pub(super) async fn open(browser: &Browser, path: &str, headers: &[(&'static str, &str)]) -> Result<Feed> {
        let mut request = browser.client.get(format!("{}{path}", browser.url)).header("cookie", &browser.cookie);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await?;
        ensure!(response.status() == 200, "{}", response.status());
        ensure!(response.headers()["content-type"] == "text/event-stream", "{:?}", response.headers());
        Ok(Feed { response, text: String::new() })
    }

    /// Returns the name, the id and the data of the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<(String, String, Value)>> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                let (name, id, data) = (field("event: "), field("id: "), field("data: "));
                let data = if data.is_empty() { Value::Null } else { serde_json::from_str(data)? };
                let found = (!name.is_empty()).then(|| (name.to_owned(), id.to_owned(), data));
                self.text = rest.to_owned();
                match found {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            let chunk = timeout(EVENT_MAX, self.response.chunk()).await.context("no event")??;
            let Some(chunk) = chunk else { return Ok(None) };
            self.text.push_str(std::str::from_utf8(&chunk)?);
        }
    }

    /// Reads until the event `name`.
    pub(super) async fn until(&mut self, name: &str) -> Result<(String, Value)> {
        while let Some((found, id, data)) = self.next().await? {
            if found == name {
                return Ok((id, data));
            }
        }
        bail!("the stream has ended without the event {name}")
    }

    /// Reads until the call with this request id, and returns the id of its event.
    pub(super) async fn until_call(&mut self, request: &Value) -> Result<String> {
        loop {
            let (id, call) = self.until("call").await?;
            if call["request_id"] == *request {
                return Ok(id);
            }
        }
    }
}

#[tokio::test]
async fn the_live_page_reads_without_a_script_and_names_its_stream() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let call = world.call("test_echo_run", &json!({ "any": HOSTILE })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let live = format!("{}/activity/live", base(&world).await?);
    let page = browser.page(&format!("{live}?tool=test_echo_run")).await?;
    assert!(page.contains(text(&call["request_id"])), "{page}");
    assert!(page.contains(&format!("data-live=\"{live}/events?tool=test_echo_run\"")), "{page}");
    assert!(page.contains(&format!("href=\"{live}?tool=test_echo_run\"")), "a link that refreshes: {page}");
    assert!(!page.contains("<img src=x") && !page.contains(['\u{202e}', '\u{200b}']), "{page}");
    assert!(!browser.page(&format!("{live}?tool=other")).await?.contains(text(&call["request_id"])));
    let moved = browser.get(&format!("{live}?request=abc")).await?;
    assert_eq!((moved.status, moved.location()), (303, format!("{}/activity/abc", base(&world).await?).as_str()));
    Ok(())
}

#[tokio::test]
async fn the_stream_begins_with_the_list_and_resumes() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let run = async |any: &str| world.call("test_echo_run", &json!({ "any": any })).await;
    let before = run("before").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let events = format!("{}/activity/live/events", base(&world).await?);
    let mut feed = Feed::open(&browser, &events, &[("sec-fetch-site", "same-origin")]).await?;
    assert_eq!(feed.until_call(&before["request_id"]).await?, "", "an item of the list has no cursor");
    let first = run("first").await?;
    let id = feed.until_call(&first["request_id"]).await?;
    assert!(!id.is_empty());
    drop(feed);
    let second = run("second").await?;
    // The header of a browser that connects again comes before the parameter of a script that opens a stream.
    let by_script = format!("{events}?cursor={id}");
    for (path, headers) in [
        (&events, vec![("last-event-id", id.as_str())]),
        (&by_script, vec![]),
        (&format!("{events}?cursor=wrong"), vec![("last-event-id", id.as_str())]),
    ] {
        let mut feed = Feed::open(&browser, path, &headers).await?;
        let (_, call) = feed.until("call").await?;
        assert_eq!(call["request_id"], second["request_id"], "{path}: only what came after the cursor");
    }
    let mut filtered = Feed::open(&browser, &format!("{events}?status=error"), &[]).await?;
    let failed = world.call("no_such_tool", &json!({})).await?;
    assert_ne!(failed["status"], "error", "{failed}");
    let unhandled = world.call("test_echo_unhandled", &json!({})).await?;
    assert_eq!(unhandled["status"], "error", "{unhandled}");
    assert_eq!(filtered.until("call").await?.1["request_id"], unhandled["request_id"]);
    Ok(())
}

#[tokio::test]
async fn the_stream_is_refused_to_others() -> Result<()> {
    let world = World::with(&[]).await?;
    let base = base(&world).await?;
    let events = format!("{base}/activity/live/events");
    let browser = Browser::log_in(&world, world.api.key()).await?;
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(browser.send(Method::GET, &events, &[], &[("sec-fetch-site", site)]).await?.status, 403, "{site}");
    }
    assert_eq!(browser.get(&format!("{events}?cursor=wrong")).await?.status, 422);
    assert_eq!(browser.get(&format!("{events}?status=wrong")).await?.status, 422);
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    assert_eq!(approver.get(&events).await?.status, 403);
    assert_eq!(Browser::open(&world)?.get(&events).await?.status, 303);
    let foreign = crate::http::workspace(&world.api, "foreign").await?;
    assert_eq!(Browser::log_in(&world, foreign.key()).await?.get(&events).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn the_stream_ends_with_its_session_and_with_its_key() -> Result<()> {
    let world = World::with(&[]).await?;
    let base = base(&world).await?;
    let events = format!("{base}/activity/live/events");
    let (_, key) = world.api.post("/api/keys", &json!({ "name": "ops", "kind": "operator" })).await?;
    let browser = Browser::log_in(&world, text(&key["key"])).await?;
    let other = Browser::log_in(&world, text(&key["key"])).await?;
    let mut feed = Feed::open(&browser, &events, &[]).await?;
    let mut of_other = Feed::open(&other, &events, &[]).await?;
    browser.submit(&format!("{base}/bots"), "/console/logout", &[]).await?;
    feed.until("over").await?;
    assert!(feed.next().await?.is_none(), "the stream has ended");
    world.api.post(&format!("/api/keys/{}/rotate", text(&key["id"])), &json!({})).await?;
    of_other.until("over").await?;
    assert!(of_other.next().await?.is_none(), "the stream has ended");
    Ok(())
}

#[tokio::test]
async fn the_words_of_the_script_are_in_the_page() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::open(&world)?;
    for (language, word) in [("en-US", "Show while held"), ("zh-CN", "按住显示")] {
        let page = browser.send(Method::GET, "/console/login", &[], &[("accept-language", language)]).await?.text;
        assert!(page.contains("data-words=\"{") && page.contains(word), "{page}");
        let script = page.split("src=\"").nth(1).and_then(|rest| rest.split('"').next()).context("a script")?;
        let script = browser.page(script).await?;
        assert!(!script.contains(word) && !script.contains("Copied"), "no word is in the script");
        assert!(script.lines().count() <= 600, "{}", script.lines().count());
        for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"] {
            assert!(!script.contains(sink), "{sink}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_authorization_begins_under_a_known_name_only() -> Result<()> {
    let server = Server::prepare(&[])?.argument("--console-hosts").argument("ops.internal");
    let world = World::on(server).await?;
    let browser = Browser::open(&world)?;
    let (begin, connect) = ("/oauth/begin/unknown", "/oauth/connect/unknown");
    for (host, status) in [("localhost", 400), ("127.0.0.1:1", 400), ("ops.internal", 400), ("evil.example", 421)] {
        for (method, page) in [(Method::GET, begin), (Method::POST, begin), (Method::GET, connect)] {
            let answer = browser.send(method.clone(), page, &[], &[("host", host)]).await?;
            assert_eq!(answer.status, status, "{method} {page} {host}: {}", answer.text);
            assert!(answer.headers.get("set-cookie").is_none());
        }
    }
    for page in [begin, connect] {
        assert_eq!(browser.send(Method::HEAD, page, &[], &[("host", "evil.example")]).await?.status, 421, "{page}");
    }
    Ok(())
}

#[tokio::test]
async fn workspaces_are_made_changed_and_deleted_by_their_name() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let list = format!("{}/workspaces", base(&world).await?);
    let new = format!("{list}/new");
    let bad = browser.submit(&new, &new, &[("name", "")]).await?;
    assert!(bad.status == 422 && bad.text.contains("/name"), "{}", bad.text);
    let hidden = hidden_fields(&browser.page(&new).await?, &new)?;
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("name", "acme"));
    for _ in 0..2 {
        let made = browser.send(Method::POST, &new, &fields, &[]).await?;
        assert_eq!((made.status, made.location()), (303, list.as_str()), "{}", made.text);
    }
    let page = browser.page(&list).await?;
    let (_, all) = world.api.get("/api/workspaces").await?;
    let items = all["items"].as_array().context("workspaces")?;
    assert_eq!(items.len(), 2, "a form that is sent twice makes one workspace: {all}");
    let acme = items.iter().find(|workspace| workspace["name"] == "acme").context("the workspace")?;
    let one = format!("{list}/{}", text(&acme["id"]));
    assert!(page.contains(&one), "{page}");
    let broken = browser.submit(&one, &one, &[("name", "acme"), ("sandbox", "{")]).await?;
    assert_eq!(broken.status, 422);
    let range = browser.submit(&one, &one, &[("name", "acme"), ("sandbox", "{\"idle_s\": 1}")]).await?;
    assert!(range.status == 422 && range.text.contains("/sandbox"), "{}", range.text);
    let saved = browser.submit(&one, &one, &[("name", "acme"), ("sandbox", "{\"idle_s\": 600}")]).await?;
    assert_eq!((saved.status, saved.location()), (303, one.as_str()), "{}", saved.text);
    assert!(browser.page(&one).await?.contains("600"));
    // The pages of the other workspace are in reach of a root key.
    let inside = format!("/console/w/{}/workspaces", text(&acme["id"]));
    browser.page(&inside).await?;
    let delete = format!("{one}/delete");
    let kept = browser.submit(&delete, &delete, &[("name", "other")]).await?;
    assert_eq!((kept.status, kept.location()), (303, delete.as_str()));
    let own = format!("{inside}/{}/delete", text(&acme["id"]));
    let gone = browser.submit(&own, &own, &[("name", "acme")]).await?;
    assert_eq!((gone.status, gone.location()), (303, "/console"), "its own pages do not exist any more");
    assert_eq!(browser.get(&one).await?.status, 404);
    let default = items.iter().find(|workspace| workspace["name"] == "default").context("the workspace")?;
    let delete = format!("{list}/{}/delete", text(&default["id"]));
    let refused = browser.submit(&delete, &delete, &[("name", "default")]).await?;
    assert_eq!((refused.status, refused.location()), (303, delete.as_str()));
    assert!(browser.page(&delete).await?.contains("cannot be deleted"));
    Ok(())
}

#[tokio::test]
async fn a_signing_key_is_trusted_and_removed() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let list = format!("{}/trust", base(&world).await?);
    let new = format!("{list}/new");
    let bad = browser.submit(&new, &new, &[("public_key", HOSTILE), ("name_glob", "acme-*")]).await?;
    assert!(bad.status == 422 && bad.text.contains("/public_key"), "{}", bad.text);
    assert!(!bad.text.contains("<img src=x") && bad.text.contains("acme-*"), "what was typed is kept: {}", bad.text);
    let good = [("public_key", PUBLIC_KEY), ("name_glob", "acme-*"), ("type_glob", "")];
    let added = browser.submit(&new, &new, &good).await?;
    assert_eq!((added.status, added.location()), (303, list.as_str()), "{}", added.text);
    let (_, keys) = world.api.get("/api/trust").await?;
    assert_eq!(keys["items"][0]["type_glob"], "acme-*", "{keys}");
    let delete = format!("{list}/{}/delete", text(&keys["items"][0]["id"]));
    let page = browser.page(&list).await?;
    assert!(page.contains(&delete) && page.contains("acme-*"), "{page}");
    let removed = browser.submit(&delete, &delete, &[]).await?;
    assert_eq!((removed.status, removed.location()), (303, list.as_str()), "{}", removed.text);
    assert_eq!(world.api.get("/api/trust").await?.1["items"], json!([]));
    assert_eq!(browser.get(&delete).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn the_health_page_says_what_the_server_says() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = browser.page(&format!("{}/health", base(&world).await?)).await?;
    let (_, description) = world.api.get("/api/openapi.json").await?;
    let version = text(&description["info"]["version"]);
    let (_, plugins) = world.api.get("/api/plugins").await?;
    let plugins = plugins["items"].as_array().context("plugins")?.len();
    let loaded = format!("{plugins} of {plugins} plugins");
    for part in ["status success", version, &loaded, "monstrum doctor", "Open connections"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    Ok(())
}

#[tokio::test]
async fn the_pages_of_the_instance_are_for_root_keys() -> Result<()> {
    let world = World::with(&[]).await?;
    let base = base(&world).await?;
    let root = Browser::log_in(&world, world.api.key()).await?.page(&format!("{base}/overview")).await?;
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let shown = admin.page(&format!("{base}/overview")).await?;
    for page in ["workspaces", "trust", "health"] {
        let link = format!("{base}/{page}\"");
        assert!(root.contains(&link) && !shown.contains(&link), "{page}");
        assert_eq!(admin.get(&format!("{base}/{page}")).await?.status, 403, "{page}");
    }
    for page in ["workspaces/new", "trust/new", "activity/verify"] {
        assert_eq!(admin.get(&format!("{base}/{page}")).await?.status, 403, "{page}");
    }
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let link = format!("{base}/oauth-apps\"");
    assert!(shown.contains(&link) && !operator.page(&format!("{base}/overview")).await?.contains(&link));
    for page in ["oauth-apps/new?type=github", "oauth-apps/019a0000-0000-7000-8000-000000000001"] {
        assert_eq!(operator.get(&format!("{base}/{page}")).await?.status, 403, "{page}");
    }
    Ok(())
}

#[tokio::test]
async fn an_oauth_app_is_confirmed_changed_and_deleted() -> Result<()> {
    const SECRET: &str = "canary-of-the-client-secret";
    let server = Server::prepare(&["github"])?.argument("--public-url").argument("https://monstrum.example");
    let world = World::on(server).await?;
    let browser = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let list = format!("{}/oauth-apps", base(&world).await?);
    let callback = "https://monstrum.example/api/oauth/callback";
    assert!(browser.page(&list).await?.contains(callback));
    let types = browser.page(&format!("{list}/new")).await?;
    let (new, action) = (format!("{list}/new?type=github"), format!("{list}/new?type=github"));
    assert!(types.contains(&new), "{types}");
    let form = browser.page(&new).await?;
    for proposed in [callback, "https://github.com/login/oauth/authorize", "read:org"] {
        assert!(form.contains(proposed), "{proposed}: {form}");
    }
    let bad = browser.submit(&new, &action, &[("client_id", ""), ("client_secret", SECRET)]).await?;
    assert!(bad.status == 422 && bad.text.contains("/client_id"), "{}", bad.text);
    assert!(!bad.text.contains(SECRET), "a secret is not shown again");
    let token_url = "https://github.com/login/oauth/access_token";
    let fields = [
        ("client_id", HOSTILE),
        ("client_secret", SECRET),
        ("token_url", token_url),
        ("authorization_url", "https://github.example/authorize"),
        ("scopes", "repo\r\n"),
    ];
    let made = browser.submit(&new, &action, &fields).await?;
    assert_eq!((made.status, made.location()), (303, list.as_str()), "{}", made.text);
    let again = browser.submit(&new, &action, &fields).await?;
    assert_eq!(again.status, 409, "one app a type: {}", again.text);
    let (_, providers) = world.api.get("/api/oauth/providers").await?;
    let provider = &providers["items"][0];
    assert_eq!(provider["authorization_url"], "https://github.example/authorize", "the admin's value: {provider}");
    assert_eq!((&provider["scopes"], &provider["has_client_secret"]), (&json!(["repo"]), &json!(true)));
    let one = format!("{list}/{}", text(&provider["id"]));
    for path in [&list, &one] {
        let page = browser.page(path).await?;
        assert!(!page.contains(SECRET) && !page.contains("<img src=x"), "{page}");
    }
    let kept = [fields[0], fields[2], ("secret_mode", "keep"), ("client_secret", "")];
    let saved = browser.submit(&one, &one, &kept).await?;
    assert_eq!((saved.status, saved.location()), (303, one.as_str()), "{}", saved.text);
    let provider = async || anyhow::Ok(world.api.get("/api/oauth/providers").await?.1["items"][0].clone());
    assert_eq!(provider().await?["authorization_url"], Value::Null, "an empty field clears the value");
    assert_eq!(provider().await?["has_client_secret"], json!(true));
    let elsewhere = [("client_id", "app-2"), ("token_url", token_url), ("secret_mode", "keep")];
    let told = browser.submit(&one, &one, &elsewhere).await?;
    assert!(told.status == 422 && told.text.contains("/client_secret"), "{}", told.text);
    let replaced = [elsewhere[0], elsewhere[1], ("secret_mode", "replace"), ("client_secret", "another-long-secret")];
    assert_eq!(browser.submit(&one, &one, &replaced).await?.status, 303);
    assert_eq!(provider().await?["client_id"], "app-2");
    let removed = [elsewhere[0], elsewhere[1], ("secret_mode", "remove")];
    assert_eq!(browser.submit(&one, &one, &removed).await?.status, 303);
    assert_eq!(provider().await?["has_client_secret"], json!(false));
    let delete = format!("{one}/delete");
    let kept = browser.submit(&delete, &delete, &[("name", "other")]).await?;
    assert_eq!((kept.status, kept.location()), (303, delete.as_str()));
    let gone = browser.submit(&delete, &delete, &[("name", "github")]).await?;
    assert_eq!((gone.status, gone.location()), (303, list.as_str()));
    assert_eq!(world.api.get("/api/oauth/providers").await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn the_check_of_the_audit_names_a_changed_row() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    world.call("test_echo_run", &json!({})).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let verify = format!("{}/activity/verify", base(&world).await?);
    assert!(!browser.page(&verify).await?.contains("Rows checked"), "a check runs when a person asks for it");
    let checked = browser.submit(&verify, &verify, &[("all", "1")]).await?;
    assert!(checked.status == 200 && checked.text.contains("no problems found"), "{}", checked.text);
    let folder = world.server.data_dir().to_owned();
    let forge = "update audit_rows set body = replace(body, 'test_echo_run', 'test_echo_ran')";
    sqlite(&folder, &["drop trigger audit_rows_no_update", forge]).await?;
    let checked = browser.submit(&verify, &verify, &[("all", "1")]).await?;
    assert_eq!(checked.status, 200);
    let (_, report) = world.api.get("/api/audit/verify").await?;
    let what = text(&report["problems"][0]["what"]).split('`').next().unwrap_or_default();
    assert!(checked.text.contains("problems found") && checked.text.contains(what), "{report} {}", checked.text);
    Ok(())
}
