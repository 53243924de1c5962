//! A client of the API: plain requests, and the steps that most tests begin with.

use anyhow::{Context, Result, bail};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::install_tls;

/// The API of one server, with one key.
#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    url: String,
    key: String,
}

/// A resource that a bot may use.
#[derive(Clone, Debug)]
pub struct Bound {
    pub resource: String,
    pub binding: String,
}

impl Api {
    /// Creates a client for the API at `url`, which starts with `http://`, with `key`.
    pub fn new(url: &str, key: &str) -> Result<Api> {
        install_tls();
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tls_certs_only([]);
        Ok(Api { http: http.build()?, url: url.trim_end_matches('/').to_owned(), key: key.to_owned() })
    }

    /// Returns a client for the same server with another key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Api {
        Api { key: key.to_owned(), ..self.clone() }
    }

    /// Returns the key in use.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Creates a request that the caller completes. `path` starts with a slash and may have a query.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        if self.key.is_empty() { request } else { request.bearer_auth(&self.key) }
    }

    pub async fn get(&self, path: &str) -> Result<(u16, Value)> {
        answer(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        answer(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        answer(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        answer(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<(u16, Value)> {
        answer(self.request(Method::DELETE, path)).await
    }

    /// Creates a bot and returns its id.
    pub async fn bot(&self, name: &str) -> Result<String> {
        id(&self.made("/api/bots", &json!({ "name": name })).await?)
    }

    /// Creates a role that allows `operations` and returns its id.
    pub async fn role(&self, name: &str, operations: &[&str]) -> Result<String> {
        id(&self.made("/api/roles", &json!({ "name": name, "allowed_operations": operations })).await?)
    }

    /// Creates a resource whose upstream is `api_base` on this machine, and returns its id.
    pub async fn resource(&self, resource_type: &str, name: &str, api_base: &str) -> Result<String> {
        let body = json!({
            "resource_type": resource_type, "name": name, "config": { "api_base": api_base },
            "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true },
        });
        id(&self.made("/api/resources", &body).await?)
    }

    /// Saves a token as the credential of a resource.
    pub async fn token(&self, resource: &str, token: &str) -> Result<Value> {
        let body = json!({ "auth_method": "token", "fields": { "access_token": token } });
        expect(200, self.put(&format!("/api/resources/{resource}/credential"), &body).await?)
    }

    /// Binds a resource to a bot and returns the id of the binding.
    pub async fn bind(&self, bot: &str, resource: &str, role: &str, scope_constraints: &Value) -> Result<String> {
        let body = json!({ "resource_id": resource, "role_id": role, "scope_constraints": scope_constraints });
        id(&self.made(&format!("/api/bots/{bot}/resources"), &body).await?)
    }

    /// Creates a resource of `resource_type` with a token, and binds it to `bot` with a role that allows `operations`.
    pub async fn grant(
        &self,
        bot: &str,
        resource_type: &str,
        upstream: (&str, &str),
        operations: &[&str],
        scope_constraints: &Value,
    ) -> Result<Bound> {
        let (api_base, token) = upstream;
        let name = format!("{resource_type}-of-{bot}");
        let resource = self.resource(resource_type, &name, api_base).await?;
        self.token(&resource, token).await?;
        let role = self.role(&name, operations).await?;
        let binding = self.bind(bot, &resource, &role, scope_constraints).await?;
        Ok(Bound { resource, binding })
    }

    /// Calls a tool. Returns the answer with any status.
    pub async fn call(&self, bot: &str, tool: &str, params: &Value) -> Result<Value> {
        let path = format!("/api/bots/{bot}/tools/{tool}/call");
        expect(200, self.post(&path, &json!({ "params": params })).await?)
    }

    /// Checks whether a call would be allowed.
    pub async fn check(&self, bot: &str, tool: &str, params: &Value) -> Result<Value> {
        let path = format!("/api/bots/{bot}/tools/{tool}/check");
        expect(200, self.post(&path, &json!({ "params": params })).await?)
    }

    /// Returns the audit of one call.
    pub async fn audit(&self, request_id: &str) -> Result<Value> {
        expect(200, self.get(&format!("/api/audit/{request_id}")).await?)
    }

    /// Verifies the audit.
    pub async fn verify_audit(&self) -> Result<Value> {
        expect(200, self.get("/api/audit/verify").await?)
    }

    /// Creates a key and returns its text.
    pub async fn new_key(&self, kind: &str, bot: Option<&str>) -> Result<String> {
        let mut body = json!({ "name": format!("a {kind} key"), "kind": kind });
        if let Some(bot) = bot {
            body["bot_id"] = json!(bot);
        }
        let made = self.made("/api/keys", &body).await?;
        Ok(made["key"].as_str().context("the new key has no text")?.to_owned())
    }

    async fn made(&self, path: &str, body: &Value) -> Result<Value> {
        expect(201, self.post(path, body).await?).with_context(|| format!("POST {path}"))
    }
}

/// Returns the status and the body: null for an empty body, a string for a body that is not JSON.
async fn answer(request: RequestBuilder) -> Result<(u16, Value)> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let text = response.text().await?;
    let body = match serde_json::from_str(&text) {
        Ok(json) => json,
        Err(_) if text.is_empty() => Value::Null,
        Err(_) => Value::String(text),
    };
    Ok((status, body))
}

fn expect(wanted: u16, (status, body): (u16, Value)) -> Result<Value> {
    if status != wanted {
        bail!("expected {wanted}, the server answered {status}: {body}");
    }
    Ok(body)
}

fn id(made: &Value) -> Result<String> {
    Ok(made["id"].as_str().with_context(|| format!("the answer has no id: {made}"))?.to_owned())
}
