//! What fails, and what must not be lost then: two people at one object, forms that are sent twice, old and stolen
//! secrets, restarts, and readers that stall.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::instance::Feed;
use super::{Browser, base, hidden_fields};
use crate::http::made;
use crate::tamper::sqlite;
use crate::world::{World, text};

/// Values that are valid in every field of these tests.
const ONE: &str = "https://one.example";
const TWO: &str = "https://two.example";

/// Returns the fields of a form: the hidden ones, and what a person typed.
fn filled<'f>(hidden: &'f [(String, String)], typed: &[(&'f str, &'f str)]) -> Vec<(&'f str, &'f str)> {
    let hidden = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    hidden.chain(typed.iter().copied()).collect()
}

/// A form that changes an object.
struct Edited<'a> {
    page: String,
    /// The path of the object in the API.
    api: String,
    /// The field that two people change, and its place in the object.
    field: &'a str,
    pointer: &'a str,
    others: Vec<(&'a str, &'a str)>,
    /// A field with a value that cannot be read.
    unreadable: (&'a str, &'a str),
}

impl<'a> Edited<'a> {
    fn with(&self, value: &'a str) -> Vec<(&'a str, &'a str)> {
        [&self.others[..], &[(self.field, value)]].concat()
    }

    /// Two people open the form. The second saves first.
    async fn contended(&self, world: &World, one: &Browser, two: &Browser) -> Result<()> {
        let Edited { page, api, pointer, unreadable, .. } = self;
        let saved = async || {
            let (_, object) = world.api.get(api).await?;
            anyhow::Ok(object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned())
        };
        let send = async |hidden: &[(String, String)], typed: &[(&str, &str)]| {
            one.send(Method::POST, page, &filled(hidden, typed), &[]).await
        };
        let seen = hidden_fields(&one.page(page).await?, page)?;
        let done = two.submit(page, page, &self.with(TWO)).await?;
        ensure!(done.status == 303, "{} {}", done.status, done.text);

        // Before the version is compared, the form is shown again, because a value cannot be read. That does not make
        // the change of the other person known.
        let typed = [&self.with(ONE)[..], &[*unreadable]].concat();
        let unread = send(&seen, &typed).await?;
        ensure!(unread.status == 422, "{} {}", unread.status, unread.text);
        for (_, kept) in [(self.field, ONE), *unreadable] {
            ensure!(unread.text.contains(kept), "{kept} is lost: {}", unread.text);
        }
        let refused = send(&hidden_fields(&unread.text, page)?, &self.with(ONE)).await?;
        ensure!(refused.status == 412, "{} {}", refused.status, refused.text);
        let told = "What you typed is kept; send the form again to overwrite their change.";
        ensure!(refused.text.contains(told) && refused.text.contains(ONE), "{}", refused.text);
        ensure!(saved().await? == TWO, "the change of the other person is in force");
        let overwritten = send(&hidden_fields(&refused.text, page)?, &self.with(ONE)).await?;
        ensure!(overwritten.status == 303 && saved().await? == ONE, "{} {}", overwritten.status, overwritten.text);
        Ok(())
    }
}

#[tokio::test]
async fn of_two_admins_who_change_one_object_the_second_is_told_and_nothing_is_lost() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let role = world.api.role("reader", &["echo.read"]).await?;
    let binding = world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
    let base = base(&world).await?;
    let bot = format!("{base}/bots/{}", world.bot);
    let forms = [
        Edited {
            page: format!("{bot}/bindings/{binding}"),
            api: format!("/api/bots/{}/resources/{binding}", world.bot),
            field: "scope.entries.repos",
            pointer: "/scope_constraints/repos/0",
            others: vec![("role_id", role.as_str()), ("enabled", "on"), ("scope.mode.repos", "only"), ("save", "1")],
            unreadable: ("calls_per_minute", "many calls"),
        },
        Edited {
            page: format!("{base}/roles/{role}"),
            api: format!("/api/roles/{role}"),
            field: "operations",
            pointer: "/allowed_operations/0",
            others: vec![("name", "reader"), ("operations.mode", "only"), ("tools.mode", "all")],
            unreadable: ("scopes", "{no JSON"),
        },
        Edited {
            page: format!("{base}/resources/{resource}/edit"),
            api: format!("/api/resources/{resource}"),
            field: "p.api_base",
            pointer: "/config/api_base",
            others: vec![("name", "echo")],
            unreadable: ("p.retries", "many retries"),
        },
        Edited {
            page: format!("{bot}/settings"),
            api: format!("/api/bots/{}", world.bot),
            field: "name",
            pointer: "/name",
            others: vec![("description", "kept description")],
            unreadable: ("monthly_token_budget", "many tokens"),
        },
    ];
    let one = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let two = Browser::log_in(&world, world.api.key()).await?;
    for form in &forms {
        form.contended(&world, &one, &two).await.with_context(|| form.page.clone())?;
    }
    Ok(())
}

