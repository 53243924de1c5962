//! Users of access tokens who authorize a resource: the link that their clients get, the sign-in of the browser, and the
//! people who follow the link of another person.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Response;
use serde_json::{Map, Value, json};
use support::{FakeMcp, Generation, Server, TokenIssuer, now_s};

use super::Client;
use super::browser::{Browser, Page};
use crate::http::{made, send};
use crate::stable::stable;
use crate::tamper::sqlite;
use crate::world::{World, eventually, text};

const PUBLIC: &str = "https://monstrum.example";
const TOOL: &str = "notes__note";
const SECRET: &str = "issuer-client-secret-9c";

/// A server with an issuer, and a resource whose users have credentials of a provider.
struct Connecting {
    world: World,
    issuer: TokenIssuer,
    provider: TokenIssuer,
    mcp: FakeMcp,
    resource: String,
}

impl Connecting {
    async fn start() -> Result<Connecting> {
        Connecting::with(&["--mcp-issuer-client-id", "monstrum-at-issuer"]).await
    }

    async fn with(arguments: &[&str]) -> Result<Connecting> {
        let (issuer, provider) = (TokenIssuer::start().await?, TokenIssuer::start().await?);
        let url = issuer.url();
        let all = ["--public-url", PUBLIC, "--mcp-issuer", &url, "--mcp-issuer-http", "true", "--sandbox", "off"];
        let all = all.iter().chain(&["--mcp-issuer-allow", "127.0.0.0/8"]).chain(arguments);
        let mut server = all.fold(Server::prepare(&[])?, |server, argument| server.argument(argument));
        if !arguments.is_empty() {
            server = server.variable("MONSTRUM_MCP_ISSUER_CLIENT_SECRET", SECRET);
            issuer.require_secret(SECRET);
        }
        let world = World::on(server).await?;
        let tool = json!({"name": "note", "description": "Adds", "inputSchema": {
            "type": "object", "properties": {"text": {"type": "string"}},
        }});
        let mcp = FakeMcp::start(Generation::Stateless, &[tool]).await?;
        let config = json!({"url": mcp.url(), "credential": "user", "definitions": "first"});
        let network = json!({"allow_addresses": ["127.0.0.0/8"], "allow_http": true});
        let body = json!({"resource_type": "mcp", "name": "notes", "config": config, "network": network});
        let resource = made(&world.api, "/api/resources", &body).await?;
        world.api.request(reqwest::Method::POST, &format!("/api/resources/{resource}/tools/discover")).send().await?;
        let role = world.api.role("everything", &["*"]).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        let at = provider.url();
        let body = json!({
            "resource_type": "mcp", "client_id": "monstrum", "authorization_url": format!("{at}/authorize"),
            "token_url": format!("{at}/token"), "scopes": ["notes"],
        });
        made(&world.api, "/api/oauth/providers", &body).await?;
        let connecting = Connecting { world, issuer, provider, mcp, resource };
        connecting.admit(&json!(["ann", "bob"])).await?;
        let is_served = async || Ok(connecting.world.tools().await?.contains(&TOOL.to_owned()).then_some(()));
        eventually("the tool is served", is_served).await?;
        Ok(connecting)
    }

    async fn admit(&self, subjects: &Value) -> Result<()> {
        let change = json!({ "mcp_subjects": subjects });
        let (status, body) = self.world.api.patch(&format!("/api/bots/{}", self.world.bot), &change).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(())
    }

    /// Returns a client with a token of this user.
    fn client(&self, subject: &str) -> Result<Client> {
        let claims = self.issuer.claims(&format!("{PUBLIC}/mcp/{}", self.world.bot), subject)?;
        let token = self.issuer.token("EdDSA", &claims)?;
        Ok(Client::new(&self.world.api.with_key(&token), &self.world.bot))
    }

    fn browser(&self) -> Browser {
        Browser::new(&self.world.api, PUBLIC)
    }

    /// Makes a call that asks for an authorization. Returns the link and the request state.
    async fn asked(&self, client: &Client) -> Result<(String, String)> {
        let asked = call(client, &json!({})).await?;
        let link = &asked["result"]["inputRequests"]["authorization"]["params"]["url"];
        ensure!(link.is_string(), "{asked}");
        Ok((text(link).to_owned(), text(&asked["result"]["requestState"]).to_owned()))
    }

