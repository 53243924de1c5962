//! Access tokens of an authorization server in place of API keys.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Server, TokenIssuer, now_s};

use super::calls::ended;
use super::streams::{Events, subscription};
use super::{Client, Scene};
use crate::http::{Answers, made, send};
use crate::world::{eventually, text};

pub(super) const PUBLIC: &str = "https://monstrum.example";

/// A server that accepts the tokens of an issuer, and a bot that admits Ann and the users of a team.
struct Issued {
    issuer: TokenIssuer,
    scene: Scene,
}

impl Issued {
    async fn start() -> Result<Issued> {
        let issuer = TokenIssuer::start().await?;
        let scene = accepting(&issuer.url()).await?;
        let issued = Issued { issuer, scene };
        issued.admit(&json!(["ann", "team-*"])).await?;
        Ok(issued)
    }

    async fn admit(&self, subjects: &Value) -> Result<()> {
        admit(&self.scene, subjects).await
    }

    fn audience(&self) -> String {
        format!("{PUBLIC}/mcp/{}", self.scene.world.bot)
    }

    fn claims(&self, subject: &str) -> Result<Value> {
        self.issuer.claims(&self.audience(), subject)
    }

    /// Returns a client with a valid token of this user.
    fn client(&self, subject: &str) -> Result<Client> {
        Ok(self.with(&self.issuer.token("EdDSA", &self.claims(subject)?)?))
    }

    fn with(&self, token: &str) -> Client {
        Client::new(&self.scene.world.api.with_key(token), &self.scene.world.bot)
    }
}

/// Starts a server that accepts the tokens of an issuer on this machine.
pub(super) async fn accepting(issuer: &str) -> Result<Scene> {
    let server = Server::prepare(&["test-echo"])?;
    let arguments = [
        "--public-url",
        PUBLIC,
        "--mcp-issuer",
        issuer,
        "--mcp-issuer-http",
        "true",
        "--mcp-issuer-allow",
        "127.0.0.0/8",
    ];
    Scene::on(arguments.iter().fold(server, |server, argument| server.argument(argument))).await
}

/// Says which users may use the bot.
pub(super) async fn admit(scene: &Scene, subjects: &Value) -> Result<()> {
    let world = &scene.world;
    let change = json!({ "mcp_subjects": subjects });
    let (status, body) = world.api.patch(&format!("/api/bots/{}", world.bot), &change).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Returns the status of a list, and how the client can authenticate.
pub(super) async fn seen(client: &Client) -> Result<(u16, Value)> {
    let (status, headers, body) = send(client.stateless("tools/list", &json!({}))).await?;
    let challenge = headers.get("www-authenticate").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let detail = if body["detail"].is_null() {
        json!(body["result"]["tools"].as_array().map(Vec::len))
    } else {
        body["detail"].clone()
    };
    Ok((status, json!({"detail": detail, "challenge": challenge})))
}

#[tokio::test]
async fn a_user_with_a_token_lists_and_calls() -> Result<()> {
    let issued = Issued::start().await?;
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        let client = issued.with(&issued.issuer.token(algorithm, &issued.claims("ann")?)?);
        assert_eq!(seen(&client).await?.0, 200, "{algorithm}");
    }
    let requests = issued.issuer.requests();
    assert_eq!(requests.iter().filter(|path| *path == "/jwks").count(), 1, "the keys are kept: {requests:?}");
    let client = issued.client("team-7")?;
    let answer = client.call("test_echo_run", &json!({"repo": "acme/site"})).await?;
    let chat = json!({"app_id": issued.issuer.url(), "user_id": "team-7", "chat_id": "mcp"});
    assert_eq!(answer["structuredContent"]["context"], json!({ "chat": chat }), "{answer}");
    let row = issued.scene.world.api.audit(text(&answer["structuredContent"]["request_id"])).await?;
    assert_eq!(row["status"], "success", "{row}");
    assert!(!answer.to_string().contains(issued.client("team-7")?.api.key()), "a token is not passed on");
    // Keys are accepted as before.
    assert_eq!(seen(&issued.scene.client).await?.0, 200);
    let mut session = client.clone();
    session.initialize("2025-11-25").await?;
    let other = Client { session: session.session.clone(), ..issued.client("ann")? };
    let list = async |client: &Client| {
        Ok::<_, anyhow::Error>(send(client.legacy(&json!(1), "tools/list", &json!({}))).await?.0)
    };
    assert_eq!((list(&session).await?, list(&other).await?), (200, 404), "a session belongs to its user");
    Ok(())
}

