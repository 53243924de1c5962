//! What an apply would change: the permissions that each bot gains and loses, and what is deleted.

use serde_json::Value;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::names::Noun;
use super::super::{binding, objects, output};
use super::document::{Binding, Lines};
use super::schedules;

/// The changes of a planned import.
pub(super) struct Shown {
    lines: Vec<String>,
    /// The number of objects that are created or changed.
    pub(super) changes: u64,
}

impl Shown {
    pub(super) fn of(planned: &Value) -> Shown {
        let (mut lines, mut changes) = (Vec::new(), 0);
        for workspace in planned["workspaces"].as_array().into_iter().flatten() {
            for (verb, counts) in [("create", &workspace["created"]), ("change", &workspace["changed"])] {
                let counted = counts.as_object().into_iter().flatten();
                let parts: Vec<String> = counted
                    .filter_map(|(noun, count)| Some((noun, count.as_u64().filter(|count| *count > 0)?)))
                    .map(|(noun, count)| {
                        changes += count;
                        let noun = if count == 1 { noun.trim_end_matches('s') } else { noun };
                        format!("{count} {noun}")
                    })
                    .collect();
                if !parts.is_empty() {
                    lines.push(format!("{verb} {}", parts.join(", ")));
                }
            }
            for bot in workspace["permissions"].as_array().into_iter().flatten() {
                lines.push(format!("bot {}:", output::cell(&bot["bot"])));
                for (sign, grants) in [("-", &bot["loses"]), ("+", &bot["gains"])] {
                    lines.extend(
                        grants.as_array().into_iter().flatten().map(|grant| format!("  {sign} {}", sentence(grant))),
                    );
                }
            }
            for (what, field) in [("gates of bot", "gates"), ("labels of resource", "labels")] {
                for change in workspace[field].as_array().into_iter().flatten() {
                    let name = output::cell(if field == "gates" { &change["bot"] } else { &change["resource"] });
                    lines.push(format!("{what} {name}:"));
                    lines.push(format!("  - {}", change["before"]));
                    lines.push(format!("  + {}", change["after"]));
                }
            }
            if let Some(count) = workspace["permissions_left_out"].as_u64().filter(|count| *count > 0) {
                lines.push(format!("… and {count} more changes of permissions"));
            }
        }
        Shown { lines, changes }
    }

    /// Prints the plan to standard output: the changes of the import, and the changes `rest` that follow it.
    pub(super) fn print(&self, rest: &[String]) -> Result<(), Failure> {
        for line in self.lines.iter().chain(rest) {
            output::line(output::plain(line))?;
        }
        Ok(())
    }
}

/// Formats a grant: `tracker with role reader (operations: *.read; tools: any), repos: acme/*`.
fn sentence(grant: &Value) -> String {
    if grant["kind"] == "sandbox" {
        return "a sandbox in each conversation".to_owned();
    }
    let mut parts = vec![output::cell(&grant["resource"])];
    let role = &grant["role"];
    if !role.is_null() {
        let scopes = objects::scopes(&role["scope_constraints"]);
        let scopes = if scopes.is_empty() { scopes } else { format!("; {scopes}") };
        parts.push(format!("role {} ({}{scopes})", output::cell(&role["name"]), lists(role)));
    }
    if !grant["permissions"].is_null() {
        parts.push(format!("permissions {}", lists(&grant["permissions"])));
    }
    let scopes = objects::scopes(&grant["scope_constraints"]);
    if !scopes.is_empty() {
        parts.push(format!("scopes {scopes}"));
    }
    for (name, field) in [
        ("delegate", "delegate"),
        ("gates", "gates"),
        ("calls", "allow_calls"),
        ("limits", "limits"),
        ("calls per minute", "calls_per_minute"),
        ("until", "expires_at"),
    ] {
        if !objects::is_empty(&grant[field]) {
            parts.push(format!("{name} {}", output::cell(&grant[field])));
        }
    }
    parts.join(", ")
}

fn lists(holder: &Value) -> String {
    let [operations, tools] = ["allowed_operations", "allowed_tools"].map(|field| objects::globs(&holder[field]));
    format!("operations: {operations}; tools: {tools}")
}

/// The objects that the files do not contain, in an order in which they can be deleted.
#[derive(Default)]
pub(super) struct Pruning(Vec<Deletion>);