    /// Opens a link, and signs in as `person` at the issuer.
    async fn signed_in(&self, browser: &mut Browser, link: &str, person: &str) -> Result<Page> {
        let callback = self.issuer.sign_in(&browser.open(link).await?.next()?, person)?;
        browser.open(&callback).await
    }

    /// Follows a link to its end as this person, who has the same name at the provider.
    async fn connected(&self, link: &str, person: &str) -> Result<Page> {
        let mut browser = self.browser();
        let begin = self.signed_in(&mut browser, link, person).await?.next()?;
        ensure!(browser.open(&begin).await?.status == 200);
        let callback = self.provider.sign_in(&browser.press(&begin).await?.next()?, person)?;
        browser.open(&callback).await
    }

    /// Returns the users who have a credential.
    async fn users(&self) -> Result<Value> {
        let (status, body) = self.world.api.get(&format!("/api/resources/{}/credentials", self.resource)).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(body["items"].as_array().into_iter().flatten().map(|item| item["user"].clone()).collect())
    }

    /// Returns the token of each call that the server has received.
    fn tokens(&self) -> Vec<String> {
        let requests = self.mcp.requests();
        let calls = requests.iter().filter(|request| request.json()["method"] == "tools/call");
        calls.map(|call| call.header("authorization").unwrap_or("none").to_owned()).collect()
    }
}

/// Calls the tool as a client that opens URLs. Members of `more` are added to the parameters.
async fn call(client: &Client, more: &Value) -> Result<Value> {
    read(send_call(client, more).await?).await
}

async fn send_call(client: &Client, more: &Value) -> Result<Response> {
    let mut meta = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}}});
    let mut params = Map::from_iter([("name".to_owned(), json!(TOOL)), ("arguments".to_owned(), json!({"text": "a"}))]);
    params.extend(more.as_object().cloned().unwrap_or_default());
    if let (Some(Value::Object(own)), Value::Object(meta)) = (params.remove("_meta"), &mut meta) {
        meta.extend(own);
    }
    params.insert("_meta".to_owned(), meta);
    Ok(client.stateless("tools/call", &Value::Object(params)).send().await?)
}

async fn read(response: Response) -> Result<Value> {
    let is_stream = response.headers()["content-type"] == "text/event-stream";
    let body = response.text().await?;
    let last = body.lines().rev().find_map(|line| line.strip_prefix("data: "));
    Ok(serde_json::from_str(if is_stream { last.context("the stream has no event")? } else { &body })?)
}

fn repeated(state: &str, action: &str, wait_s: u32) -> Value {
    let responses = json!({"authorization": {"action": action}});
    json!({"requestState": state, "inputResponses": responses, "_meta": {"monstrum/wait_for_approval_s": wait_s}})
}

