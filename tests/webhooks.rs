//! Webhooks: systems outside make events. A stranger learns nothing from a refusal, and makes no event.

mod command;
mod forged;
mod hosts;
mod objects;
mod requests;

use anyhow::{Context, Result, ensure};
use monstrum_core::events;
use monstrum_core::policy::row_seals;
use monstrum_store::{EventRow, StoreOptions};
use monstrum_types::Secret;
use monstrum_vault::{MasterKeys, Vault, hmac_sha256};
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use support::Api;

use crate::http::send;
use crate::world::{World, text};

/// A webhook and its secret.
struct Hook {
    id: String,
    secret: String,
}

/// A request to a webhook, before it is sent.
struct Sent {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Hook {
    /// Creates a webhook with these fields besides its name, event and kind.
    async fn create(api: &Api, name: &str, fields: &Value) -> Result<Hook> {
        let mut body = json!({ "name": name, "event": "x.made", "verify": { "kind": "hmac_sha256" } });
        if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
            body.extend(fields);
        }
        let (status, made) = api.post("/api/webhooks", &body).await?;
        ensure!(status == 201, "{status} {made}");
        Ok(Hook { id: text(&made["id"]).to_owned(), secret: text(&made["secret"]).to_owned() })
    }

    /// Returns a request that is signed with the secret.
    fn signed(&self, body: &str) -> Sent {
        let mac = hmac_sha256(&Secret::new(self.secret.clone()), body.as_bytes());
        let signature = ("X-Hub-Signature-256".to_owned(), format!("sha256={}", hex::encode(mac)));
        Sent { headers: vec![signature], body: body.as_bytes().to_vec() }
    }

    /// Returns a request with the secret as its token.
    fn with_token(&self, body: &str) -> Sent {
        let token = ("Authorization".to_owned(), format!("Bearer {}", self.secret));
        Sent { headers: vec![token], body: body.as_bytes().to_vec() }
    }

    fn path(&self) -> String {
        format!("/hooks/{}", self.id)
    }

    /// Sends a request, and returns its answer without the id of the request.
    async fn send(&self, api: &Api, sent: Sent) -> Result<(u16, Value)> {
        let (status, _, answer) = sent.to(api, &self.path()).await?;
        Ok((status, answer))
    }

    /// Makes an event and returns its id.
    async fn event(&self, api: &Api, sent: Sent) -> Result<String> {
        let (status, answer) = self.send(api, sent).await?;
        ensure!(status == 202, "{status} {answer}");
        Ok(text(&answer["event_id"]).to_owned())
    }
}

impl Sent {
    fn with(mut self, name: &str, value: &str) -> Sent {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    async fn to(self, api: &Api, path: &str) -> Result<(u16, HeaderMap, Value)> {
        let mut request = api.with_key("").request(Method::POST, path).body(self.body);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let (status, headers, mut answer) = send(request).await?;
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("request_id");
        }
        Ok((status, headers, answer))
    }
}

/// Returns the refusal of each request that is not authentic.
fn refused() -> (u16, Value) {
    let problem = json!({
        "type": "urn:monstrum:error:unauthenticated", "title": "A valid signature or token is required", "status": 401,
        "detail": "the webhook is unknown, or the signature or the token is wrong",
    });
    (401, problem)
}

/// Returns an event of the default workspace, and its data.
async fn event(world: &World, id: &str) -> Result<(EventRow, Value)> {
    let keys = world.server.data_dir().join("master.key");
    let store = StoreOptions::sqlite(world.server.data_dir().join("monstrum.db"));
    let store = row_seals::open_with_key_file(store, &keys).await?;
    let (_, workspaces) = world.api.get("/api/workspaces").await?;
    let workspace = text(&workspaces["items"][0]["id"]).parse()?;
    let row = store.event(workspace, id.parse()?).await?.context("the event does not exist")?;
    store.close().await;
    let vault = Vault::new(MasterKeys::open(&keys)?.context("the server has no master key")?);
    let data = events::open(&vault, &row)?;
    Ok((row, data))
}
