//! OAuth by discovery: what an admin is shown, what is sent and where, and metadata and answers that are refused.

mod attacks;
mod oidc;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use support::{Api, AuthorizationServer, FakeMcp, Generation, McpReply, Server};

use super::{approve_all, discover, resource, tool};
use crate::cli::{parsed, told};
use crate::world::{World, text};

const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

/// A server whose resource `notes` is an MCP server that requires tokens of an authorization server.
struct Protected {
    world: World,
    mcp: FakeMcp,
    auth: AuthorizationServer,
    resource: String,
}

/// A page as a browser receives it.
struct Page {
    status: u16,
    location: Option<String>,
    cookie: Option<String>,
    text: String,
}

impl Protected {
    async fn start() -> Result<Protected> {
        Protected::on(Server::prepare(&[])?.argument("--sandbox").argument("off")).await
    }

    async fn on(server: Server) -> Result<Protected> {
        let world = World::on(server).await?;
        let mcp = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
        let auth = AuthorizationServer::start().await?;
        mcp.require_token("a token that was never issued");
        mcp.set_challenge("Bearer scope=\"notes:read notes:write\"");
        let resource = resource(&world, "notes", &mcp.url(), &json!({})).await?;
        let role = world.api.role("everything", &["*"]).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        let protected = Protected { world, mcp, auth, resource };
        protected.publish(&protected.mcp.url(), &protected.auth.issuer());
        Ok(protected)
    }

    /// Publishes the metadata of the protected resource.
    fn publish(&self, resource: &str, issuer: &str) {
        let metadata = json!({
            "resource": resource, "authorization_servers": [issuer], "scopes_supported": ["notes:read", "all"],
        });
        self.mcp.set_document(RESOURCE_METADATA, McpReply::json(200, &metadata));
    }

    fn api(&self) -> &Api {
        &self.world.api
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/resources/{}/{rest}", self.resource)
    }

    /// Looks for the authorization server. Returns the answer with any status.
    async fn look_up(&self) -> Result<(u16, Value)> {
        self.api().post(&self.path("oauth/discover"), &json!({})).await
    }

    async fn proposal(&self) -> Result<Value> {
        let (status, proposal) = self.look_up().await?;
        ensure!(status == 200, "{status} {proposal}");
        Ok(proposal)
    }

    /// Confirms a digest. Returns the answer with any status.
    async fn confirm(&self, digest: &Value) -> Result<(u16, Value)> {
        self.api().post(&self.path("oauth/confirm"), &json!({ "digest": digest })).await
    }

    async fn confirmed(&self) -> Result<Value> {
        let (status, provider) = self.confirm(&self.proposal().await?["digest"]).await?;
        ensure!(status == 200, "{status} {provider}");
        Ok(provider)
    }

    async fn providers(&self) -> Result<Value> {
        Ok(self.api().get("/api/oauth/providers").await?.1["items"].clone())
    }

    async fn credential(&self) -> Result<Value> {
        let (_, shown) = self.api().get(&format!("/api/resources/{}", self.resource)).await?;
        Ok(shown["credential"].clone())
    }

    /// Opens a page of the server like a browser, which has no key.
    async fn open(&self, url: &str, cookie: Option<&str>) -> Result<Page> {
        let own = self.world.server.url().context("the server is not running")?;
        let path = url.strip_prefix(own).with_context(|| format!("{url} is not a page of {own}"))?;
        let mut request = self.api().with_key("").request(Method::GET, path);
        if let Some(cookie) = cookie {
            request = request.header(COOKIE, cookie);
        }
        let answer = request.send().await?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (location, cookie) = (header(LOCATION), header(SET_COOKIE));
        let cookie = cookie.and_then(|cookie| cookie.split(';').next().map(str::to_owned));
        Ok(Page { status: answer.status().as_u16(), location, cookie, text: answer.text().await? })
    }

    /// Starts an authorization. Returns the URL of the authorization page, and the cookie of the browser.
    async fn begun(&self) -> Result<(String, String)> {
        let (status, started) = self.api().post(&self.path("oauth/start"), &json!({})).await?;
        ensure!(status == 200, "{status} {started}");
        let begun = self.open(text(&started["authorization_url"]), None).await?;
        ensure!(begun.status == 303, "{}", begun.text);
        Ok((begun.location.context("the page does not redirect")?, begun.cookie.context("the page sets no cookie")?))
    }

