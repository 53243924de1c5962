//! Credentials of users: who obtains them, whom they serve, and how they end.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Api, FakeMcp, Generation, McpReply, Server, TokenIssuer};

use super::{Behind, discover, resource, tool};
use crate::http::Answers;
use crate::mcp::browser::{Browser, Page};
use crate::tamper::sqlite;
use crate::world::{World, text};

const TOKEN: &str = "token-of-a-user-5f";

/// A server of which each user has a credential, its OAuth provider, and an app with the key of the bot.
struct Users {
    behind: Behind,
    provider: TokenIssuer,
    app: Api,
}

impl Users {
    async fn start() -> Result<Users> {
        Users::on(Generation::Stateless).await
    }

    async fn on(generation: Generation) -> Result<Users> {
        let server = Server::prepare(&[])?.argument("--oauth-return-origins").argument("https://app.example");
        let world = World::on(server.argument("--sandbox").argument("off")).await?;
        let mcp = FakeMcp::start(generation, &[tool("note", "Adds")]).await?;
        let id = resource(&world, "notes", &mcp.url(), &json!({"credential": "user"})).await?;
        let role = world.api.role("everything", &["*"]).await?;
        let binding = world.api.bind(&world.bot, &id, &role, &json!({})).await?;
        let binding = support::Bound { resource: id.clone(), binding };
        let behind = Behind { world, mcp, resource: id, binding };
        behind.discovered().await?;
        behind.approve_all("write").await?;
        let provider = TokenIssuer::start().await?;
        let (world, url) = (&behind.world, provider.url());
        let body = json!({
            "resource_type": "mcp", "client_id": "monstrum", "authorization_url": format!("{url}/authorize"),
            "token_url": format!("{url}/token"), "scopes": ["notes"],
        });
        let (status, body) = world.api.post("/api/oauth/providers", &body).await?;
        ensure!(status == 201, "{status} {body}");
        let app = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
        Ok(Users { behind, provider, app })
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/resources/{}/{rest}", self.behind.resource)
    }

    fn browser(&self) -> Result<Browser> {
        let world = &self.behind.world;
        Ok(Browser::new(&world.api, world.server.url().context("the server is not running")?))
    }

    /// Starts an authorization as the app, and returns its link.
    async fn link(&self, more: &Value) -> Result<String> {
        let (status, body) = self.app.post(&self.path("oauth/start"), more).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(text(&body["authorization_url"]).to_owned())
    }

    /// Follows a link until the provider has answered. Returns the callback.
    async fn answered(&self, browser: &mut Browser, link: &str, person: &str) -> Result<String> {
        let page = browser.open(link).await?;
        ensure!(page.status == 200, "{} {}", page.status, page.text);
        self.provider.sign_in(&browser.press(link).await?.next()?, person)
    }

    /// Authorizes a user, who is `person` at the provider.
    async fn authorize(&self, app_id: &str, user_id: &str, person: &str) -> Result<Page> {
        let link = self.link(&json!({"user": user(app_id, user_id)})).await?;
        let mut browser = self.browser()?;
        let callback = self.answered(&mut browser, &link, person).await?;
        browser.open(&callback).await
    }

    /// Calls the tool for a user as the app.
    async fn call(&self, app_id: &str, user_id: &str) -> Result<Value> {
        let mut chat = user(app_id, user_id);
        chat["chat_id"] = json!("c");
        self.call_with(&json!({"params": {"text": "a"}, "chat": chat})).await
    }

    async fn call_with(&self, body: &Value) -> Result<Value> {
        let path = format!("/api/bots/{}/tools/notes__note/call", self.behind.world.bot);
        let (status, answer) = self.app.post(&path, body).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    }

    /// Returns the token of each call that the server has received.
    fn tokens(&self) -> Vec<String> {
        let requests = self.behind.mcp.requests();
        let calls = requests.iter().filter(|request| request.json()["method"] == "tools/call");
        calls.map(|call| call.header("authorization").unwrap_or("none").to_owned()).collect()
    }

