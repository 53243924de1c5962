//! The authorization code flow, from the begin page to a call with the token, and the attacks on this flow.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::{OauthServer, Server};

use super::{Authorizing, PLUGIN};
use crate::http::{Answers, workspace};
use crate::stable::stable;
use crate::world::text;

/// Returns the URL with the value of one query parameter replaced.
fn with_query(url: &str, name: &str, value: &str) -> Result<String> {
    let (page, query) = url.split_once('?').context("a query")?;
    let others = query.split('&').filter(|pair| !pair.starts_with(&format!("{name}=")));
    Ok(format!("{page}?{}", others.map(str::to_owned).chain([format!("{name}={value}")]).collect::<Vec<_>>().join("&")))
}

#[tokio::test]
async fn a_person_authorizes_in_a_browser_and_the_bot_gets_in() -> Result<()> {
    let mut credentials = Vec::new();
    for client in ["by-header", "by-body", "public"] {
        let authorizing = Authorizing::with(client).await?;
        ensure!(authorizing.credential().await?.is_null());
        authorizing.authorize().await?;
        let mut credential = authorizing.credential().await?;
        let expires_at = credential["expires_at"].take();
        assert!(expires_at.is_string(), "{client}: the credential has no expiry time");
        credentials.push(stable(&credential));
        let body = format!(r#"{{"client":"{client}","account":"person"}}"#);
        assert_eq!(authorizing.call().await?, json!([200, body, null]));
        assert_eq!(authorizing.oauth.grants("authorization_code").await?, 1, "{client}");
    }
    credentials.dedup();
    assert_snapshot!(json!(credentials), @r#"[{"status":"ready","method":"oauth2_auth_code","audience":["http://[upstream]"],"expires_at":null,"updated_at":"[time]"}]"#);
    Ok(())
}

#[tokio::test]
async fn the_begin_page_sends_on_with_a_challenge_and_a_cookie() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let begun = authorizing.open(&authorizing.started().await?, None).await?;
    let location = begun.location.context("on to the provider")?;
    let (page, query) = location.split_once('?').context("a query")?;
    assert_eq!(page, format!("{}/auth", authorizing.oauth.url()));
    let names: Vec<&str> = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method"]
    );
    assert!(query.contains("scope=openid+repo") && query.ends_with("code_challenge_method=S256"), "{query}");
    let cookie = begun.cookie.context("a cookie")?;
    let (_, attributes) = cookie.split_once(';').context("attributes")?;
    assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax; Max-Age=600");
    Ok(())
}

#[tokio::test]
async fn behind_https_the_cookie_is_for_this_host_only() -> Result<()> {
    let server = Server::prepare(&[PLUGIN])?.argument("--public-url=https://monstrum.example.com/agents/");
    let authorizing = Authorizing::without_provider(server).await?;
    let provider = authorizing.oauth.provider(PLUGIN, "by-header");
    authorizing.api().post("/api/oauth/providers", &provider).await?;
    let begin = authorizing.started().await?;
    let ticket = begin.strip_prefix("https://monstrum.example.com/agents/oauth/begin/").context("the public URL")?;
    let own = authorizing.world.server.url().context("it runs")?;
    let begun = authorizing.open(&format!("{own}/oauth/begin/{ticket}"), None).await?;
    let cookie = begun.cookie.context("a cookie")?;
    assert!(cookie.starts_with("__Host-monstrum-oauth-") && cookie.ends_with("; Secure"), "{cookie}");
    let location = begun.location.context("on to the provider")?;
    let back = "redirect_uri=https%3A%2F%2Fmonstrum.example.com%2Fagents%2Fapi%2Foauth%2Fcallback";
    assert!(location.contains(back), "{location}");
    Ok(())
}

#[tokio::test]
async fn a_link_is_for_one_browser() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let begin = authorizing.started().await?;
    let path = begin.strip_prefix(authorizing.world.server.url().context("it runs")?).context("a page of ours")?;
    assert_eq!(authorizing.api().with_key("").request(Method::HEAD, path).send().await?.status(), 200);
    let first = authorizing.open(&begin, None).await?;
    let cookie = first.cookie.as_deref().and_then(|cookie| cookie.split(';').next()).context("a cookie")?.to_owned();
    let mut seen = Vec::new();
    for (who, cookie) in [
        ("another browser", None),
        ("a made-up cookie", Some("monstrum-oauth-x=y")),
        ("the same", Some(cookie.as_str())),
    ] {
        let page = authorizing.open(&begin, cookie).await?;
        seen.push(format!("{who}: {} {}", page.status, page.location.is_some()));
    }
    assert_eq!(seen, ["another browser: 400 false", "a made-up cookie: 400 false", "the same: 303 true"]);
    let nowhere = authorizing.open(&format!("{}x", begin), None).await?;
    assert_snapshot!(nowhere.text, @r#"
    <!doctype html>
    <html lang="en">
    <meta charset="utf-8">
    <title>Not authorized</title>
    <h1>Not authorized</h1>
    <p>the link was used in another browser or has expired; start the authorization again</p>
    "#);
    Ok(())
}