    /// Authorizes the resource, and lets the MCP server accept the new token.
    async fn authorized(&self) -> Result<()> {
        let (page, cookie) = self.begun().await?;
        let callback = self.auth.person_at(&page).await?;
        self.mcp.require_token(&self.auth.next_access_token());
        let page = self.open(&callback, Some(&cookie)).await?;
        ensure!(page.status == 200, "{}", page.text);
        Ok(())
    }

    /// Confirms the authorization server, authorizes the resource and approves the tool.
    async fn ready(&self) -> Result<Value> {
        let provider = self.confirmed().await?;
        self.authorized().await?;
        let discovery = discover(&self.world, &self.resource).await?;
        ensure!(discovery["status"] == "ok", "{discovery}");
        approve_all(&self.world, &self.resource, "write").await?;
        Ok(provider)
    }

    /// Calls the tool. Returns the status and the code of the answer, and the number of requests that it caused.
    async fn call(&self) -> Result<(Value, Value, usize)> {
        let before = self.mcp.params_of("tools/call").len();
        let answer = self.world.call("notes__note", &json!({"text": "a"})).await?;
        let sent = self.mcp.params_of("tools/call").len() - before;
        Ok((answer["status"].clone(), answer["code"].clone(), sent))
    }
}

fn query_of(url: &str) -> Result<BTreeMap<String, String>> {
    Ok(Url::parse(url)?.query_pairs().into_owned().collect())
}

#[tokio::test]
async fn an_admin_sees_a_proposal_before_anything_but_look_ups_is_sent() -> Result<()> {
    let protected = Protected::start().await?;
    let operator = protected.api().with_key(&protected.api().new_key("operator", None).await?);
    for rest in ["oauth/discover", "oauth/confirm"] {
        let (status, _) = operator.post(&protected.path(rest), &json!({ "digest": "sha256:0" })).await?;
        assert_eq!(status, 403, "{rest}");
    }
    let mut proposal = protected.proposal().await?;
    let issuer = protected.auth.issuer();
    let digest = proposal["digest"].take();
    let expires_at = proposal["expires_at"].take();
    assert!(text(&digest).starts_with("sha256:") && expires_at.is_string());
    assert_eq!(
        proposal,
        json!({
            "digest": null, "resource": protected.mcp.url(), "issuer": issuer,
            "authorization_url": format!("{issuer}/authorize"), "token_url": format!("{issuer}/token"),
            "registration_url": format!("{issuer}/register"), "token_auth": "client_secret_basic",
            "scopes": ["notes:read", "notes:write", "offline_access"], "registration": "dynamic", "expires_at": null,
        })
    );
    let sent = protected.auth.requests();
    assert!(!sent.is_empty() && sent.iter().all(|request| request.method == "GET" && request.body.is_empty()));
    assert!(sent.iter().all(|request| request.header("authorization").is_none()));
    assert_eq!(protected.providers().await?, json!([]));
    let (status, started) = protected.api().post(&protected.path("oauth/start"), &json!({})).await?;
    assert_eq!(status, 409, "{started}");
    assert!(text(&started["detail"]).contains("oauth/discover"), "{started}");

    let (status, provider) = protected.confirm(&digest).await?;
    assert_eq!(status, 200, "{provider}");
    assert_eq!(provider["resource_id"], json!(protected.resource));
    assert_eq!((&provider["issuer"], &provider["token_auth"]), (&json!(issuer), &json!("client_secret_basic")));
    assert_eq!(provider["has_client_secret"], true, "{provider}");
    let registrations = protected.auth.requests_for("/register");
    let [registration] = registrations.as_slice() else { anyhow::bail!("{registrations:?}") };
    let own = protected.world.server.url().context("the server is not running")?;
    assert_eq!(
        registration.json(),
        json!({
            "client_name": "Monstrum", "application_type": "web",
            "redirect_uris": [format!("{own}/api/oauth/callback")],
            "grant_types": ["authorization_code", "refresh_token", "client_credentials"],
            "response_types": ["code"], "token_endpoint_auth_method": "client_secret_basic",
            "scope": "notes:read notes:write offline_access",
        })
    );
    let (_, changes) = protected.api().get("/api/audit/changes").await?;
    assert!(changes.to_string().contains("oauth_provider.confirm"), "{changes}");
    Ok(())
}

