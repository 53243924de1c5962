//! Keys at rest: the keys that seal the secrets of a server, their rotation, and what an attacker gains from a copied
//! folder.

pub(crate) mod backup;
mod events;
mod moved;
mod places;
mod rotation;
mod row_key;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::send;
use crate::world::{World, text};

/// A world whose bot may use several GitHub resources. Each resource has its own credential.
struct Secrets {
    world: World,
    resources: Vec<String>,
}

impl Secrets {
    async fn in_world(world: World, count: usize) -> Result<Secrets> {
        let role = world.api.role("reader", &["repo.read"]).await?;
        let mut resources = Vec::new();
        for number in 0..count {
            let resource = world.api.resource("github", &format!("GitHub {number}"), &world.github.url()).await?;
            world.api.token(&resource, &world.github.token()).await?;
            world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
            resources.push(resource);
        }
        let secrets = Secrets { world, resources };
        ensure!(!secrets.create().await?, "the answer was stored before the test made the request");
        Ok(secrets)
    }

    async fn make(count: usize) -> Result<Secrets> {
        Secrets::in_world(World::with(&["github"]).await?, count).await
    }

    /// Sends a request with an idempotency key. Returns whether the answer was a stored answer.
    async fn create(&self) -> Result<bool> {
        let request = self.world.api.request(Method::POST, "/api/bots").header("Idempotency-Key", "k-1");
        let (status, headers, body) = send(request.json(&json!({ "name": "kept" }))).await?;
        ensure!(status == 201, "{status} {body}");
        Ok(headers.contains_key("idempotent-replayed"))
    }

    /// Calls a tool with a resource.
    async fn call(&self, resource: &str) -> Result<Value> {
        let path = format!("/api/bots/{}/tools/github_get_repo/call", self.world.bot);
        let body = json!({ "params": { "repo": "acme/site" }, "resource_id": resource });
        let (status, answer) = self.world.api.post(&path, &body).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    }

    /// Starts the server and checks that every secret opens: a call succeeds with each credential, the stored answer is
    /// returned, and the audit verifies.
    async fn open_all(&mut self) -> Result<()> {
        self.world.server.restart().await?;
        self.world.api = self.world.server.api()?;
        self.serve().await?;
        let report = self.world.api.verify_audit().await?;
        ensure!(report["valid"] == true, "{report}");
        self.world.server.stop().await?;
        Ok(())
    }

    /// Uses every secret on the server to which the API belongs.
    async fn serve(&self) -> Result<()> {
        for resource in &self.resources {
            let answer = self.call(resource).await?;
            ensure!(answer["status"] == "success", "{answer}");
        }
        ensure!(self.create().await?, "the stored answer cannot be decrypted");
        Ok(())
    }

    /// Returns the lines of the file of master keys.
    fn ring(&self) -> Result<BTreeSet<String>> {
        let text = std::fs::read_to_string(self.world.server.data_dir().join("master.key"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns the versions of the master keys, oldest first.
    fn key_versions(&self) -> Result<Vec<u32>> {
        let mut versions = Vec::new();
        for line in self.ring()? {
            versions.push(line.split(' ').next().context("the line has no version")?.parse()?);
        }
        versions.sort_unstable();
        Ok(versions)
    }
}

/// Returns the error code of a failed call.
fn code(answer: &Value) -> &str {
    text(&answer["code"])
}
