//! The set-up for the measured calls: plugins, bots that may use the plugins, and parameters.

use anyhow::{Context, Result};
use monstrum_types::{BotId, RequestId, ResourceId};
use serde_json::{Value, json};
use support::{Api, Server};

use crate::bare::ExecuteRequest;

pub const PLUGIN: &str = "test-echo";
pub const TOOL: &str = "test_echo_run";
pub const OPERATION: &str = "echo.read";

/// The upstream URL of resources whose calls send no requests.
pub const NO_UPSTREAM: &str = "http://127.0.0.1:9";
/// A token that is long enough for redaction and occurs in no answer.
const TOKEN: &str = "bench-7f3a9c51e2d84b60";

/// A bot with its key.
pub struct Bot {
    pub id: String,
    pub key: String,
}

/// Creates bots. Each bot has a resource with a credential, and a scope of ten patterns.
pub async fn bots(api: &Api, count: usize) -> Result<Vec<Bot>> {
    let grants = [Grant::with_patterns()];
    let mut bots = Vec::with_capacity(count);
    for number in 0..count {
        bots.push(bot(api, &format!("bench-{number}"), NO_UPSTREAM, &grants).await?);
    }
    Ok(bots)
}

/// The permissions of a bot for one plugin.
pub struct Grant<'a> {
    pub plugin: &'a str,
    pub operations: &'a [&'a str],
    pub scope: Value,
}

impl<'a> Grant<'a> {
    /// Grants [`TOOL`], with a scope of ten patterns.
    pub fn with_patterns() -> Grant<'static> {
        Grant { plugin: PLUGIN, operations: &["echo.*"], scope: json!({ "repos": patterns() }) }
    }

    /// Grants all tools of the plugin, and no scope.
    pub fn all(plugin: &'a str) -> Grant<'a> {
        Grant { plugin, operations: &["*"], scope: json!({}) }
    }
}

/// Creates a bot. For each of `grants`, the bot has a resource at `upstream` with a credential.
pub async fn bot(api: &Api, name: &str, upstream: &str, grants: &[Grant<'_>]) -> Result<Bot> {
    let id = api.bot(name).await?;
    for Grant { plugin, operations, scope } in grants {
        api.grant(&id, plugin, (upstream, TOKEN), operations, scope).await?;
    }
    let (_, made) = api.post("/api/keys", &json!({ "name": name, "kind": "bot", "bot_id": id })).await?;
    let key = made["key"].as_str().with_context(|| format!("the answer has no key: {made}"))?.to_owned();
    Ok(Bot { id, key })
}

/// Returns globs and literals. The last pattern matches [`params`].
fn patterns() -> Vec<String> {
    let mut patterns: Vec<String> = (0..5).map(|number| format!("team-{number}/*")).collect();
    patterns.extend((5..9).map(|number| format!("team-{number}/site")));
    patterns.push("bench/r*".to_owned());
    patterns
}

/// Returns 1 KB of JSON. Every call returns the same JSON.
pub fn params() -> Value {
    let item = |number: u32| {
        json!({ "id": 40_000 + number, "title": format!("The {number}. of some items"), "open": number.is_multiple_of(2),
            "labels": ["bug", "help wanted"], "score": f64::from(number) * 0.5 })
    };
    json!({ "repo": "bench/repo", "any": (0..9).map(item).collect::<Vec<_>>() })
}

/// Creates the request that the host would send to the component for such a call.
pub fn bare_request() -> ExecuteRequest {
    let id = RequestId::new().to_string();
    ExecuteRequest {
        request_id: id.clone(),
        bot_id: BotId::new().to_string(),
        task_id: id,
        operation: OPERATION.to_owned(),
        tool_name: TOOL.to_owned(),
        params: params().to_string(),
        scope: Some(json!([{ "repos": patterns() }]).to_string()),
        resource_id: Some(ResourceId::new().to_string()),
        resource_config: json!({ "api_base": NO_UPSTREAM, "region": "eu" }).to_string(),
        delegate: None,
        locale: "en".to_owned(),
        deadline_ms: 30_000,
        context: "{}".to_owned(),
    }
}

/// The part of an answer that indicates a successful call.
pub const SUCCESS: &[u8] = br#""status":"success""#;

/// Returns the text of a call of [`TOOL`] over HTTP.
pub fn request(bot: &Bot) -> Result<Vec<u8>> {
    call(bot, TOOL, &params())
}

/// Returns the text of any call over HTTP.
pub fn call(bot: &Bot, tool: &str, params: &Value) -> Result<Vec<u8>> {
    let path = format!("/api/bots/{}/tools/{tool}/call", bot.id);
    text("POST", &path, &bot.key, &json!({ "params": params }))
}

/// Returns the text of a request over HTTP.
pub fn text(method: &str, path: &str, key: &str, body: &Value) -> Result<Vec<u8>> {
    let body = serde_json::to_string(body).context("cannot serialize the body")?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    Ok((head + &body).into_bytes())
}

/// Returns the requests of `count` connections, from these bots in turn.
pub fn requests(bots: &[Bot], count: usize) -> Result<Vec<Vec<u8>>> {
    bots.iter().cycle().take(count).map(request).collect()
}

/// Returns the host and port of a running server.
pub fn address(server: &Server) -> Result<String> {
    let url = server.url().context("the server is not running")?;
    Ok(url.strip_prefix("http://").context("the URL of the server does not start with http://")?.to_owned())
}
