//! What is called: one plugin, bots that may use it, and the parameters of every call.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::Api;

pub const PLUGIN: &str = "test-echo";
pub const TOOL: &str = "test_echo_run";
pub const OPERATION: &str = "echo.read";

/// Where the resource says that its upstream is. No call of the benches goes there.
const UPSTREAM: &str = "http://127.0.0.1:9";
/// Long enough to be looked for, and in no answer.
const TOKEN: &str = "bench-7f3a9c51e2d84b60";

/// A bot with a key of its own.
pub struct Bot {
    pub id: String,
    pub key: String,
}

/// Makes bots, each with a resource that holds a credential, and with ten patterns to its scope.
pub async fn bots(api: &Api, count: usize) -> Result<Vec<Bot>> {
    let mut bots = Vec::with_capacity(count);
    for number in 0..count {
        let id = api.bot(&format!("bench-{number}")).await?;
        api.grant(&id, PLUGIN, (UPSTREAM, TOKEN), &["echo.*"], &json!({ "repos": patterns() })).await?;
        let body = json!({ "name": format!("bench-{number}"), "kind": "bot", "bot_id": id });
        let (_, made) = api.post("/api/keys", &body).await?;
        let key = made["key"].as_str().with_context(|| format!("no key in {made}"))?.to_owned();
        bots.push(Bot { id, key });
    }
    Ok(bots)
}

/// Globs and literals; the last one is that of [`params`].
fn patterns() -> Vec<String> {
    let mut patterns: Vec<String> = (0..5).map(|number| format!("team-{number}/*")).collect();
    patterns.extend((5..9).map(|number| format!("team-{number}/site")));
    patterns.push("bench/r*".to_owned());
    patterns
}

/// 1 KB of JSON, the same every time.
pub fn params() -> Value {
    let item = |number: u32| {
        json!({ "id": 40_000 + number, "title": format!("The {number}. of some items"), "open": number.is_multiple_of(2),
            "labels": ["bug", "help wanted"], "score": f64::from(number) * 0.5 })
    };
    json!({ "repo": "bench/repo", "any": (0..9).map(item).collect::<Vec<_>>() })
}

/// The part of an answer that says that the call did what it should.
pub const SUCCESS: &[u8] = br#""status":"success""#;

/// The text of a call over HTTP.
pub fn request(bot: &Bot) -> Result<Vec<u8>> {
    let body = serde_json::to_string(&json!({ "params": params() })).context("JSON has a text")?;
    let head = format!(
        "POST /api/bots/{}/tools/{TOOL}/call HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        bot.id,
        bot.key,
        body.len()
    );
    Ok((head + &body).into_bytes())
}