    /// Saves the token of a user as the app.
    async fn save(&self, user: &Value, token: &str) -> Result<(u16, Value)> {
        let body = json!({"auth_method": "token", "fields": {"access_token": token}, "user": user});
        self.app.put(&self.path("credential"), &body).await
    }

    async fn credentials(&self) -> Result<Vec<Value>> {
        let (status, body) = self.behind.world.api.get(&self.path("credentials")).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(body["items"].as_array().context("the list has no items")?.clone())
    }
}

fn user(app_id: &str, user_id: &str) -> Value {
    json!({"app_id": app_id, "user_id": user_id})
}

/// Creates another key of a bot.
async fn key(api: &Api, name: &str, bot: &str) -> Result<Api> {
    let (status, body) = api.post("/api/keys", &json!({"name": name, "kind": "bot", "bot_id": bot})).await?;
    ensure!(status == 201, "{status} {body}");
    Ok(api.with_key(text(&body["key"])))
}

/// Returns the status, the code and the missing authorization of an answer.
fn ended(answer: &Value) -> Value {
    json!([answer["status"], answer["code"], answer["authorization"]])
}

#[tokio::test]
async fn a_credential_serves_its_own_user_and_no_user_of_another_app() -> Result<()> {
    let users = Users::start().await?;
    let needed =
        |user: Value| json!(["error", "unauthenticated", {"resource_id": users.behind.resource, "user": user}]);
    assert_eq!(ended(&users.call("a", "7").await?), needed(user("a", "7")));
    assert_eq!(users.authorize("a", "7", "ann").await?.status, 200);
    assert_eq!(users.call("a", "7").await?["status"], "success");
    for (app_id, user_id) in [("b", "7"), ("a", "8"), ("a1", "7"), ("A", "7")] {
        assert_eq!(ended(&users.call(app_id, user_id).await?), needed(user(app_id, user_id)));
    }
    assert_eq!(users.authorize("b", "7", "bob").await?.status, 200);
    for (app_id, person) in [("a", "ann"), ("b", "bob"), ("a", "ann")] {
        assert_eq!(users.call(app_id, "7").await?["status"], "success");
        let last = users.tokens().pop().unwrap_or_default();
        assert!(last.starts_with(&format!("Bearer access-of-{person}-")), "{app_id}: {last}");
    }
    assert_eq!(users.tokens().len(), 4, "the calls of other users were not sent");
    // A discovery uses no credential of a user.
    let requests = users.behind.mcp.requests();
    let lists: Vec<_> = requests.iter().filter(|request| request.json()["method"] == "tools/list").collect();
    assert!(!lists.is_empty() && lists.iter().all(|list| list.header("authorization").is_none()), "{lists:?}");
    Ok(())
}

#[tokio::test]
async fn a_call_without_a_user_gets_no_credential() -> Result<()> {
    let users = Users::start().await?;
    assert_eq!(users.save(&user("a", "7"), TOKEN).await?.0, 200);
    // The credential of the resource is for discoveries only.
    users.behind.world.api.token(&users.behind.resource, "shared-token-1").await?;
    users.behind.discovered().await?;
    let needed = json!(["error", "unauthenticated", {"resource_id": users.behind.resource, "user": null}]);
    assert_eq!(ended(&users.call_with(&json!({"params": {}})).await?), needed);
    for params in [json!({"user_id": "7"}), json!({"chat": user("a", "7")}), json!({"_user": user("a", "7")})] {
        let answer = users.call_with(&json!({ "params": params })).await?;
        assert_ne!(answer["status"], "success", "{answer}");
    }
    let api = &users.behind.world.api;
    let function = json!({"resource_id": users.behind.resource, "params": {"tool": "note", "arguments": {}}});
    let (status, answer) = api.post("/api/platform/mcp/call_tool", &function).await?;
    assert_eq!((status, &answer["code"]), (200, &json!("unauthenticated")), "{answer}");
    assert!(users.tokens().is_empty());
    let requests = users.behind.mcp.requests();
    assert!(requests.iter().any(|request| request.header("authorization") == Some("Bearer shared-token-1")));
    Ok(())
}