#[tokio::test]
async fn a_user_signs_in_and_authorizes_and_the_call_goes_on() -> Result<()> {
    let connecting = Connecting::start().await?;
    let client = connecting.client("ann")?;
    let asked = call(&client, &json!({})).await?;
    let link = text(&asked["result"]["inputRequests"]["authorization"]["params"]["url"]).to_owned();
    let state = text(&asked["result"]["requestState"]).to_owned();
    assert!(link.starts_with(&format!("{PUBLIC}/oauth/connect/")) && !link.contains("ann"), "{link}");
    let shown = asked.to_string().replace(&state, "[state]").replace(&link, "[link]");
    assert_snapshot!(stable(&serde_json::from_str(&shown)?), @r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"authorization":{"method":"elicitation/create","params":{"mode":"url","message":"The tool `notes__note` needs access to your account. Open the page to authorize it.","url":"[link]","elicitationId":"[id 1]"}}},"requestState":"[state]","_meta":{"monstrum/status":"error","monstrum/code":"unauthenticated","monstrum/request_id":"[id 1]"}}}"#);

    // The repeated call waits until the user has authorized.
    let waiting = send_call(&client, &repeated(&state, "accept", 60)).await?;
    assert_eq!(connecting.connected(&link, "ann").await?.status, 200);
    let done = read(waiting).await?;
    assert_eq!(done["result"]["isError"], false, "{done}");
    let user = json!({"app_id": connecting.issuer.url(), "user_id": "ann"});
    assert_eq!(connecting.users().await?, json!([user]));
    assert!(connecting.tokens()[0].starts_with("Bearer access-of-ann-"), "{:?}", connecting.tokens());
    // Bob has the same bot and the same resource, but not the credential of Ann.
    let (_, of_bob) = connecting.asked(&connecting.client("bob")?).await?;
    let again = call(&connecting.client("bob")?, &repeated(&of_bob, "accept", 0)).await?;
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_eq!(connecting.tokens().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_link_that_another_person_opens_stores_nothing() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let mut victim = connecting.browser();
    let page = connecting.signed_in(&mut victim, &link, "bob").await?;
    assert_eq!((page.status, &page.location), (400, &None), "{}", page.text);
    assert!(page.text.contains("is not the user for whom the link was made"), "{}", page.text);
    // The link is used up, for the victim and for its user.
    let ticket = link.rsplit('/').next().context("a ticket")?;
    let begin = format!("{PUBLIC}/oauth/begin/{ticket}");
    for mut browser in [victim, connecting.browser()] {
        for page in [browser.open(&link).await?, browser.open(&begin).await?, browser.press(&begin).await?] {
            assert_eq!((page.status, page.location), (400, None));
        }
    }
    assert_eq!(connecting.users().await?, json!([]));
    assert!(connecting.provider.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_link_is_for_one_browser_and_is_used_once() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let (mut own, mut other) = (connecting.browser(), connecting.browser());
    let first = connecting.issuer.sign_in(&own.open(&link).await?.next()?, "ann")?;
    assert_eq!(other.open(&link).await?.status, 400, "another browser");
    assert_eq!(other.open(&first).await?.status, 400, "the answer is for the browser that began");
    // The same browser can begin the sign-in again. Only the last answer counts.
    let second = connecting.issuer.sign_in(&own.open(&link).await?.next()?, "ann")?;
    assert_eq!(own.open(&first).await?.status, 400, "an answer to an earlier request");
    let ticket = link.rsplit('/').next().context("a ticket")?;
    let begin = format!("{PUBLIC}/oauth/begin/{ticket}");
    assert_eq!(own.open(&begin).await?.status, 400, "before the sign-in");
    assert_eq!(own.press(&begin).await?.status, 400, "before the sign-in");
    assert_eq!(own.open(&second).await?.next()?, begin);
    assert_eq!(own.open(&second).await?.status, 400, "the answer counts once");
    assert_eq!(other.open(&begin).await?.status, 400, "another browser");
    assert_eq!(own.open(&begin).await?.status, 200);
    let callback = connecting.provider.sign_in(&own.press(&begin).await?.next()?, "ann")?;
    assert_eq!(own.open(&callback).await?.status, 200);
    for url in [&link, &begin, &callback, &second] {
        assert_eq!(own.open(url).await?.status, 400, "{url} was used");
    }
    for forged in ["", "callback", "x", &ticket[1..]] {
        let page = own.open(&format!("{PUBLIC}/oauth/connect/{forged}")).await?;
        assert!(matches!(page.status, 400 | 404), "{forged}: {}", page.status);
    }
    Ok(())
}

/// The cookie of a page under another name would belong to another site. The refused request does not use up the link.
#[tokio::test]
async fn a_link_opens_under_a_known_host_name_only() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let path = link.strip_prefix(PUBLIC).context("a link of this server")?;
    for host in ["evil.example", "monstrum.example.evil.example", "192.168.0.1"] {
        let request = connecting.world.api.with_key("").request(reqwest::Method::GET, path);
        let refused = request.header("host", host).send().await?;
        assert_eq!(refused.status().as_u16(), 421, "{host}");
        assert!(!refused.headers().contains_key("location") && !refused.headers().contains_key("set-cookie"), "{host}");
    }
    assert_eq!(connecting.connected(&link, "ann").await?.status, 200);
    Ok(())
}