#[tokio::test]
async fn every_request_for_a_token_names_the_resource() -> Result<()> {
    let protected = Protected::start().await?;
    let provider = protected.ready().await?;
    let url = protected.mcp.url();
    let asked = protected.auth.requests_for("/authorize");
    let asked = query_of(&format!("http://page/?{}", asked[0].query))?;
    assert_eq!(asked.get("resource"), Some(&url));
    assert_eq!(asked.get("scope").map(String::as_str), Some("notes:read notes:write offline_access"));
    assert_eq!(protected.call().await?, (json!("success"), Value::Null, 1));

    // A token that the server rejects once is refreshed once, and the call is sent once more.
    let before = protected.auth.forms().len();
    let rejected = protected.auth.access_token();
    protected.mcp.require_token("another token");
    assert_eq!(protected.call().await?, (json!("error"), json!("unauthenticated"), 2));
    assert_eq!(protected.auth.forms().len(), before + 1, "the token was refreshed once");
    assert_ne!(protected.auth.access_token(), rejected);
    protected.mcp.require_token(&protected.auth.access_token());
    assert_eq!(protected.call().await?, (json!("success"), Value::Null, 1));

    let forms = protected.auth.forms();
    let grants: Vec<&str> = forms.iter().map(|form| form["grant_type"].as_str()).collect();
    assert_eq!(grants, ["authorization_code", "refresh_token"]);
    for form in &forms {
        assert_eq!(form.get("resource"), Some(&url), "{form:?}");
        assert!(!form.contains_key("client_secret"), "the secret is sent by HTTP Basic only: {form:?}");
    }
    let tokens = protected.auth.requests_for("/token");
    let is_basic = |value: Option<&str>| value.is_some_and(|value| value.starts_with("Basic "));
    assert!(tokens.iter().all(|request| is_basic(request.header("authorization"))), "{tokens:?}");

    // The provider of the resource goes with the resource.
    let (status, _) = protected.api().delete(&format!("/api/bots/{}", protected.world.bot)).await?;
    assert_eq!(status, 204);
    let operator = protected.api().with_key(&protected.api().new_key("operator", None).await?);
    let path = format!("/api/resources/{}", protected.resource);
    assert_eq!(operator.delete(&path).await?.0, 403, "the resource has an OAuth provider");
    assert_eq!(protected.api().delete(&path).await?.0, 204);
    assert_eq!(protected.providers().await?, json!([]), "{provider}");
    Ok(())
}

/// A provider of the type serves the resources that have none of their own.
#[tokio::test]
async fn the_provider_of_a_resource_comes_before_the_one_of_its_type() -> Result<()> {
    let protected = Protected::start().await?;
    let of_type = AuthorizationServer::start().await?;
    let issuer = of_type.issuer();
    let new = json!({
        "resource_type": "mcp", "client_id": "of-the-type", "client_secret": "a secret of the type",
        "authorization_url": format!("{issuer}/authorize"), "token_url": format!("{issuer}/token"), "scopes": ["all"],
    });
    let (status, provider) = protected.api().post("/api/oauth/providers", &new).await?;
    ensure!(status == 201 && provider["resource_id"].is_null(), "{status} {provider}");
    let (page, _) = protected.begun().await?;
    assert!(page.starts_with(&format!("{issuer}/authorize?")), "{page}");

    protected.ready().await?;
    assert_eq!(protected.providers().await?.as_array().map(Vec::len), Some(2), "both providers exist");
    let (page, _) = protected.begun().await?;
    assert!(page.starts_with(&format!("{}/authorize?", protected.auth.issuer())), "{page}");
    assert_eq!(protected.credential().await?["status"], "ready");
    // A refresh uses the provider of the resource, too.
    protected.mcp.require_token(&protected.auth.next_access_token());
    assert_eq!(protected.call().await?, (json!("success"), Value::Null, 2));
    assert_eq!(protected.auth.forms().len(), 2);
    assert!(of_type.requests().is_empty(), "{:?}", of_type.requests());
    Ok(())
}

