//! What an apply would change: the permissions that each bot gains and loses, and what is deleted.

use serde_json::Value;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::names::{self, Noun};
use super::super::{binding, objects, output};
use super::document::Lines;

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
pub(super) struct Pruning {
    bindings: Vec<(String, String)>,
    objects: Vec<(Noun, String)>,
}

impl Pruning {
    /// Compares the lines of an export with those of the files.
    pub(super) fn plan(exported: &[Value], lines: &Lines) -> Pruning {
        let mut pruning = Pruning::default();
        let bots = || lines.configurations().flat_map(|configuration| &configuration.bots);
        for line in exported.iter().filter(|line| line["kind"] == "binding") {
            let (bot, resource) = (output::cell(&line["bot"]), output::cell(&line["resource"]));
            let is_named = |binding: &super::document::Binding| binding.resource == resource;
            if !bots().any(|named| named.name == bot && named.bindings.iter().any(is_named)) {
                pruning.bindings.push((bot, resource));
            }
        }
        for (kind, noun) in [("bot", Noun::Bot), ("resource", Noun::Resource), ("role", Noun::Role)] {
            for line in exported.iter().filter(|line| line["kind"] == kind) {
                let name = output::cell(&line["name"]);
                let is_named = lines.configurations().any(|file| match noun {
                    Noun::Bot => file.bots.iter().any(|bot| bot.name == name),
                    Noun::Resource => file.resources.iter().any(|resource| resource.name == name),
                    _ => file.roles.iter().any(|role| role.name == name),
                });
                if !is_named {
                    pruning.objects.push((noun, name));
                }
            }
        }
        pruning
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.objects.is_empty()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let bindings = self.bindings.iter().map(|(bot, resource)| format!("binding of {bot} and {resource}"));
        bindings.chain(self.objects.iter().map(|(noun, name)| format!("{} {name}", noun.word()))).collect()
    }

    /// Deletes the objects.
    pub(super) async fn run(&self, client: &Client) -> Result<(), Failure> {
        for (bot, resource) in &self.bindings {
            binding::delete(client, bot, resource).await?;
        }
        for (noun, name) in &self.objects {
            let id = names::id_of_name(client, *noun, name).await?;
            client.delete(&["api", noun.segment(), &id]).await?;
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