#[tokio::test]
async fn users_do_not_share_a_session() -> Result<()> {
    let users = Users::on(Generation::Sessions("2025-11-25")).await?;
    for (app_id, token) in [("a", "token-of-a-1"), ("b", "token-of-b-1")] {
        assert_eq!(users.save(&user(app_id, "7"), token).await?.0, 200);
        // A new session ends the previous one at this server.
        assert_eq!(users.call(app_id, "7").await?["status"], "success");
    }
    let requests = users.behind.mcp.requests();
    let sessions = |token: &str| -> Vec<String> {
        let own = requests.iter().filter(|request| request.header("authorization") == Some(&format!("Bearer {token}")));
        own.filter_map(|request| request.header("mcp-session-id")).map(str::to_owned).collect()
    };
    let (of_a, of_b) = (sessions("token-of-a-1"), sessions("token-of-b-1"));
    assert!(!of_a.is_empty() && !of_b.is_empty(), "{of_a:?} {of_b:?}");
    assert!(of_a.iter().all(|session| !of_b.contains(session)), "{of_a:?} {of_b:?}");
    Ok(())
}

#[tokio::test]
async fn a_row_that_is_moved_to_another_user_opens_nothing() -> Result<()> {
    let users = Users::start().await?;
    assert_eq!(users.save(&user("a", "7"), TOKEN).await?.0, 200);
    assert_eq!(users.call("a", "7").await?["status"], "success");
    let moves = [
        "update credentials set subject_id = '1:a1:8'",
        "update credentials set subject_id = '1:b1:7'",
        "update credentials set subject_kind = 'shared', subject_id = ''",
    ];
    for statement in moves {
        let bump = "update settings set generation = generation + 1";
        sqlite(&users.behind.world.server.data_dir(), &["begin immediate", statement, bump, "commit"]).await?;
        for (app_id, user_id) in [("a", "8"), ("b", "7")] {
            let path = format!("/api/bots/{}/tools/notes__note/call", users.behind.world.bot);
            let mut chat = user(app_id, user_id);
            chat["chat_id"] = json!("c");
            let (_, answer) = users.app.post(&path, &json!({"params": {}, "chat": chat})).await?;
            assert_ne!(answer["status"], "success", "{statement}: {answer}");
        }
    }
    assert_eq!(users.tokens(), [format!("Bearer {TOKEN}")]);
    Ok(())
}