#[tokio::test]
async fn a_preview_changes_only_the_version_that_was_seen() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = format!("{}/bots/{}/bindings/{}", base(&world).await?, world.bot, bound.binding);
    let seen = hidden_fields(&browser.page(&page).await?, &page)?;
    world.rebind(&bound, &json!({ "calls_per_minute": 7 })).await?;
    let draft = [("tools.mode", "only"), ("tools.others", "test_echo_run"), ("enabled", "on")];
    let typed = [&draft[..], &[("preview", "1")]].concat();
    let shown = browser.send(Method::POST, &page, &filled(&seen, &typed), &[]).await?;
    assert!(shown.status == 200 && shown.text.contains("id=\"preview\""), "{}", shown.text);
    let hidden = hidden_fields(&shown.text, &page)?;
    let typed = [&draft[..], &[("save", "1")]].concat();
    let refused = browser.send(Method::POST, &page, &filled(&hidden, &typed), &[]).await?;
    assert_eq!(refused.status, 412, "{}", refused.text);
    let (_, binding) = world.api.get(&format!("/api/bots/{}/resources/{}", world.bot, bound.binding)).await?;
    assert_eq!((&binding["calls_per_minute"], &binding["permissions"]), (&json!(7), &Value::Null));
    Ok(())
}

/// A double click sends a form twice at once. The second request answers with what the first has made.
#[tokio::test]
async fn a_form_that_is_sent_twice_at_once_makes_one_object() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let bindings = format!("/api/bots/{}/resources", world.bot);
    let bind = format!("{base}/bots/{}/bind?resource={resource}", world.bot);
    let count = async |list: &str| {
        let (_, objects) = world.api.get(list).await?;
        anyhow::Ok(objects["items"].as_array().map_or(0, Vec::len))
    };
    for (page, list, typed) in [
        (format!("{base}/bots/new"), "/api/bots", vec![("name", "twice")]),
        (format!("{base}/roles/new"), "/api/roles", vec![("name", "twice"), ("operations.mode", "only")]),
        (format!("{base}/resources/new?type=test-echo"), "/api/resources", vec![("name", "twice")]),
        (format!("{base}/workspaces/new"), "/api/workspaces", vec![("name", "twice")]),
        (
            bind,
            bindings.as_str(),
            vec![("tools.mode", "only"), ("tools.others", "*"), ("enabled", "on"), ("save", "1")],
        ),
    ] {
        let before = count(list).await?;
        let hidden = hidden_fields(&browser.page(&page).await?, &page)?;
        let fields = filled(&hidden, &typed);
        let send = || browser.send(Method::POST, &page, &fields, &[]);
        let (one, other) = tokio::try_join!(send(), send())?;
        assert_eq!((one.status, other.status), (303, 303), "{page}: {} {}", one.text, other.text);
        assert_eq!(one.location(), other.location(), "{page}");
        assert_eq!(count(list).await?, before + 1, "{page}");
    }
    // The text of a key is shown once, so the second request only says that the key exists.
    let page = format!("{base}/keys/new");
    let before = count("/api/keys").await?;
    let hidden = hidden_fields(&browser.page(&page).await?, &page)?;
    let fields = filled(&hidden, &[("name", "twice"), ("kind", "operator")]);
    let send = || browser.send(Method::POST, &page, &fields, &[]);
    let (one, other) = tokio::try_join!(send(), send())?;
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{} {}", one.text, other.text);
    assert_eq!(count("/api/keys").await?, before + 1);
    Ok(())
}

#[tokio::test]
async fn a_link_is_refused_after_its_time() -> Result<()> {
    let world = World::with(&[]).await?;
    let (status, ticket) = world.api.post("/api/console/tickets", &json!({ "ttl_s": 1 })).await?;
    ensure!(status == 201, "{ticket}");
    let url = text(&ticket["url"]);
    let path = &url[url.find("/console/enter/").context("a path of the console")?..];
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let browser = Browser::open(&world)?;
    for method in [Method::GET, Method::POST] {
        let answer = browser.send(method, path, &[], &[]).await?;
        assert_eq!(answer.status, 410);
        assert!(answer.headers.get("set-cookie").is_none());
    }
    Ok(())
}