#[tokio::test]
async fn other_tokens_are_refused() -> Result<()> {
    let issued = Issued::start().await?;
    let (issuer, bot) = (&issued.issuer, &issued.scene.world.bot);
    let other_bot = issued.scene.world.api.bot("other").await?;
    let foreign = TokenIssuer::start().await?;
    let with = |change: Value| -> Result<Value> {
        let mut claims = issued.claims("ann")?;
        claims.as_object_mut().context("claims")?.extend(change.as_object().cloned().unwrap_or_default());
        Ok(claims)
    };
    let now = now_s()?;
    let ann = issued.claims("ann")?;
    let mut answers = Answers::default();
    for (what, token) in [
        ("valid", issuer.token("RS256", &ann)?),
        ("another audience", issuer.token("RS256", &with(json!({"aud": format!("{PUBLIC}/mcp/{other_bot}")}))?)?),
        ("the name as audience", issuer.token("RS256", &with(json!({"aud": format!("{PUBLIC}/mcp/tester")}))?)?),
        ("alg none", issuer.token("none", &ann)?),
        ("HS256 with the public key", issuer.token("HS256", &ann)?),
        ("expired", issuer.token("RS256", &with(json!({"exp": now - 61}))?)?),
        ("valid for too long", issuer.token("RS256", &with(json!({"exp": now + 25 * 3600}))?)?),
        ("another issuer", issuer.token("RS256", &with(json!({"iss": foreign.url()}))?)?),
        ("a foreign issuer", foreign.token("RS256", &foreign.claims(&issued.audience(), "ann")?)?),
        ("a foreign key", foreign.token("RS256", &ann)?),
        ("without the scope", issuer.token("RS256", &with(json!({"scope": "openid"}))?)?),
        ("a user who is not admitted", issuer.token("RS256", &with(json!({"sub": "eve"}))?)?),
        ("an unknown API key", "mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned()),
        ("no token", String::new()),
    ] {
        let (status, body) = seen(&issued.with(&token)).await?;
        answers.add(what, (status, body));
    }
    let named = issuer.token("RS256", &with(json!({"aud": format!("{PUBLIC}/mcp/tester")}))?)?;
    let by_name = Client::new(&issued.scene.world.api.with_key(&named), "tester");
    answers.add("the name in the URL", seen(&by_name).await?);
    let absent = "01900000-0000-7000-8000-000000000000";
    let token = issuer.token("RS256", &with(json!({"aud": format!("{PUBLIC}/mcp/{absent}")}))?)?;
    answers
        .add("a bot that does not exist", seen(&Client::new(&issued.scene.world.api.with_key(&token), absent)).await?);
    let elsewhere = issued.scene.world.api.with_key(&issuer.token("RS256", &ann)?);
    let (status, body) = elsewhere.get("/api/bots").await?;
    answers.add("another route", (status, json!({"detail": body["detail"]})));
    let told = answers.to_string().replace(bot.as_str(), "[bot]");
    assert_snapshot!(told, @r#"
    valid: 200 {"detail":8,"challenge":null}
    another audience: 401 {"detail":"the access token is not valid: its audience is not this URL","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    the name as audience: 401 {"detail":"the access token is not valid: its audience is not this URL","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    alg none: 401 {"detail":"the access token is not valid: expected a JWT that is signed with RS256, ES256 or EdDSA","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    HS256 with the public key: 401 {"detail":"the access token is not valid: expected a JWT that is signed with RS256, ES256 or EdDSA","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    expired: 401 {"detail":"the access token is not valid: it has expired","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    valid for too long: 401 {"detail":"the access token is not valid: it is valid for more than 24 hours","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    another issuer: 401 {"detail":"the access token is not valid: it is from another issuer","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    a foreign issuer: 401 {"detail":"the access token is not valid: its signature is wrong","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    a foreign key: 401 {"detail":"the access token is not valid: its signature is wrong","challenge":"Bearer error=\"invalid_token\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    without the scope: 403 {"detail":"the access token does not have the scope `mcp:tools`","challenge":"Bearer error=\"insufficient_scope\", scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    a user who is not admitted: 403 {"detail":"the user of this access token may not use this bot","challenge":null}
    an unknown API key: 401 {"detail":"unknown API key","challenge":"Bearer scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    no token: 401 {"detail":"send exactly one header `Authorization: Bearer mk_…`","challenge":"Bearer scope=\"mcp:tools\", resource_metadata=\"https://monstrum.example/.well-known/oauth-protected-resource/mcp/[id 1]\""}
    the name in the URL: 401 {"detail":"an access token requires the id of the bot in the URL","challenge":"Bearer"}
    a bot that does not exist: 403 {"detail":"the user of this access token may not use this bot","challenge":null}
    another route: 401 {"detail":"unknown API key"}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_user_of_a_token_cannot_name_another_user() -> Result<()> {
    let issued = Issued::start().await?;
    let client = issued.client("ann")?;
    let url = issued.issuer.url();
    let mut answers = Vec::new();
    for chat in [
        json!({"chat_id": "c"}),
        json!({"app_id": url, "user_id": "ann", "chat_id": "c"}),
        json!({"app_id": url, "user_id": "eve", "chat_id": "c"}),
        json!({"app_id": "app", "user_id": "ann", "chat_id": "c"}),
    ] {
        let params =
            json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}, "_meta": {"monstrum/chat": chat}});
        let (_, _, body) = send(client.stateless("tools/call", &params)).await?;
        let user = &body["result"]["structuredContent"]["context"]["chat"]["user_id"];
        answers.push(format!("{user} {} {}", body["error"]["code"], body["error"]["message"]));
    }
    assert_snapshot!(answers.join("\n"), @r#"
    "ann" null null
    "ann" null null
    null -32602 "`monstrum/chat` in `_meta`: `user_id` must be the one of the access token"
    null -32602 "`monstrum/chat` in `_meta`: `app_id` must be the one of the access token"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_call_and_a_stream_end_when_the_bot_no_longer_admits_their_user() -> Result<()> {
    let issued = Issued::start().await?;
    let client = issued.client("ann")?;
    issued.scene.world.github.hold();
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.call("test_echo_fetch", &json!({"path": "/user"})).await }
    });
    let mut stream = Events::open(subscription(&client)).await?;
    assert_eq!(stream.method().await?, "notifications/subscriptions/acknowledged");
    issued.scene.world.reached(1).await?;
    issued.admit(&json!(["team-*"])).await?;
    let answer = held.await??;
    assert_eq!((&answer["isError"], &answer["_meta"]["monstrum/status"]), (&json!(true), &json!("permission_denied")));
    let row = eventually("the call has ended", async || ended(&issued.scene, "test_echo_fetch").await).await?;
    assert_eq!(row["rule"], "revoked.token", "{row}");
    while let Some(event) = stream.next().await? {
        assert!(event["result"].is_object(), "the stream ends: {event}");
    }
    issued.scene.world.github.release();
    assert_eq!(seen(&client).await?.0, 403);
    Ok(())
}

#[tokio::test]
async fn a_call_ends_with_its_token() -> Result<()> {
    let issued = Issued::start().await?;
    let mut claims = issued.claims("ann")?;
    // With the leeway of a minute, the token is accepted for ten seconds more.
    claims["exp"] = json!(now_s()? - 50);
    let client = issued.with(&issued.issuer.token("ES256", &claims)?);
    issued.scene.world.github.hold();
    let answer = client.call("test_echo_fetch", &json!({"path": "/user"})).await?;
    assert_eq!(answer["_meta"]["monstrum/status"], "permission_denied", "{answer}");
    issued.scene.world.github.release();
    assert_eq!(seen(&client).await?.0, 401);
    Ok(())
}

/// A task would not end with the token.
#[tokio::test]
async fn a_user_with_a_token_starts_no_task_of_another_bot() -> Result<()> {
    let issued = Issued::start().await?;
    let (api, bot) = (&issued.scene.world.api, &issued.scene.world.bot);
    let helper = api.bot("helper").await?;
    let resource = json!({ "resource_type": "bot", "name": "helper", "config": { "bot": helper } });
    let resource = made(api, "/api/resources", &resource).await?;
    let binding = json!({ "resource_id": resource, "permissions": { "allowed_operations": ["bot.*"] } });
    for bot in [bot, &helper] {
        made(api, &format!("/api/bots/{bot}/resources"), &binding).await?;
    }
    let client = issued.client("ann")?;
    for (tool, arguments) in [
        ("bot_execute_task", json!({ "instruction": "Do it." })),
        ("bot_query", json!({ "question": "Is it so?" })),
        ("bot_call_tool", json!({ "tool": "bot_query", "params": { "question": "Is it so?" } })),
    ] {
        let answer = client.call(tool, &arguments).await?;
        assert_eq!(answer["_meta"]["monstrum/status"], "permission_denied", "{tool}: {answer}");
    }
    let (_, refused) = api.get("/api/audit?rule=access_token").await?;
    assert_eq!(refused["items"].as_array().map(Vec::len), Some(3), "{refused}");
    let (_, list) = api.get("/api/tasks").await?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn the_metadata_is_alike_for_every_id() -> Result<()> {
    let issued = Issued::start().await?;
    let api = issued.scene.world.api.with_key("");
    let get = async |id: &str| api.get(&format!("/.well-known/oauth-protected-resource/mcp/{id}")).await;
    let (status, own) = get(&issued.scene.world.bot).await?;
    let shown = own.to_string().replace(&issued.scene.world.bot, "[id]").replace(&issued.issuer.url(), "[issuer]");
    assert_snapshot!(format!("{status} {shown}"), @r#"200 {"resource":"https://monstrum.example/mcp/[id]","authorization_servers":["[issuer]"],"scopes_supported":["mcp:tools"],"bearer_methods_supported":["header"]}"#);
    let absent = "01900000-0000-7000-8000-000000000000";
    let (status, other) = get(absent).await?;
    let other = other.to_string().replace(absent, "[id]").replace(&issued.issuer.url(), "[issuer]");
    assert_eq!((status, other), (200, shown));
    assert_eq!(get("tester").await?.0, 404);
    // A server without an issuer has no metadata, and takes every token for an unknown key.
    let plain = Scene::start().await?;
    let path = format!("/.well-known/oauth-protected-resource/mcp/{}", plain.world.bot);
    assert_eq!(plain.world.api.get(&path).await?.0, 404);
    let (status, told) = seen(&Client::new(&plain.world.api.with_key("a.b.c"), &plain.world.bot)).await?;
    assert_eq!((status, told["challenge"].as_str()), (401, Some("Bearer")), "{told}");
    Ok(())
}

#[tokio::test]
async fn only_an_admin_changes_the_subjects() -> Result<()> {
    let issued = Issued::start().await?;
    let world = &issued.scene.world;
    let path = format!("/api/bots/{}", world.bot);
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let mut answers = Answers::default();
    for (what, api, subjects) in [
        ("operator", &operator, json!(["*"])),
        ("empty pattern", &world.api, json!([""])),
        ("control character", &world.api, json!(["a", "b\n"])),
        ("too long", &world.api, json!(["a".repeat(257)])),
        ("too many", &world.api, json!(vec!["a"; 65])),
        ("not a list", &world.api, json!("ann")),
        ("a null", &world.api, json!([null])),
    ] {
        let (status, body) = api.patch(&path, &json!({ "mcp_subjects": subjects })).await?;
        answers.add(what, (status, json!({"detail": body["detail"], "errors": body["errors"]})));
    }
    let new = json!({"name": "new", "mcp_subjects": ["*"]});
    let (status, body) = operator.post("/api/bots", &new).await?;
    answers.add("a new bot by an operator", (status, json!({"detail": body["detail"]})));
    assert_snapshot!(answers, @r#"
    operator: 403 {"detail":"an admin key is required","errors":null}
    empty pattern: 422 {"detail":"/mcp_subjects/0: must be 1 to 256 bytes long and must not contain control characters","errors":[{"path":"/mcp_subjects/0","message":"must be 1 to 256 bytes long and must not contain control characters"}]}
    control character: 422 {"detail":"/mcp_subjects/1: must be 1 to 256 bytes long and must not contain control characters","errors":[{"path":"/mcp_subjects/1","message":"must be 1 to 256 bytes long and must not contain control characters"}]}
    too long: 422 {"detail":"/mcp_subjects/0: must be 1 to 256 bytes long and must not contain control characters","errors":[{"path":"/mcp_subjects/0","message":"must be 1 to 256 bytes long and must not contain control characters"}]}
    too many: 422 {"detail":"/mcp_subjects: must have at most 64 entries","errors":[{"path":"/mcp_subjects","message":"must have at most 64 entries"}]}
    not a list: 422 {"detail":"/mcp_subjects: invalid type: string \"ann\", expected a sequence","errors":[{"path":"/mcp_subjects","message":"invalid type: string \"ann\", expected a sequence"}]}
    a null: 422 {"detail":"/mcp_subjects/0: invalid type: null, expected a string","errors":[{"path":"/mcp_subjects/0","message":"invalid type: null, expected a string"}]}
    a new bot by an operator: 403 {"detail":"an admin key is required"}
    "#);
    assert_eq!(seen(&issued.client("eve")?).await?.0, 403);
    issued.admit(&Value::Null).await?;
    assert_eq!(seen(&issued.client("ann")?).await?.0, 403, "null admits no user");
    Ok(())
}

/// An attacker with write access to the database only cannot admit a user.
#[tokio::test]
async fn subjects_that_are_edited_in_the_database_admit_no_user() -> Result<()> {
    let issued = Issued::start().await?;
    let edit = "update bots set mcp_subjects = '[\"*\"]'";
    let bell = "update settings set generation = generation + 1";
    crate::tamper::sqlite(&issued.scene.world.server.data_dir(), &["begin immediate", edit, bell, "commit"]).await?;
    let (ann, eve) = (issued.client("ann")?, issued.client("eve")?);
    // The host does not serve a bot whose row was edited, so the edit also ends the access of Ann.
    let noticed = eventually("the edit is noticed", async || {
        let (status, told) = seen(&eve).await?;
        ensure!(status != 200, "{told}");
        Ok((seen(&ann).await?.0 != 200).then_some(()))
    });
    noticed.await?;
    assert_ne!(seen(&eve).await?.0, 200);
    Ok(())
}