#[tokio::test]
async fn only_an_admin_and_the_app_of_a_bound_bot_start_an_authorization() -> Result<()> {
    let users = Users::start().await?;
    let api = &users.behind.world.api;
    let other_bot = api.bot("other").await?;
    let of_other_bot = key(api, "of another bot", &other_bot).await?;
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let admin = api.with_key(&api.new_key("admin", None).await?);
    let shared = resource(&users.behind.world, "shared", &users.behind.mcp.url(), &json!({})).await?;
    let for_user = json!({"user": user("a", "7")});
    let start = users.path("oauth/start");
    let mut answers = Answers::default();
    for (what, caller, path, body) in [
        ("a bot that is not bound", &of_other_bot, &start, &for_user),
        ("an operator", &operator, &start, &for_user),
        ("a bot without a user", &users.app, &start, &json!({})),
        ("a resource without users", &admin, &format!("/api/resources/{shared}/oauth/start"), &for_user),
        ("an empty id", &users.app, &start, &json!({"user": user("a", "")})),
        ("a long id", &users.app, &start, &json!({"user": user(&"a".repeat(257), "7")})),
        ("half a user", &users.app, &start, &json!({"user": {"app_id": "a"}})),
        ("another member", &users.app, &start, &json!({"user": user("a", "7"), "key": 1})),
        (
            "a foreign origin",
            &users.app,
            &start,
            &json!({"user": user("a", "7"), "return_to": "https://evil.example/"}),
        ),
        ("another host", &users.app, &start, &json!({"user": user("a", "7"), "return_to": "//evil.example/"})),
        ("a script", &users.app, &start, &json!({"user": user("a", "7"), "return_to": "javascript:alert(1)"})),
        ("http", &users.app, &start, &json!({"user": user("a", "7"), "return_to": "http://app.example/"})),
    ] {
        let (status, answer) = caller.post(path, body).await?;
        answers.add(what, (status, json!([answer["detail"], answer["errors"]])));
    }
    assert_snapshot!(answers, @r#"
    a bot that is not bound: 404 ["no such resource",null]
    an operator: 403 ["an admin key is required",null]
    a bot without a user: 403 ["an admin key is required",null]
    a resource without users: 422 ["/user: the resource uses one credential for all calls; its configuration must have `credential: user`",[{"path":"/user","message":"the resource uses one credential for all calls; its configuration must have `credential: user`"}]]
    an empty id: 422 ["/user/user_id: must be 1 to 256 bytes long and must not contain control characters",[{"path":"/user/user_id","message":"must be 1 to 256 bytes long and must not contain control characters"}]]
    a long id: 422 ["/user/app_id: must be 1 to 256 bytes long and must not contain control characters",[{"path":"/user/app_id","message":"must be 1 to 256 bytes long and must not contain control characters"}]]
    half a user: 422 ["/user/user_id: required field is missing",[{"path":"/user/user_id","message":"required field is missing"}]]
    another member: 422 ["/key: unknown field `key`, expected `user` or `return_to`",[{"path":"/key","message":"unknown field `key`, expected `user` or `return_to`"}]]
    a foreign origin: 422 ["/return_to: the origin of the URL must be one of --oauth-return-origins",[{"path":"/return_to","message":"the origin of the URL must be one of --oauth-return-origins"}]]
    another host: 422 ["/return_to: expected a path that begins with one slash",[{"path":"/return_to","message":"expected a path that begins with one slash"}]]
    a script: 422 ["/return_to: the origin of the URL must be one of --oauth-return-origins",[{"path":"/return_to","message":"the origin of the URL must be one of --oauth-return-origins"}]]
    http: 422 ["/return_to: the origin of the URL must be one of --oauth-return-origins",[{"path":"/return_to","message":"the origin of the URL must be one of --oauth-return-origins"}]]
    "#);
    for (caller, body) in [
        (&users.app, for_user.clone()),
        (&admin, for_user),
        (&admin, json!({})),
        (&users.app, json!({"user": user("a", "7"), "return_to": "https://app.example/done"})),
    ] {
        let (status, answer) = caller.post(&start, &body).await?;
        assert_eq!(status, 200, "{body}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn the_page_names_the_user_and_its_button_is_for_one_browser() -> Result<()> {
    let users = Users::start().await?;
    let link = users.link(&json!({"user": user("<script>alert(1)</script>", "7\u{202e}&")})).await?;
    let (mut own, mut other) = (users.browser()?, users.browser()?);
    assert_eq!(own.press(&link).await?.status, 400, "a form of another site opens nothing");
    let page = own.open(&link).await?;
    let origin = users.provider.url();
    assert_snapshot!(page.text.replace(&origin, "[provider]"), @r#"
    <!doctype html>
    <html lang="en">
    <meta charset="utf-8">
    <title>Authorize a resource</title>
    <h1>Authorize a resource</h1>
    <p>Bots will use your account at the provider for this user. Continue only if you are this user.</p>
    <dl>
    <dt>Workspace</dt>
    <dd><bdi>default</bdi></dd>
    <dt>Resource</dt>
    <dd><bdi>notes</bdi></dd>
    <dt>App</dt>
    <dd><bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi></dd>
    <dt>User</dt>
    <dd><bdi>7\u{202e}&amp;</bdi></dd>
    <dt>Provider</dt>
    <dd><bdi>[provider]</bdi></dd>
    </dl>
    <form method="post">
    <button>Continue to the provider</button>
    </form>
    "#);
    assert!(page.policy.ends_with(&format!("form-action 'self' {origin}")), "{}", page.policy);
    assert!(page.policy.contains("frame-ancestors 'none'") && page.policy.starts_with("default-src 'none'"));
    for page in [other.open(&link).await?, other.press(&link).await?] {
        assert_eq!((page.status, page.location), (400, None), "another browser");
    }
    assert_eq!(own.open(&link).await?.status, 200, "the same browser");
    let callback = users.provider.sign_in(&own.press(&link).await?.next()?, "ann")?;
    assert_eq!(other.open(&callback).await?.status, 400, "another browser");
    assert_eq!(own.open(&callback).await?.status, 200);
    for page in [own.open(&callback).await?, own.open(&link).await?, own.press(&link).await?] {
        assert_eq!((page.status, page.location), (400, None), "a link is used once");
    }
    assert_eq!(users.credentials().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn the_browser_returns_to_the_app() -> Result<()> {
    let users = Users::start().await?;
    for to in ["https://app.example/done?a=b", "/welcome"] {
        let link = users.link(&json!({"user": user("a", "7"), "return_to": to})).await?;
        let mut browser = users.browser()?;
        let callback = users.answered(&mut browser, &link, "ann").await?;
        assert_eq!(browser.open(&callback).await?.next()?, to);
    }
    let link = users.link(&json!({"user": user("a", "8"), "return_to": "/welcome"})).await?;
    let mut browser = users.browser()?;
    let callback = users.answered(&mut browser, &link, "ann").await?;
    let refused = callback.replace("code=", "error=access_denied&was=");
    let page = browser.open(&refused).await?;
    assert_eq!((page.status, page.location), (400, None), "a failure is shown");
    Ok(())
}

#[tokio::test]
async fn an_authorization_ends_with_the_rights_of_its_key() -> Result<()> {
    let users = Users::start().await?;
    let link = users.link(&json!({"user": user("a", "7")})).await?;
    let mut browser = users.browser()?;
    let callback = users.answered(&mut browser, &link, "ann").await?;
    let binding = format!("/api/bots/{}/resources/{}", users.behind.world.bot, users.behind.binding.binding);
    assert_eq!(users.behind.world.api.delete(&binding).await?.0, 204);
    assert_eq!(browser.open(&callback).await?.status, 400, "the bot is no longer bound");
    assert!(users.credentials().await?.is_empty());
    assert_eq!(users.app.post(&users.path("oauth/start"), &json!({"user": user("a", "7")})).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn a_rejected_token_of_a_user_is_refreshed_once() -> Result<()> {
    let users = Users::start().await?;
    users.authorize("a", "7", "ann").await?;
    users.authorize("b", "7", "bob").await?;
    let sent = |users: &Users| users.tokens().pop().unwrap_or_default().trim_start_matches("Bearer ").to_owned();
    assert_eq!(users.call("b", "7").await?["status"], "success");
    let of_bob = sent(&users);
    assert_eq!(users.call("a", "7").await?["status"], "success");
    let of_ann = sent(&users);
    // Each code and each token has the next number.
    users.behind.mcp.require_token("access-of-ann-5");
    let before = users.tokens().len();
    assert_eq!(users.call("a", "7").await?["status"], "success");
    let tokens = users.tokens();
    assert_eq!(tokens[before..], [format!("Bearer {of_ann}"), "Bearer access-of-ann-5".to_owned()]);
    // A token that was just refreshed is not refreshed again.
    users.behind.mcp.require_token("another token");
    let answer = users.call("a", "7").await?;
    let needed = json!({"resource_id": users.behind.resource, "user": user("a", "7")});
    assert_eq!(ended(&answer), json!(["error", "unauthenticated", needed]));
    users.behind.mcp.require_token(&of_bob);
    assert_eq!(users.call("b", "7").await?["status"], "success", "the token of another user is unchanged");
    Ok(())
}

#[tokio::test]
async fn an_echoed_credential_of_a_user_is_redacted() -> Result<()> {
    let users = Users::start().await?;
    users.behind.world.api.token(&users.behind.resource, "shared-s3cret-1").await?;
    assert_eq!(users.save(&user("a", "7"), "users-s3cret-1").await?.0, 200);
    let content = json!([{"type": "text", "text": "users-s3cret-1 shared-s3cret-1"}]);
    let result = json!({"jsonrpc": "2.0", "id": "{id}", "result": {"content": content}});
    users.behind.mcp.reply("tools/call", McpReply::json(200, &result));
    let answer = users.call("a", "7").await?;
    assert_eq!(answer["data"]["content"][0]["text"], "[redacted] [redacted]", "{answer}");
    let mut chat = user("a", "7");
    chat["chat_id"] = json!("c");
    let answer = users.call_with(&json!({"params": {"text": "send users-s3cret-1"}, "chat": chat})).await?;
    let row = users.behind.world.audit_of(&answer).await?;
    assert!(!row.to_string().contains("s3cret"), "{row}");
    assert!(!users.behind.world.server.output().contains("s3cret"));
    Ok(())
}

#[tokio::test]
async fn an_app_manages_the_credentials_of_its_users() -> Result<()> {
    let users = Users::start().await?;
    let api = &users.behind.world.api;
    let other_bot = api.bot("other").await?;
    let of_other_bot = key(api, "of another bot", &other_bot).await?;
    let path = users.path("credential");
    let of_user = format!("{path}s?app_id=a&user_id=7");
    let deletion = format!("{path}?app_id=a&user_id=7");
    let body =
        |method: &str, field: &str| json!({"auth_method": method, "fields": {field: TOKEN}, "user": user("a", "7")});
    let token = body("token", "access_token");
    let mut answers = Answers::default();
    let put = async |api: &Api, body: &Value| {
        let (status, answer) = api.put(&path, body).await?;
        Ok::<_, anyhow::Error>((status, json!([answer["status"], answer["detail"], answer["errors"]])))
    };
    answers.add("saved", put(&users.app, &token).await?);
    answers.add("an API key", put(&users.app, &body("api_key", "api_key")).await?);
    answers.add("by another bot", put(&of_other_bot, &token).await?);
    answers.add(
        "OAuth",
        put(&users.app, &json!({"auth_method": "oauth2_client_creds", "fields": {}, "user": user("a", "7")})).await?,
    );
    answers.add(
        "without a user",
        put(&users.app, &json!({"auth_method": "token", "fields": {"access_token": TOKEN}})).await?,
    );
    for (what, caller, path) in [
        ("listed", &users.app, of_user.as_str()),
        ("listed by another bot", &of_other_bot, of_user.as_str()),
        ("all users, by an app", &users.app, &format!("{path}s")),
        ("all users, by an admin", api, &format!("{path}s?limit=1")),
        ("half a user", api, &format!("{path}s?app_id=a")),
        ("a user without a credential", &users.app, &format!("{path}s?app_id=b&user_id=7")),
    ] {
        let (status, answer) = caller.get(path).await?;
        let items = answer["items"].as_array().map(|items| {
            let shown = |item: &Value| json!([item["user"], item["status"], item["method"]]);
            items.iter().map(shown).collect::<Vec<_>>()
        });
        assert!(!answer.to_string().contains(TOKEN), "{answer}");
        answers.add(what, (status, json!([items, answer["detail"]])));
    }
    for (what, caller, path) in [
        ("deleted by another bot", &of_other_bot, &deletion),
        ("the shared one, by an app", &users.app, &path),
        ("deleted", &users.app, &deletion),
        ("deleted again", &users.app, &deletion),
    ] {
        let (status, answer) = caller.delete(path).await?;
        answers.add(what, (status, answer["detail"].clone()));
    }
    assert_snapshot!(answers, @r#"
    saved: 200 ["ready",null,null]
    an API key: 200 ["ready",null,null]
    by another bot: 404 [404,"no such resource",null]
    OAuth: 422 [422,"/auth_method: the credential of a user is a `token` or an `api_key`, or is obtained by OAuth",[{"path":"/auth_method","message":"the credential of a user is a `token` or an `api_key`, or is obtained by OAuth"}]]
    without a user: 403 [403,"an admin key is required",null]
    listed: 200 [[[{"app_id":"a","user_id":"7"},"ready","api_key"]],null]
    listed by another bot: 404 [null,"no such resource"]
    all users, by an app: 403 [null,"a bot key lists the credential of one user; name `app_id` and `user_id`"]
    all users, by an admin: 200 [[[{"app_id":"a","user_id":"7"},"ready","api_key"]],null]
    half a user: 422 [null,"user_id: a user is named by `app_id` and `user_id`"]
    a user without a credential: 200 [[],null]
    deleted by another bot: 404 "no such resource"
    the shared one, by an app: 403 "an admin key is required"
    deleted: 204
    deleted again: 404 "no such credential"
    "#);
    assert_eq!(users.call("a", "7").await?["code"], "unauthenticated");
    Ok(())
}

#[tokio::test]
async fn credentials_of_users_are_deleted_with_their_resource_and_their_workspace() -> Result<()> {
    let users = Users::start().await?;
    let api = &users.behind.world.api;
    assert_eq!(users.save(&user("a", "7"), TOKEN).await?.0, 200);
    let count = async || {
        let folder = users.behind.world.server.data_dir();
        let rows = sqlite(&folder, &["select count(*) from credentials where subject_kind = 'user'"]).await?;
        Ok::<_, anyhow::Error>(rows)
    };
    assert_eq!(count().await?, json!([[1]]));
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let binding = format!("/api/bots/{}/resources/{}", users.behind.world.bot, users.behind.binding.binding);
    assert_eq!(api.delete(&binding).await?.0, 204);
    let path = format!("/api/resources/{}", users.behind.resource);
    assert_eq!(operator.delete(&path).await?.0, 403, "credentials of users are credentials");
    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!(count().await?, json!([[0]]));
    Ok(())
}

#[tokio::test]
async fn the_audit_names_the_user_of_a_call_and_of_a_change() -> Result<()> {
    let users = Users::start().await?;
    assert_eq!(users.save(&user("a", "7"), TOKEN).await?.0, 200);
    let answer = users.call("a", "7").await?;
    let row = users.behind.world.audit_of(&answer).await?;
    assert_eq!(row["user"], user("a", "7"), "{row}");
    let answer = users.call_with(&json!({"params": {}})).await?;
    let row = users.behind.world.audit_of(&answer).await?;
    assert!(row.get("user").is_none(), "{row}");
    users.authorize("b", "7", "bob").await?;
    let (_, changes) = users.behind.world.api.get("/api/audit/changes?limit=20").await?;
    let saved: Vec<&Value> = changes["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|change| change["change"] == "credential.save")
        .map(|change| &change["after"]["user"])
        .collect();
    assert_eq!(json!(saved), json!([user("b", "7"), user("a", "7")]));
    assert!(!changes.to_string().contains(TOKEN));
    assert_eq!(users.behind.world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn credentials_of_users_are_there_after_a_restart_and_not_at_another_url() -> Result<()> {
    let mut users = Users::start().await?;
    users.authorize("a", "7", "ann").await?;
    users.behind.world.server.restart().await?;
    let api = users.behind.world.server.api()?;
    users.app = api.with_key(users.app.key());
    users.behind.world.api = api;
    assert_eq!(users.call("a", "7").await?["status"], "success");
    let other = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let config = json!({"config": {"url": other.url(), "credential": "user"}});
    let path = format!("/api/resources/{}", users.behind.resource);
    let (status, body) = users.behind.world.api.patch(&path, &config).await?;
    ensure!(status == 200, "{status} {body}");
    discover(&users.behind.world, &users.behind.resource).await?;
    assert_eq!(users.call("a", "7").await?["code"], "unauthenticated");
    assert!(other.requests().iter().all(|request| request.header("authorization").is_none()));
    assert_eq!(users.credentials().await?[0]["status"], "needs-authorization");
    Ok(())
}