/// A token that the server rejects is refreshed, and the call with the new token succeeds.
#[tokio::test]
async fn a_token_that_is_rejected_once_is_refreshed() -> Result<()> {
    let protected = Protected::start().await?;
    protected.ready().await?;
    let next = protected.auth.next_access_token();
    protected.mcp.require_token(&next);
    assert_eq!(protected.call().await?, (json!("success"), Value::Null, 2));
    assert_eq!(protected.auth.access_token(), next);
    assert_eq!(protected.auth.forms().last().map(|form| form["grant_type"].clone()).as_deref(), Some("refresh_token"));
    Ok(())
}

#[tokio::test]
async fn a_client_obtains_a_token_for_itself() -> Result<()> {
    let protected = Protected::start().await?;
    protected.auth.set_metadata("token_endpoint_auth_methods_supported", &json!(["client_secret_post"]));
    protected.confirmed().await?;
    protected.mcp.require_token(&protected.auth.next_access_token());
    let own = json!({ "auth_method": "oauth2_client_creds", "fields": {} });
    let (status, credential) = protected.api().put(&protected.path("credential"), &own).await?;
    assert_eq!((status, &credential["status"]), (200, &json!("ready")), "{credential}");
    let forms = protected.auth.forms();
    let form = forms.last().context("the token endpoint was not asked")?;
    assert_eq!(form["grant_type"], "client_credentials");
    assert_eq!(form.get("resource"), Some(&protected.mcp.url()));
    assert_eq!(form.get("client_secret").map(String::as_str), Some(AuthorizationServer::CLIENT_SECRET));
    assert_eq!(protected.auth.requests_for("/token")[0].header("authorization"), None);
    let discovery = discover(&protected.world, &protected.resource).await?;
    assert_eq!(discovery["status"], "ok", "{discovery}");
    Ok(())
}

#[tokio::test]
async fn a_client_of_the_admin_is_used_if_the_confirmation_names_one() -> Result<()> {
    let protected = Protected::start().await?;
    protected.auth.set_metadata("registration_endpoint", &Value::Null);
    let proposal = protected.proposal().await?;
    assert_eq!(proposal["registration"], "given", "{proposal}");
    let confirm = async |more: Value| {
        let mut body = json!({ "digest": proposal["digest"] });
        body.as_object_mut().context("an object")?.extend(more.as_object().cloned().unwrap_or_default());
        protected.api().post(&protected.path("oauth/confirm"), &body).await
    };
    let (status, refused) = confirm(json!({})).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/client_id")), "{refused}");
    let (status, refused) = confirm(json!({"client_secret": "a secret of mine"})).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/client_id")), "{refused}");
    let (status, refused) = confirm(json!({"client_id": "mine", "client_secret": "short"})).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/client_secret")), "{refused}");
    let (status, provider) = confirm(json!({"client_id": "mine", "client_secret": "a secret of mine"})).await?;
    assert_eq!((status, &provider["client_id"]), (200, &json!("mine")), "{provider}");
    assert_eq!(provider["token_auth"], "client_secret_basic", "{provider}");
    // Without a secret, the same client is a public one.
    let (status, public) = confirm(json!({"client_id": "mine"})).await?;
    assert_eq!((status, &public["token_auth"]), (200, &json!("none")), "{public}");
    assert_eq!((&public["id"], &public["has_client_secret"]), (&provider["id"], &json!(false)), "{public}");
    Ok(())
}

