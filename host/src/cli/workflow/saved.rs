//! The commands on saved workflows.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::names::{self, Noun};
use crate::cli::{objects, output};

/// Saves a definition: creates the workflow that it names, or a new version of it.
pub(super) async fn apply(client: &Client, file: &Path, text: String, is_json: bool) -> Result<(), Failure> {
    let body = json!({ "definition": text });
    let valid =
        client.post(&["api", "workflows", "validate"], Some(&body)).await.map_err(|error| about(error, file))?;
    let name = names::text(&valid, "name")?;
    let items = client.items(&["api", "workflows"], &[]).await?;
    let Some(known) = items.iter().find(|item| item["name"] == name.as_str()) else {
        let created = client.post(&["api", "workflows"], Some(&body)).await.map_err(|error| about(error, file))?;
        warn(&created, file);
        return objects::tell_created(&without_warnings(created), "workflow", &name, is_json);
    };
    let id = names::text(known, "id")?;
    let changed = client.patch(&["api", "workflows", &id], &body).await.map_err(|error| about(error, file))?;
    warn(&changed, file);
    if changed["version"] == known["version"] {
        return output::done(is_json, &changed, &format!("workflow {name} has not changed"));
    }
    let text = format!("saved version {} of workflow {name}", output::cell(&changed["version"]));
    output::done(is_json, &changed, &text)
}

fn about(error: Failure, file: &Path) -> Failure {
    error.about(&output::plain(&file.display().to_string()))
}

/// Prints the warnings about a definition, with their places.
fn warn(workflow: &Value, file: &Path) {
    for warning in workflow["warnings"].as_array().into_iter().flatten() {
        let [line, column, message] = ["line", "column", "message"].map(|field| output::cell(&warning[field]));
        output::warning(&output::plain(&format!("{}:{line}:{column}: {message}", file.display())));
    }
}

fn without_warnings(mut workflow: Value) -> Value {
    if let Some(fields) = workflow.as_object_mut() {
        fields.remove("warnings");
    }
    workflow
}

pub(super) async fn list(client: &Client, bot: Option<String>, is_json: bool) -> Result<(), Failure> {
    let mut query = Vec::new();
    if let Some(bot) = bot {
        query.push(("bot_id", names::id(client, Noun::Bot, &bot).await?));
    }
    let items = client.items(&["api", "workflows"], &query).await?;
    let header = ["ID", "NAME", "BOT", "VERSION", "ENABLED", "UPDATED"];
    let fields = ["id", "name", "bot_id", "version", "enabled", "updated_at"];
    output::list(&items, is_json, "there are no workflows; `monstrum workflow apply` creates one", header, fields)
}

/// Prints the definition of a workflow as it was saved, so that the output can be applied again.
pub(super) async fn show(client: &Client, workflow: &str, version: Option<u64>, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let shown = match version {
        Some(version) => client.get(&["api", "workflows", &id, "versions", &version.to_string()], &[]).await?,
        None => client.get(&["api", "workflows", &id], &[]).await?,
    };
    if is_json {
        return output::json(&shown);
    }
    match shown["definition"].as_str() {
        // The text may contain characters that a terminal would interpret.
        Some(text) => text.lines().try_for_each(|line| output::line(output::plain(line))),
        None => output::json(&shown["definition"]),
    }
}

pub(super) async fn versions(client: &Client, workflow: &str, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let mut items = client.items(&["api", "workflows", &id, "versions"], &[]).await?;
    if !is_json {
        for item in &mut items {
            item["saved_by"] = item["saved_by"]["id"].clone();
        }
    }
    let header = ["VERSION", "SAVED", "BY KEY", "DIGEST"];
    output::list(
        &items,
        is_json,
        "the workflow has no versions",
        header,
        ["version", "created_at", "saved_by", "digest"],
    )
}

pub(super) async fn enable(client: &Client, workflow: &str, is_enabled: bool, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let changed = client.patch(&["api", "workflows", &id], &json!({ "enabled": is_enabled })).await?;
    let name = output::cell(&changed["name"]);
    objects::tell_changed(&without_warnings(changed), "workflow", &name, is_json)
}
