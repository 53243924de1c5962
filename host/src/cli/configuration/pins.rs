//! The approved tools of MCP servers and remote agents in the files. A pin names the digest of a definition that a person has
//! read, and the server approves no other definition.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::names::{self, Noun};
use super::super::output;
use super::document::{Configuration, Lines, Pin};

/// The pins of the files that the server does not have.
pub(super) struct Pins(Vec<OfResource>);

struct OfResource {
    resource: String,
    pins: BTreeMap<String, Pin>,
    /// The decisions that the server had when the changes were planned, by the names of the tools.
    known: BTreeMap<String, Value>,
}

/// Adds the approved tools of each resource to an exported configuration. Tools that the configuration of the resource
/// approves are left out.
pub(super) async fn export(client: &Client, configuration: &mut Configuration) -> Result<(), Failure> {
    for item in with_tools(client).await? {
        let tools = tools(client, &output::cell(&item["id"])).await?;
        let approved = tools.iter().filter(|tool| !tool["approved"]["by"].is_null());
        let pins = approved.map(|tool| {
            let (digest, effect) = (output::cell(&tool["approved"]["digest"]), output::cell(&tool["effect"]));
            (output::cell(&tool["original_name"]), Pin { digest, effect: Some(effect) })
        });
        let pins = pins.collect();
        if let Some(resource) = configuration.resources.iter_mut().find(|resource| item["name"] == *resource.name) {
            resource.pins = pins;
        }
    }
    Ok(())
}

/// Returns the resources whose tools come from a server or an agent.
async fn with_tools(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut items = client.items(&["api", "resources"], &[]).await?;
    items.retain(|item| !item["discovery"].is_null());
    Ok(items)
}

async fn tools(client: &Client, id: &str) -> Result<Vec<Value>, Failure> {
    let answer = client.get(&["api", "resources", id, "tools"], &[]).await?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

impl Pins {
    /// Keeps the pins of the files that the server does not have.
    pub(super) async fn plan(lines: &Lines, client: &Client) -> Result<Pins, Failure> {
        let resources = lines.configurations().flat_map(|configuration| &configuration.resources);
        let given: Vec<_> = resources.filter(|resource| !resource.pins.is_empty()).collect();
        let mut planned = Vec::new();
        let present = if given.is_empty() { Vec::new() } else { with_tools(client).await? };
        for resource in given {
            let tools = match present.iter().find(|item| item["name"] == *resource.name) {
                Some(item) => tools(client, &output::cell(&item["id"])).await?,
                // The import creates the resource.
                None => Vec::new(),
            };
            let missing = resource.pins.iter().filter(|(name, pin)| !tools.iter().any(|tool| has(tool, name, pin)));
            let pins: BTreeMap<_, _> = missing.map(|(name, pin)| (name.clone(), pin.clone())).collect();
            if !pins.is_empty() {
                let known = tools.iter().map(|tool| (output::cell(&tool["original_name"]), decided(tool))).collect();
                planned.push(OfResource { resource: resource.name.clone(), pins, known });
            }
        }
        Ok(Pins(planned))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the resource, the tool and the effect of each pin.
    pub(super) fn names(&self) -> Vec<String> {
        let of_resource = |of: &OfResource| {
            let name = |(tool, pin): (&String, &Pin)| format!("{tool} of {} ({})", of.resource, pin.effect());
            of.pins.iter().map(name).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_resource).collect()
    }

    /// Approves the tools. The tools of MCP servers are read first, because the resource may be new. Fails if a tool is not
    /// declared with the definition of its pin, after the other tools have been approved.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        let mut undeclared = Vec::new();
        for OfResource { resource, pins, known } in &self.0 {
            let found = names::find(client, Noun::Resource, resource).await?;
            let id = names::text(&found, "id")?;
            if found["resource_type"] == "mcp" {
                client.post(&["api", "resources", &id, "tools", "discover"], None).await?;
            }
            let tools = tools(client, &id).await?;
            let declared = |name: &str, pin: &Pin| {
                tools.iter().any(|tool| tool["original_name"] == *name && tool["digest"] == *pin.digest)
            };
            let (ready, others): (Vec<_>, Vec<_>) = pins.iter().partition(|(name, pin)| declared(name, pin));
            undeclared.extend(others.into_iter().map(|(name, _)| format!("{name} of {resource}")));
            let decision = |(name, pin): (&String, &Pin)| {
                let mut decision = json!({ "original_name": name, "digest": pin.digest, "effect": pin.effect() });
                // The server refuses the decision if another one was made meanwhile.
                if let Some(was) = known.get(name) {
                    decision["was"] = was.clone();
                }
                decision
            };
            let decisions: Vec<Value> = ready.into_iter().map(decision).collect();
            if !decisions.is_empty() {
                let body = json!({ "tools": decisions });
                let approved = client.post(&["api", "resources", &id, "tools", "approve"], Some(&body)).await;
                approved.map_err(|failure| failure.about(&format!("the tools of {}", output::plain(resource))))?;
            }
        }
        if undeclared.is_empty() {
            return Ok(());
        }
        let undeclared = output::plain(&undeclared.join(", "));
        Err(Failure::new(
            format!("not approved, because they are not declared with the definitions of their pins: {undeclared}"),
            "`monstrum mcp tools RESOURCE` lists what is declared",
        ))
    }
}

/// Returns the decision about a tool.
fn decided(tool: &Value) -> Value {
    match tool["approved"]["digest"].as_str() {
        Some(digest) => json!({ "approved_digest": digest, "effect": tool["effect"] }),
        None => json!({ "approved_digest": null }),
    }
}

/// Returns whether the tool is approved with the definition and the effect of a pin.
fn has(tool: &Value, name: &str, pin: &Pin) -> bool {
    tool["original_name"] == *name && tool["approved"]["digest"] == *pin.digest && tool["effect"] == *pin.effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_the_digest_and_the_effect() {
        let tool = json!({ "original_name": "get", "digest": "sha256:2", "effect": "write",
            "approved": { "digest": "sha256:1" } });
        let pin =
            |digest: &str, effect: Option<&str>| Pin { digest: digest.to_owned(), effect: effect.map(str::to_owned) };
        assert!(has(&tool, "get", &pin("sha256:1", None)), "the default effect is `write`");
        assert!(!has(&tool, "get", &pin("sha256:1", Some("read"))));
        assert!(!has(&tool, "get", &pin("sha256:2", None)), "the declared definition is not the approved one");
        assert!(!has(&tool, "put", &pin("sha256:1", None)));
    }
}