#[tokio::test]
async fn stolen_and_old_secrets_are_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let (_, token) = browser.cookie.split_once('=').context("a cookie")?;
    let bearer = format!("Bearer {token}");
    for method in [Method::GET, Method::POST, Method::DELETE] {
        for headers in [vec![], vec![("authorization", bearer.as_str())], vec![("origin", browser.url.as_str())]] {
            let answer = browser.send(method.clone(), "/api/bots", &[("name", "made")], &headers).await?;
            assert!(matches!(answer.status, 401 | 405), "{method} {headers:?}: {} {}", answer.status, answer.text);
        }
    }
    let new = format!("{}/bots/new", base(&world).await?);
    let old = hidden_fields(&browser.page(&new).await?, &new)?;
    let fields = filled(&old, &[("name", "made")]);
    browser.submit(&new, "/console/logout", &[]).await?;
    let over = browser.send(Method::POST, &new, &fields, &[]).await?;
    assert!(over.status == 303 && over.location().starts_with("/console/login"), "{}", over.location());
    let again = Browser::log_in(&world, world.api.key()).await?;
    let refused = again.send(Method::POST, &new, &fields, &[]).await?;
    assert!(refused.status == 403 && refused.text.contains("Nothing was changed"), "{}", refused.text);
    assert_eq!(world.api.get("/api/bots").await?.1["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

/// A row that was copied from another, under a token that the attacker knows, opens nothing.
#[tokio::test]
async fn rows_of_sessions_and_links_that_were_inserted_with_sql_are_ignored() -> Result<()> {
    let world = World::with(&[]).await?;
    let mut browser = Browser::log_in(&world, world.api.key()).await?;
    world.api.post("/api/console/tickets", &json!({})).await?;
    let token = "A".repeat(43);
    let id = hex::encode(Sha256::digest(token.as_bytes()));
    let columns = "key_id, key_hash, last_used_at, ends_at, messages, mac";
    let session =
        format!("insert into console_sessions (id, {columns}) select '{id}', {columns} from console_sessions");
    let columns = "key_id, key_hash, expires_at, mac";
    let ticket = format!("insert into console_tickets (id, {columns}) select '{id}', {columns} from console_tickets");
    let count = "select (select count(*) from console_sessions), (select count(*) from console_tickets)";
    let rows = sqlite(&world.server.data_dir(), &[&session, &ticket, count]).await?;
    assert_eq!(rows, json!([[2, 2]]));
    let bots = format!("{}/bots", base(&world).await?);
    browser.page(&bots).await?;
    browser.cookie = format!("monstrum={token}");
    assert_eq!(browser.get(&bots).await?.status, 303);
    let link = format!("/console/enter/{token}");
    for method in [Method::GET, Method::POST] {
        assert_eq!(Browser::open(&world)?.send(method, &link, &[], &[]).await?.status, 410);
    }
    Ok(())
}

#[tokio::test]
async fn a_restarted_server_goes_on_with_the_pages_that_are_open() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let mut browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (new, events) = (format!("{base}/bots/new"), format!("{base}/activity/live/events"));
    let hidden = hidden_fields(&browser.page(&new).await?, &new)?;
    let mut feed = Feed::open(&browser, &events, &[]).await?;
    let first = world.call("test_echo_run", &json!({})).await?;
    let cursor = feed.until_call(&first["request_id"]).await?;
    for is_killed in [false, true] {
        if is_killed {
            world.server.kill().await?;
        }
        world.server.restart().await?;
        world.api = world.server.api()?;
        // The test's server has another port now; a server with a fixed port has the same.
        world.server.url().context("the server is not running")?.clone_into(&mut browser.url);
        let name = if is_killed { "after a crash" } else { "after a restart" };
        let done = browser.send(Method::POST, &new, &filled(&hidden, &[("name", name)]), &[]).await?;
        // The id of the form was used up by the first bot.
        assert_eq!(done.status, if is_killed { 422 } else { 303 }, "{}", done.text);
        assert!(browser.page(&format!("{base}/bots")).await?.contains("after a restart"));
    }
    let second = world.call("test_echo_run", &json!({})).await?;
    let mut feed = Feed::open(&browser, &events, &[("last-event-id", cursor.as_str())]).await?;
    let (_, call) = feed.until("call").await?;
    assert_eq!(call["request_id"], second["request_id"], "the feed continues where it was");
    Ok(())
}

/// An operator may delete a resource that has no credential.
#[tokio::test]
async fn a_right_that_is_lost_while_a_page_is_open_is_refused_in_words() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let delete = format!("{}/resources/{resource}/delete", base(&world).await?);
    let hidden = hidden_fields(&operator.page(&delete).await?, &delete)?;
    world.api.token(&resource, "a-token-of-the-resource").await?;
    let refused = operator.send(Method::POST, &delete, &filled(&hidden, &[("name", "echo")]), &[]).await?;
    assert_eq!(refused.status, 403);
    for part in ["Your key may not do this. Nothing was changed.", "an admin key is required", "Request id"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert_eq!(world.api.get(&format!("/api/resources/{resource}")).await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn objects_of_another_workspace_are_on_no_page() -> Result<()> {
    const NAME: &str = "of-the-default-workspace";
    let world = World::with(&["test-echo", "github"]).await?;
    let api = &world.api;
    let resource = api.resource("test-echo", NAME, "https://echo.example").await?;
    let role = api.role(NAME, &["*"]).await?;
    let bot = api.bot(NAME).await?;
    let gates = json!([{ "action": "ask", "operations": ["echo.write"] }]);
    let binding = json!({ "resource_id": resource, "role_id": role, "gates": gates });
    let binding = made(api, &format!("/api/bots/{bot}/resources"), &binding).await?;
    let call = api.call(&bot, "test_echo_run", &json!({ "any": NAME })).await?;
    let waiting = api.call(&bot, "test_echo_write", &json!({ "any": NAME })).await?;
    let key = made(api, "/api/keys", &json!({ "name": NAME, "kind": "operator" })).await?;
    let client = json!({ "resource_type": "github", "client_id": NAME, "client_secret": "a-long-client-secret" });
    let provider = made(api, "/api/oauth/providers", &client).await?;
    let schedule = json!({ "name": NAME, "bot_id": bot, "instruction": NAME, "every_s": 3600 });
    let schedule = made(api, "/api/schedules", &schedule).await?;
    let subscription = json!({ "bot_id": bot, "pattern": NAME, "instruction": NAME });
    let subscription = made(api, "/api/subscriptions", &subscription).await?;
    let webhook = json!({ "name": NAME, "event": NAME, "verify": { "kind": "token" } });
    let webhook = made(api, "/api/webhooks", &webhook).await?;
    let workflow = made(api, "/api/workflows", &crate::workflows::new_workflow(NAME, &bot)).await?;
    let event = api.post("/api/events", &json!({ "name": NAME })).await?.1;
    let foreign = crate::http::workspace(api, "foreign").await?;
    let (_, me) = foreign.get("/api/me").await?;
    let base = format!("/console/w/{}", text(&me["workspace_id"]));
    let browser = Browser::log_in(&world, foreign.key()).await?;
    let mut pages = vec![
        format!("activity/{}", text(&call["request_id"])),
        format!("approvals/{}", text(&waiting["approval"]["id"])),
        format!("roles/{role}"),
        format!("roles/{role}/delete"),
        format!("keys/{key}"),
        format!("oauth-apps/{provider}"),
        format!("oauth-apps/{provider}/delete"),
        format!("bots/{bot}/bindings/{binding}"),
        format!("bots/{bot}/bindings/{binding}/delete"),
        format!("bots/{bot}/change?tool=test_echo_run&params=%7B%7D"),
    ];
    let of_bot = [
        "",
        "/did",
        "/denied",
        "/budget",
        "/settings",
        "/delete",
        "/bind",
        "/conversations",
        "/tasks",
        "/tools/test_echo_run",
    ];
    pages.extend(of_bot.map(|tab| format!("bots/{bot}{tab}")));
    pages.extend(["", "/edit", "/delete"].map(|page| format!("schedules/{schedule}{page}")));
    pages.extend(["", "/edit", "/delete"].map(|page| format!("subscriptions/{subscription}{page}")));
    pages.extend(["", "/edit", "/delete"].map(|page| format!("webhooks/{webhook}{page}")));
    let of_workflow = ["", "/edit", "/delete", "/versions/1", "/triggers/new", "/run"];
    pages.extend(of_workflow.map(|page| format!("workflows/{workflow}{page}")));
    pages.push(format!("events/{}", text(&event["event_id"])));
    pages.extend(["", "/edit", "/delete", "/credential"].map(|tab| format!("resources/{resource}{tab}")));
    for page in pages {
        let answer = browser.get(&format!("{base}/{page}")).await?;
        assert_eq!(answer.status, 404, "{page}: {}", answer.text);
        assert!(!answer.text.contains(NAME), "{page}: {}", answer.text);
    }
    let lists = ["overview", "bots", "resources", "roles", "keys", "approvals", "activity", "activity/live"];
    for list in lists.into_iter().chain([
        "activity/changes",
        "conversations",
        "tasks",
        "sessions",
        "schedules",
        "events",
        "deliveries",
        "subscriptions",
        "webhooks",
        "wakes?show=all",
        "workflows",
        "runs",
        "budgets",
        "usage",
        "oauth-apps",
        "search?q=default",
    ]) {
        let page = browser.page(&format!("{base}/{list}")).await?;
        assert!(!page.contains(NAME), "{list}: {page}");
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_misses_lock_no_person_out() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::open(&world)?;
    let miss = |_: usize| async {
        let answer = browser.send(Method::POST, "/console/login", &[("key", "mk_x")], &[]).await?;
        // At most 20 log-ins are checked at once, and others wait for their turn.
        ensure!(matches!(answer.status, 401 | 429), "{} {}", answer.status, answer.text);
        anyhow::Ok(answer.status)
    };
    let misses = stream::iter(0..1_000).map(miss).buffer_unordered(20).try_collect::<Vec<u16>>();
    let person = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            Browser::log_in(&world, world.api.key()).await?;
        }
        anyhow::Ok(())
    };
    let (misses, ()) = tokio::try_join!(misses, person)?;
    assert_eq!(misses.len(), 1_000);
    Browser::log_in(&world, world.api.key()).await?;
    Ok(())
}

/// A reader that does not read loses calls, and is told how many. It delays neither calls nor pages nor other readers.
#[tokio::test]
async fn a_live_feed_that_is_not_read_delays_no_other() -> Result<()> {
    const CALLS: u64 = 900;
    const READ_MAX: Duration = Duration::from_secs(60);
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let events = format!("{base}/activity/live/events");
    let authority = browser.url.trim_start_matches("http://");
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    let mut stalled = socket.connect(authority.parse()?).await?;
    // With this version of HTTP, the answer is not chunked.
    let request = format!("GET {events} HTTP/1.0\r\nHost: {authority}\r\nCookie: {}\r\n\r\n", browser.cookie);
    stalled.write_all(request.as_bytes()).await?;
    let mut start = [0; 12];
    stalled.read_exact(&mut start).await?;
    ensure!(start == *b"HTTP/1.0 200", "{}", String::from_utf8_lossy(&start));

    let mut feed = Feed::open(&browser, &events, &[]).await?;
    let reads = async {
        for _ in 0..CALLS {
            feed.until("call").await?;
        }
        anyhow::Ok(())
    };
    let params = json!({ "any": "x".repeat(12_000) });
    let call = |_: u64| async {
        let answer = world.call("test_echo_run", &params).await?;
        ensure!(answer["status"] == "success", "{answer}");
        anyhow::Ok(())
    };
    let calls = stream::iter(0..CALLS).map(call).buffer_unordered(4).try_collect::<Vec<()>>();
    tokio::try_join!(calls, reads)?;
    browser.page(&format!("{base}/activity")).await?;

    let (mut calls, mut lost) = (0, 0);
    let (mut text, mut chunk) = (String::new(), vec![0; 1 << 20]);
    let all = async {
        while calls + lost < CALLS {
            let read = stalled.read(&mut chunk).await?;
            ensure!(read > 0, "the feed has ended after {calls} calls and {lost} lost ones");
            text.push_str(std::str::from_utf8(&chunk[..read])?);
            while let Some((event, rest)) = text.split_once("\n\n") {
                calls += u64::from(event.contains("event: call\n"));
                if let Some(count) = event.split("event: lost\ndata: {\"count\":").nth(1) {
                    lost += count.trim_end_matches('}').parse::<u64>()?;
                }
                text = rest.to_owned();
            }
        }
        anyhow::Ok(())
    };
    timeout(READ_MAX, all).await.context("not all calls are told")??;
    assert_eq!(calls + lost, CALLS);
    assert!(lost > 0, "the reader has stalled");
    Ok(())
}
