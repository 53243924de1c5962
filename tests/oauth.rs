//! OAuth against a real server: every flow, and the errors that each flow can cause.

mod browser;
mod device;
mod providers;
mod refresh;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use serde_json::{Value, json};
use support::{Api, OauthServer, Server};

use crate::call::plugins::edit;
use crate::world::{World, text};

/// A resource type that supports every kind of OAuth. Its tool `test_echo_fetch` sends the given request.
pub(crate) const PLUGIN: &str = "test-echo";
const METHODS: &str = r#"
    - method: oauth2_auth_code
      label: OAuth
      oauth_config:
        authorization_url: https://manifest.example/auth
        token_url: https://manifest.example/token
        device_authorization_url: https://manifest.example/device
        scopes: [from-the-manifest]
    - method: oauth2_device_code
    - method: oauth2_client_creds
"#;

/// A Monstrum server, an OAuth server, and a resource whose API requires tokens of the OAuth server.
pub(crate) struct Authorizing {
    pub(crate) world: World,
    pub(crate) oauth: OauthServer,
    resource: String,
}

/// A page as a browser receives it.
pub(crate) struct Page {
    pub(crate) status: u16,
    location: Option<String>,
    cookie: Option<String>,
    pub(crate) text: String,
}

/// Adds the OAuth methods to the plugin of a prepared server.
fn teach(server: &Server) -> Result<()> {
    let methods = format!("  auth_methods:{METHODS}");
    edit(&server.plugins_dir().join(PLUGIN), |manifest| manifest.replace("  auth_methods:\n", &methods))
}

impl Authorizing {
    /// Creates the servers, with a provider for this client of the OAuth server.
    pub(crate) async fn with(client: &str) -> Result<Authorizing> {
        let authorizing = Authorizing::without_provider(Server::prepare(&[PLUGIN])?).await?;
        let provider = authorizing.oauth.provider(PLUGIN, client);
        let (status, body) = authorizing.world.api.post("/api/oauth/providers", &provider).await?;
        ensure!(status == 201, "{body}");
        Ok(authorizing)
    }

    pub(crate) async fn without_provider(server: Server) -> Result<Authorizing> {
        edit(&server.plugins_dir().join(PLUGIN), |manifest| {
            manifest.replace("  auth_methods:\n", &format!("  auth_methods:{METHODS}"))
        })?;
        let world = World::on(server).await?;
        let oauth = OauthServer::start().await?;
        let resource = world.api.resource(PLUGIN, "behind oauth", &oauth.api()).await?;
        let role = world.api.role("all", &["*"]).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        Ok(Authorizing { world, oauth, resource })
    }

    pub(crate) fn api(&self) -> &Api {
        &self.world.api
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/resources/{}/{rest}", self.resource)
    }

    /// Returns the credential as the API shows it.
    async fn credential(&self) -> Result<Value> {
        let (_, shown) = self.api().get(&format!("/api/resources/{}", self.resource)).await?;
        Ok(shown["credential"].clone())
    }

    /// Starts an authorization and returns the address of its begin page.
    pub(crate) async fn started(&self) -> Result<String> {
        let (status, body) = self.api().post(&self.path("oauth/start"), &json!({})).await?;
        ensure!(status == 200, "{body}");
        Ok(text(&body["authorization_url"]).to_owned())
    }

    /// Opens a page of the server like a browser, which has no key.
    pub(crate) async fn open(&self, url: &str, cookie: Option<&str>) -> Result<Page> {
        let own = self.world.server.url().context("the server is not running")?;
        let path = url.strip_prefix(own).with_context(|| format!("{url} is not a page of {own}"))?;
        let mut request = self.api().with_key("").request(Method::GET, path);
        if let Some(cookie) = cookie {
            request = request.header(COOKIE, cookie);
        }
        let answer = request.send().await?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (location, cookie) = (header(LOCATION), header(SET_COOKIE));
        Ok(Page { status: answer.status().as_u16(), location, cookie, text: answer.text().await? })
    }

    /// Signs in at the provider. Returns the callback URL to which the provider redirects, and the cookie of the
    /// browser.
    pub(crate) async fn answered(&self) -> Result<(String, String)> {
        self.answered_from(&self.started().await?).await
    }

    /// Signs in at the provider, from the begin page at this address.
    pub(crate) async fn answered_from(&self, begin: &str) -> Result<(String, String)> {
        let begun = self.open(begin, None).await?;
        ensure!(begun.status == 303, "{}", begun.text);
        let cookie = begun.cookie.as_deref().and_then(|cookie| cookie.split(';').next()).context("a cookie")?;
        let sent_to = begun.location.as_deref().context("the response does not redirect the browser")?;
        let ended = self.oauth.person_at(sent_to).await?;
        let callback =
            ended["url"].as_str().with_context(|| format!("the provider did not redirect to the callback: {ended}"))?;
        Ok((callback.to_owned(), cookie.to_owned()))
    }

    /// Authorizes with a browser from start to end.
    async fn authorize(&self) -> Result<()> {
        let (callback, cookie) = self.answered().await?;
        let page = self.open(&callback, Some(&cookie)).await?;
        ensure!(page.status == 200, "{}", page.text);
        Ok(())
    }

    /// Calls the API behind the tokens as the bot and returns the answer.
    pub(crate) async fn call(&self) -> Result<Value> {
        let answer = self.world.call("test_echo_fetch", &json!({ "path": "/me" })).await?;
        Ok(if answer["status"] == "success" {
            json!([answer["data"]["status"], answer["data"]["body"], answer["data"]["failure"]])
        } else {
            json!([answer["status"], answer["code"], answer["message"]])
        })
    }
}