struct Deletion {
    name: String,
    path: Vec<String>,
    /// The object as it was when the changes were planned.
    present: Value,
}

impl Pruning {
    /// Compares the objects of the server with those of the files.
    pub(super) async fn plan(client: &Client, lines: &Lines) -> Result<Pruning, Failure> {
        let mut pruning = Pruning::default();
        for extra in schedules::extra(lines, client).await? {
            pruning.add(format!("schedule {}", extra.name), &["api", "schedules"], extra.present);
        }
        let by_name = async |noun: Noun| -> Result<Vec<Value>, Failure> {
            let mut items = client.items(&["api", noun.segment()], &[]).await?;
            items.sort_by_key(|item| output::cell(&item["name"]));
            Ok(items)
        };
        let (bots, resources) = (by_name(Noun::Bot).await?, by_name(Noun::Resource).await?);
        let roles = by_name(Noun::Role).await?;
        for bot in &bots {
            let (id, name) = (output::cell(&bot["id"]), output::cell(&bot["name"]));
            for present in binding::of_bot(client, &id).await? {
                let resource = resources.iter().find(|resource| resource["id"] == present["resource_id"]);
                let resource = resource.map(|resource| output::cell(&resource["name"])).unwrap_or_default();
                let named = lines.configurations().flat_map(|file| &file.bots).filter(|named| named.name == name);
                let mut bindings = named.flat_map(|bot| &bot.bindings);
                if !bindings.any(|binding: &Binding| binding.resource == resource) {
                    let path = ["api", "bots", &id, "resources"];
                    pruning.add(format!("binding of {name} and {resource}"), &path, present);
                }
            }
        }
        for (noun, items) in [(Noun::Bot, bots), (Noun::Resource, resources), (Noun::Role, roles)] {
            for present in items {
                let name = output::cell(&present["name"]);
                let is_named = lines.configurations().any(|file| match noun {
                    Noun::Bot => file.bots.iter().any(|bot| bot.name == name),
                    Noun::Resource => file.resources.iter().any(|resource| resource.name == name),
                    _ => file.roles.iter().any(|role| role.name == name),
                });
                if !is_named {
                    pruning.add(format!("{} {name}", noun.word()), &["api", noun.segment()], present);
                }
            }
        }
        Ok(pruning)
    }

    /// Adds an object, whose path follows `path`.
    fn add(&mut self, name: String, path: &[&str], present: Value) {
        let id = output::cell(&present["id"]);
        let path = path.iter().map(|segment| (*segment).to_owned()).chain([id]).collect();
        self.0.push(Deletion { name, path, present });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|deletion| deletion.name.clone()).collect()
    }

    /// Deletes the objects. An object that another command has changed since the plan stays, and the command fails.
    pub(super) async fn run(&self, client: &Client) -> Result<(), Failure> {
        for Deletion { name, path, present } in &self.0 {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let deleted = client.delete_present(&path, present).await;
            deleted.map_err(|failure| failure.about(&output::plain(name)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grants_are_sentences() {
        let grant = json!({ "kind": "binding", "resource": "tracker", "role": { "name": "reader",
            "allowed_operations": ["*.read"], "allowed_tools": null, "scope_constraints": {}, "gates": [] },
            "permissions": null, "scope_constraints": { "repos": ["acme/*"] }, "delegate": null, "gates": [],
            "allow_calls": [], "allow_subscribe": false, "limits": null, "calls_per_minute": 5, "expires_at": null });
        let expected =
            "tracker, role reader (operations: *.read; tools: any), scopes repos: acme/*, calls per minute 5";
        assert_eq!(sentence(&grant), expected);
        let planned = json!({ "workspaces": [{ "created": { "roles": 1, "bots": 2, "resources": 0 }, "changed": {},
            "permissions": [{ "bot": "helper", "gains": [grant], "loses": [{ "kind": "sandbox" }] }],
            "gates": [], "labels": [], "permissions_left_out": 0 }] });
        let shown = Shown::of(&planned);
        assert_eq!(shown.changes, 3);
        let gained = format!("  + {expected}");
        let lines = ["create 1 role, 2 bots", "bot helper:", "  - a sandbox in each conversation", &gained];
        assert_eq!(shown.lines, lines);
    }
}
