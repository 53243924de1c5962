//! Tests of the API, one file for each route or group of routes. The files mirror the tree of the URLs, and the tests
//! compare whole answers.

mod access;
mod audit;
mod bots;
mod budgets;
mod changes;
mod connections;
mod console;
mod credential;
mod errors;
mod export;
mod gates;
mod health;
mod idempotency;
mod import;
pub(crate) mod keys;
mod openapi;
mod overview;
mod pages;
mod pins;
mod plugins;
mod preconditions;
mod resource_types;
mod resources;
pub(crate) mod roles;
mod stats;
mod versions;
pub(crate) mod wakes;
mod workspaces;

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use regex::Regex;
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use support::Api;

use crate::stable::stable;

/// Answers as lines: a label, the status and the body. Values that differ between runs are replaced.
#[derive(Default)]
pub(crate) struct Answers(Vec<(String, u16, Value)>);

impl Answers {
    pub(crate) fn add(&mut self, label: &str, (status, body): (u16, Value)) {
        self.0.push((label.to_owned(), status, body));
    }
}

impl Display for Answers {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let keys = Regex::new("mk_[A-Za-z0-9_-]{5,43}").map_err(|_| fmt::Error)?;
        let bodies = stable(&self.0.iter().map(|(_, _, body)| body).cloned().collect());
        for ((label, status, _), body) in self.0.iter().zip(bodies.as_array().into_iter().flatten()) {
            let separator = if label.is_empty() { "" } else { ": " };
            let body = if body.is_null() { String::new() } else { format!(" {body}") };
            writeln!(formatter, "{label}{separator}{status}{}", keys.replace_all(&body, "[key]"))?;
        }
        Ok(())
    }
}

/// Formats a single answer.
pub(crate) fn one(answer: (u16, Value)) -> String {
    let mut answers = Answers::default();
    answers.add("", answer);
    answers.to_string()
}

/// Sends a request that the caller has completed.
pub(crate) async fn send(request: RequestBuilder) -> Result<(u16, HeaderMap, Value)> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok((status, headers, body))
}

/// Creates an object and returns its id.
pub(crate) async fn made(api: &Api, path: &str, body: &Value) -> Result<String> {
    let (status, answer) = api.post(path, body).await?;
    let id = answer["id"].as_str().with_context(|| format!("POST {path}: {status} {answer}"))?;
    Ok(id.to_owned())
}

/// Creates a workspace and returns the API of its admin.
pub(crate) async fn workspace(root: &Api, name: &str) -> Result<Api> {
    made(root, "/api/workspaces", &json!({ "name": name })).await?;
    let body = json!({ "name": "admin", "kind": "admin" });
    let request = root.request(reqwest::Method::POST, "/api/keys").header("Monstrum-Workspace", name).json(&body);
    let (_, _, key) = send(request).await?;
    Ok(root.with_key(key["key"].as_str().with_context(|| format!("the response contains no key: {key}"))?))
}