#[tokio::test]
async fn a_server_with_https_is_a_client_by_the_url_of_its_document() -> Result<()> {
    let server = Server::prepare(&[])?.argument("--public-url=https://monstrum.example.com/agents");
    let protected = Protected::on(server.argument("--sandbox").argument("off")).await?;
    let id = "https://monstrum.example.com/agents/oauth/client.json";
    let (status, document) = protected.api().with_key("").get("/oauth/client.json").await?;
    assert_eq!(status, 200, "{document}");
    assert_eq!(
        document,
        json!({
            "client_id": id, "client_name": "Monstrum", "client_uri": "https://monstrum.example.com/agents/",
            "application_type": "web",
            "redirect_uris": ["https://monstrum.example.com/agents/api/oauth/callback"],
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        })
    );
    protected.auth.set_metadata("client_id_metadata_document_supported", &json!(true));
    let proposal = protected.proposal().await?;
    assert_eq!((&proposal["registration"], &proposal["token_auth"]), (&json!("client_id_metadata"), &json!("none")));
    let (status, provider) = protected.confirm(&proposal["digest"]).await?;
    assert_eq!((status, &provider["client_id"]), (200, &json!(id)), "{provider}");
    assert!(protected.auth.requests_for("/register").is_empty());
    Ok(())
}

/// A server that requires further scopes widens nothing: an admin sees them and decides.
#[tokio::test]
async fn missing_scopes_are_shown_and_never_requested_by_themselves() -> Result<()> {
    let protected = Protected::start().await?;
    let provider = protected.ready().await?;
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"notes:read notes:admin\"";
    let refusal = McpReply::text(403, "text/plain", "no").header("www-authenticate", challenge);
    protected.mcp.reply("tools/call", refusal);
    let forms = protected.auth.forms().len();
    let answer = protected.world.call("notes__note", &json!({})).await?;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("error"), &json!("unauthenticated")), "{answer}");
    let told = "the MCP server requires scopes that the credential does not have: notes:read notes:admin";
    assert_eq!(text(&answer["message"]), told);
    let credential = protected.credential().await?;
    assert_eq!(credential["status"], "needs-authorization", "{credential}");
    assert_eq!(credential["missing_scopes"], json!(["notes:read", "notes:admin"]), "{credential}");
    assert_eq!(protected.auth.forms().len(), forms, "no token was requested");
    let (page, _) = protected.begun().await?;
    let scopes = query_of(&page)?.get("scope").cloned();
    assert_eq!(scopes.as_deref(), Some("notes:read notes:write offline_access"), "the scopes were widened");

    // Other calls go on, and only an admin ends the state.
    protected.mcp.forget_reply("tools/call");
    assert_eq!(protected.call().await?, (json!("success"), Value::Null, 1));
    let path = format!("/api/oauth/providers/{}", text(&provider["id"]));
    let scopes = json!({ "scopes": ["notes:read", "notes:admin"] });
    assert_eq!(protected.api().patch(&path, &scopes).await?.0, 200);
    assert_eq!(protected.credential().await?["status"], "needs-authorization");
    protected.authorized().await?;
    let credential = protected.credential().await?;
    assert_eq!((&credential["status"], &credential["missing_scopes"]), (&json!("ready"), &Value::Null), "{credential}");
    Ok(())
}

#[tokio::test]
async fn the_command_line_shows_a_proposal_and_confirms_it() -> Result<()> {
    let protected = Protected::start().await?;
    let server = &protected.world.server;
    let shown = told(server, &["mcp", "oauth", "discover", "notes"]).await?;
    for part in ["issuer ", "token URL ", "notes:read", "dynamic", "[digest]", "[exit 0]"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let (code, refused) = parsed(server, &["mcp", "oauth", "confirm", "notes"]).await?;
    assert_ne!(code, Some(0), "confirmed without a question: {refused}");
    assert_eq!(protected.providers().await?, json!([]));
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("secret.txt");
    std::fs::write(&file, "a secret of mine\n")?;
    let file = file.to_str().context("the name of the temporary folder is not UTF-8")?;
    let given = ["--client-id", "mine", "--client-secret-file", file, "--yes"];
    let (code, provider) = parsed(server, &[&["mcp", "oauth", "confirm", "notes"], given.as_slice()].concat()).await?;
    assert_eq!((code, &provider["client_id"]), (Some(0), &json!("mine")), "{provider}");
    assert_eq!(provider["has_client_secret"], true, "{provider}");
    assert!(!provider.to_string().contains("a secret of mine"));
    Ok(())
}