#[tokio::test]
async fn an_answer_counts_once_and_in_the_browser_that_began() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let (callback, cookie) = authorizing.answered().await?;
    let (_, other) = authorizing.answered().await?;
    // The guessed cookie has the correct name, because an attacker may know the id of the flow.
    let (name, _) = cookie.split_once('=').context("a pair")?;
    let guessed = format!("{name}={}", "A".repeat(43));
    let mut seen = Vec::new();
    for (what, url, cookie) in [
        ("no cookie", callback.clone(), None),
        ("the cookie of another authorization", callback.clone(), Some(other.as_str())),
        ("a cookie that was guessed", callback.clone(), Some(guessed.as_str())),
        ("another state", with_query(&callback, "state", "x")?, Some(cookie.as_str())),
        ("no state", callback.split('?').next().unwrap_or_default().to_owned(), Some(cookie.as_str())),
        ("as it should be", callback.clone(), Some(cookie.as_str())),
        ("once more", callback.clone(), Some(cookie.as_str())),
    ] {
        seen.push(format!("{what}: {}", authorizing.open(&url, cookie).await?.status));
    }
    assert_eq!(
        seen,
        [
            "no cookie: 400",
            "the cookie of another authorization: 400",
            "a cookie that was guessed: 400",
            "another state: 400",
            "no state: 400",
            "as it should be: 200",
            "once more: 400",
        ]
    );
    assert_eq!(authorizing.oauth.grants("authorization_code").await?, 1);
    Ok(())
}

#[tokio::test]
async fn what_the_provider_refuses_is_told_as_text() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let mut told = Vec::new();
    let elsewhere = "https%3A%2F%2Fid.example";
    for change in [("error", "access_denied"), ("error", "%3Cscript%3E"), ("code", "not-a-code"), ("iss", elsewhere)] {
        let (callback, cookie) = authorizing.answered().await?;
        let page = authorizing.open(&with_query(&callback, change.0, change.1)?, Some(&cookie)).await?;
        let line = page.text.lines().find(|line| line.starts_with("<p>")).unwrap_or_default();
        told.push(format!("{} {line}", page.status));
    }
    assert_eq!(
        told,
        [
            "400 <p>the provider refused the authorization: access_denied</p>",
            "400 <p>the provider refused the authorization: script</p>",
            "502 <p>the provider answered `invalid_grant`: grant request is invalid</p>",
            "400 <p>the answer came from a provider other than the requested one; start the authorization again</p>",
        ]
    );
    ensure!(authorizing.credential().await?.is_null());
    Ok(())
}

/// The last page links to the page of the console from which an admin has started the authorization, after a failure
/// too. It never redirects there.
#[tokio::test]
async fn the_last_page_links_back_to_the_console() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let start = authorizing.path("oauth/start");
    let to = "/console/w/default/resources/1?tab=credential&x='<b>";
    let begin = async || -> Result<String> {
        let (status, body) = authorizing.api().post(&start, &json!({ "return_to": to })).await?;
        ensure!(status == 200, "{body}");
        Ok(text(&body["authorization_url"]).to_owned())
    };
    let (callback, cookie) = authorizing.answered_from(&begin().await?).await?;
    let refused = authorizing.open(&with_query(&callback, "error", "access_denied")?, Some(&cookie)).await?;
    assert_eq!((refused.status, refused.location), (400, None), "{}", refused.text);
    let (callback, cookie) = authorizing.answered_from(&begin().await?).await?;
    let stored = authorizing.open(&callback, Some(&cookie)).await?;
    assert_eq!((stored.status, stored.location), (200, None), "{}", stored.text);
    let link =
        "<p><a href=\"/console/w/default/resources/1?tab=credential&amp;x=&#39;&lt;b&gt;\">Back to the console</a></p>";
    for page in [&refused.text, &stored.text] {
        assert!(page.contains(link) && page.matches("<a ").count() == 1, "{page}");
    }

    // Without a path, and before the authorization is known, the page has no link.
    let (callback, cookie) = authorizing.answered().await?;
    assert!(!authorizing.open(&callback, Some(&cookie)).await?.text.contains("<a "));
    let unknown = authorizing.open(&with_query(&callback, "state", "unknown")?, Some(&cookie)).await?;
    assert!(unknown.status == 400 && !unknown.text.contains("<a "), "{}", unknown.text);
    Ok(())
}