/// A program with access to the database cannot replace the sign-in.
#[tokio::test]
async fn the_sign_in_cannot_be_skipped_in_the_database() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let mut victim = connecting.browser();
    victim.open(&link).await?.next()?;
    let ticket = link.rsplit('/').next().context("a ticket")?;
    let begin = format!("{PUBLIC}/oauth/begin/{ticket}");
    for statement in [
        "update oauth_flows set status = 'started'",
        "update oauth_flows set status = 'begun'",
        "update oauth_flows set status = 'started', sealed = null",
        "update oauth_flows set status = 'started', browser_hash = null",
        "update oauth_flows set subject = null",
    ] {
        sqlite(&connecting.world.server.data_dir(), &[statement]).await?;
        for page in [victim.open(&begin).await?, victim.press(&begin).await?] {
            assert_eq!((page.status, page.location), (400, None), "{statement}");
        }
    }
    assert_eq!(connecting.users().await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn id_tokens_that_are_not_for_this_sign_in_are_refused() -> Result<()> {
    let connecting = Connecting::start().await?;
    let now = now_s()?;
    for (what, algorithm, claims) in [
        ("another nonce", "EdDSA", json!({"nonce": "other"})),
        ("no nonce", "EdDSA", json!({"nonce": null})),
        ("another client", "EdDSA", json!({"aud": "other"})),
        ("another issuer", "EdDSA", json!({"iss": "https://evil.example"})),
        ("expired", "EdDSA", json!({"exp": now - 120})),
        ("for another party", "EdDSA", json!({"azp": "other", "aud": ["monstrum-at-issuer", "other"]})),
        ("alg none", "none", json!({})),
        ("the public key as a secret", "HS256", json!({})),
        ("an empty subject", "EdDSA", json!({"sub": ""})),
    ] {
        connecting.issuer.forge_id_tokens(algorithm, &claims);
        let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
        let page = connecting.signed_in(&mut connecting.browser(), &link, "ann").await?;
        assert_eq!((page.status, page.location), (400, None), "{what}");
    }
    connecting.issuer.forge_id_tokens("RS256", &json!({}));
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let page = connecting.signed_in(&mut connecting.browser(), &link, "ann").await?;
    assert_eq!(page.status, 303, "{}", page.text);
    assert_eq!(connecting.users().await?, json!([]));
    assert!(!connecting.world.server.output().contains(SECRET));
    Ok(())
}

#[tokio::test]
async fn an_authorization_ends_when_the_bot_no_longer_admits_its_user() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    let (early, _) = connecting.asked(&connecting.client("ann")?).await?;
    let mut browser = connecting.browser();
    let begin = connecting.signed_in(&mut browser, &link, "ann").await?.next()?;
    browser.open(&begin).await?;
    let callback = connecting.provider.sign_in(&browser.press(&begin).await?.next()?, "ann")?;
    connecting.admit(&json!(["bob"])).await?;
    assert_eq!(browser.open(&callback).await?.status, 400);
    assert_eq!(connecting.browser().open(&early).await?.status, 400, "the link too");
    assert_eq!(connecting.users().await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn a_client_cannot_name_another_user() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    connecting.connected(&link, "ann").await?;
    let bob = connecting.client("bob")?;
    let issuer = connecting.issuer.url();
    for chat in [
        json!({"app_id": issuer, "user_id": "ann", "chat_id": "c"}),
        json!({"user_id": "ann"}),
        json!({"app_id": "other", "user_id": "bob"}),
    ] {
        let answer = call(&bob, &json!({"_meta": {"monstrum/chat": chat}})).await?;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    for arguments in [json!({"user_id": "ann"}), json!({"chat": {"user_id": "ann"}}), json!({"_user": "ann"})] {
        let answer = call(&bob, &json!({ "arguments": arguments })).await?;
        assert_ne!(answer["result"]["isError"], false, "{answer}");
    }
    assert!(connecting.tokens().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_request_state_is_good_for_its_user_and_its_call() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (ann, bob) = (connecting.client("ann")?, connecting.client("bob")?);
    let (_, state) = connecting.asked(&ann).await?;
    for (what, client, more) in
        [("another user", &bob, json!({})), ("other arguments", &ann, json!({"arguments": {"text": "b"}}))]
    {
        let mut params = repeated(&state, "accept", 0);
        params.as_object_mut().context("an object")?.extend(more.as_object().cloned().unwrap_or_default());
        let answer = call(client, &params).await?;
        assert_eq!(answer["error"]["code"], -32602, "{what}: {answer}");
    }
    let declined = call(&ann, &repeated(&state, "decline", 0)).await?;
    assert!(text(&declined["result"]["content"][0]["text"]).contains("declined"), "{declined}");
    let accepted = call(&ann, &repeated(&state, "accept", 0)).await?;
    assert_eq!(
        accepted["result"]["resultType"], "input_required",
        "the answer of a client permits nothing: {accepted}"
    );
    assert!(connecting.tokens().is_empty());
    Ok(())
}

#[tokio::test]
async fn clients_that_cannot_open_urls_and_servers_without_a_client_say_it_in_words() -> Result<()> {
    let connecting = Connecting::start().await?;
    let mut client = connecting.client("ann")?;
    let plain = client.call(TOOL, &json!({"text": "a"})).await?;
    let words = text(&plain["content"][0]["text"]).to_owned();
    let link =
        words.split_whitespace().find(|word| word.contains("/oauth/connect/")).context("a link")?.trim_end_matches(';');
    assert_eq!(plain["isError"], true, "{plain}");
    assert_snapshot!(words.replace(link, "[link]"), @"
    the user of this call has not authorized the resource `notes`
    The user can authorize it at [link]; then call the tool again.
    ");
    let params = json!({"name": TOOL, "arguments": {"text": "a"}});
    client.initialize_with("2025-11-25", &json!({"elicitation": {"url": {}}})).await?;
    let (_, _, asked) = send(client.legacy(&json!(1), "tools/call", &params)).await?;
    let elicitation = &asked["error"]["data"]["elicitations"][0];
    assert_eq!((&asked["error"]["code"], &elicitation["mode"]), (&json!(-32042), &json!("url")), "{asked}");
    let link = text(&elicitation["url"]).to_owned();
    assert_eq!(connecting.connected(&link, "ann").await?.status, 200);
    let done = eventually("the call succeeds", async || {
        let (_, _, answer) = send(client.legacy(&json!(1), "tools/call", &params)).await?;
        Ok((answer["result"]["isError"] == false).then_some(answer))
    });
    let done = done.await?;
    assert_eq!(connecting.tokens().len(), 1, "{done}");
    // A bot key is an app, which starts the authorization itself.
    let key = connecting.world.api.new_key("bot", Some(&connecting.world.bot)).await?;
    let app = Client::new(&connecting.world.api.with_key(&key), &connecting.world.bot);
    let chat = json!({"_meta": {"monstrum/chat": {"app_id": "a", "user_id": "7", "chat_id": "c"}}});
    let answer = call(&app, &chat).await?;
    assert!(!answer.to_string().contains("/oauth/connect/"), "{answer}");
    assert_eq!(answer["result"]["_meta"]["monstrum/code"], "unauthenticated", "{answer}");

    let without = Connecting::with(&[]).await?;
    let answer = call(&without.client("ann")?, &json!({})).await?;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(!answer.to_string().contains("/oauth/connect/"), "{answer}");
    assert_eq!(without.browser().open(&link).await?.status, 400);
    Ok(())
}

#[tokio::test]
async fn the_audit_names_the_user_of_an_access_token() -> Result<()> {
    let connecting = Connecting::start().await?;
    let (link, _) = connecting.asked(&connecting.client("ann")?).await?;
    connecting.connected(&link, "ann").await?;
    let answer = call(&connecting.client("ann")?, &json!({})).await?;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    let (_, rows) = connecting.world.api.get("/api/audit?limit=10").await?;
    let user = json!({"app_id": connecting.issuer.url(), "user_id": "ann"});
    let rows = rows["items"].as_array().context("the list has no items")?;
    let of_tool: Vec<&Value> = rows.iter().filter(|row| row["tool"] == TOOL).collect();
    assert_eq!(of_tool.len(), 2, "{rows:?}");
    assert!(of_tool.iter().all(|row| row["user"] == user), "{rows:?}");
    let (_, changes) = connecting.world.api.get("/api/audit/changes?limit=5").await?;
    let saved = &changes["items"][0];
    assert_eq!(
        (&saved["change"], &saved["after"]["user"], &saved["key_id"]),
        (&json!("credential.save"), &user, &Value::Null)
    );
    Ok(())
}