#[tokio::test]
async fn only_a_path_of_the_console_is_linked() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    for to in [
        "/welcome",
        "/consoles",
        "//console",
        "/console//evil.example",
        "/console/../docs",
        "/console/%2e%2e/docs",
        "/console\\evil",
        "/console/\n",
        "https://evil.example/console",
        "javascript:alert(1)",
    ] {
        for route in ["oauth/start", "oauth/device"] {
            let (status, body) = authorizing.api().post(&authorizing.path(route), &json!({ "return_to": to })).await?;
            assert_eq!((status, &body["errors"][0]["path"]), (422, &json!("/return_to")), "{route} {to}: {body}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_changes_on_the_way_ends_it() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let resource = format!("/api/resources/{}", authorizing.resource);
    let (_, providers) = authorizing.api().get("/api/oauth/providers").await?;
    let provider = format!("/api/oauth/providers/{}", providers["items"][0]["id"].as_str().unwrap_or_default());
    let elsewhere = json!({ "config": { "api_base": "https://elsewhere.example" } });
    let other_client = json!({ "client_id": "by-body", "client_secret": OauthServer::CLIENT_SECRET });
    let mut told = Vec::new();
    for (what, path, change) in [
        ("the resource goes elsewhere", Some(&resource), elsewhere),
        ("the provider is another", Some(&provider), other_client),
        ("nothing", None, Value::Null),
    ] {
        let (callback, cookie) = authorizing.answered().await?;
        if let Some(path) = path {
            let (status, body) = authorizing.api().patch(path, &change).await?;
            ensure!(status == 200, "{body}");
        }
        let page = authorizing.open(&callback, Some(&cookie)).await?;
        told.push(format!("{what}: {}", page.status));
        let back = json!({ "config": { "api_base": authorizing.oauth.api() } });
        authorizing.api().patch(&resource, &back).await?;
    }
    assert_eq!(told, ["the resource goes elsewhere: 400", "the provider is another: 400", "nothing: 200"]);
    Ok(())
}

#[tokio::test]
async fn starting_needs_a_method_a_provider_and_a_way_back() -> Result<()> {
    let server = Server::prepare(&[PLUGIN, "github"])?.listening_on("0.0.0.0:0");
    let authorizing = Authorizing::without_provider(server).await?;
    let api = authorizing.api();
    let mut answers = Answers::default();
    let start = authorizing.path("oauth/start");
    answers.add("no way back", api.post(&start, &json!({})).await?);
    answers.add("no provider for a device", api.post(&authorizing.path("oauth/device"), &json!({})).await?);
    let github = api.resource("github", "github", "http://127.0.0.1:1").await?;
    answers.add("no such method", api.post(&format!("/api/resources/{github}/oauth/device"), &json!({})).await?);
    answers.add("nothing to refresh", api.post(&authorizing.path("oauth/refresh"), &json!({})).await?);
    api.token(&authorizing.resource, "a-token-by-hand").await?;
    answers.add("not to be refreshed", api.post(&authorizing.path("oauth/refresh"), &json!({})).await?);
    answers.add("more than there is", api.post(&start, &json!({ "redirect_uri": "https://evil.example" })).await?);
    assert_snapshot!(answers, @r#"
    no way back: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"browsers cannot return to this server: it has no public URL and does not listen on loopback only; set --public-url","request_id":"[id 1]"}
    no provider for a device: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"no OAuth provider is confirmed for resource type `test-echo`; create one at /api/oauth/providers","request_id":"[id 2]"}
    no such method: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"this resource type has no auth method `oauth2_device_code`","request_id":"[id 3]"}
    nothing to refresh: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such credential","request_id":"[id 4]"}
    not to be refreshed: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"this credential cannot be refreshed: it was not obtained through OAuth, or has no refresh token","request_id":"[id 5]"}
    more than there is: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/redirect_uri: unknown field `redirect_uri`, expected `user` or `return_to`","request_id":"[id 6]","errors":[{"path":"/redirect_uri","message":"unknown field `redirect_uri`, expected `user` or `return_to`"}]}
    "#);
    Ok(())
}

#[tokio::test]
async fn another_workspace_sees_and_starts_nothing() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let foreign = workspace(authorizing.api(), "foreign").await?;
    let mut seen = Vec::new();
    for route in ["oauth/start", "oauth/device", "oauth/refresh"] {
        seen.push(foreign.post(&authorizing.path(route), &json!({})).await?.0);
    }
    let (_, list) = foreign.get("/api/oauth/providers").await?;
    assert_eq!((seen, list["items"].clone()), (vec![404; 3], json!([])));
    // Another workspace can have its own provider for the same type.
    let own = foreign.post("/api/oauth/providers", &authorizing.oauth.provider(PLUGIN, "public")).await?;
    assert_eq!(own.0, 201, "{}", own.1);
    Ok(())
}

#[tokio::test]
async fn what_is_taken_from_a_key_takes_along_what_it_has_begun() -> Result<()> {
    let mut authorizing = Authorizing::with("by-header").await?;
    let root = authorizing.api().clone();
    let (_, made) = root.post("/api/keys", &json!({ "name": "stolen", "kind": "admin" })).await?;
    authorizing.world.api = root.with_key(made["key"].as_str().context("a key")?);
    let (callback, cookie) = authorizing.answered().await?;
    let (status, _) = root.delete(&format!("/api/keys/{}", made["id"].as_str().context("an id")?)).await?;
    assert_eq!(status, 204);
    assert_eq!(authorizing.open(&callback, Some(&cookie)).await?.status, 400);
    assert_eq!(authorizing.oauth.grants("authorization_code").await?, 0, "the code was redeemed");
    Ok(())
}
