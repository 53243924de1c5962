//! Tools that come from outside: what a server or an agent declares, the rules for its definition, and the tool that
//! bots see.

mod check;
mod hidden;
mod slug;

use monstrum_manifest::{Effect, ResultForm, ScopeDimension, Tool as ToolManifest, full_tool_name};
use monstrum_store::ResourceToolRow;
use monstrum_types::{Digest, PluginName, canonical};
use serde_json::{Map, Value};
use sha2::Digest as _;

pub use check::{NAME_BYTES_MAX, check};
pub use hidden::{object_hides, object_written_out, value_written_out, written_out};
pub use slug::slug;

use crate::plugins::{Tool, built_in};

/// The members of a definition. Other members of a declared tool do not count.
pub const DEFINITION_MEMBERS: [&str; 6] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// The identity of a tool that comes from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteTool {
    /// The name that the server or the agent uses.
    pub original_name: Box<str>,
    /// The name for people, which is a part of the definition.
    pub title: Option<Box<str>>,
    /// The SHA-256 of the approved definition.
    pub digest: [u8; 32],
}

/// Returns the members of a declared tool that make up its definition. Null members count as absent.
pub fn definition(declared: &Map<String, Value>) -> Map<String, Value> {
    let members = DEFINITION_MEMBERS.into_iter();
    let present = members.filter_map(|member| declared.get_key_value(member).filter(|(_, value)| !value.is_null()));
    present.map(|(member, value)| (member.clone(), value.clone())).collect()
}

/// Returns the SHA-256 of a definition in its canonical form.
pub fn definition_hash(definition: &Map<String, Value>) -> [u8; 32] {
    let mut text = String::new();
    canonical::write_object(definition, &mut text);
    sha2::Sha256::digest(text.as_bytes()).into()
}

/// Returns the SHA-256 of a definition as a digest.
pub fn definition_digest(definition: &Map<String, Value>) -> Digest {
    let digest = format!("sha256:{}", hex::encode(definition_hash(definition)));
    digest.parse().expect("a SHA-256 has the form of a digest")
}

/// Returns the tool of an approved row of the resource `resource`, or `None` if the row does not contain the definition
/// that its digest names.
pub fn served(
    row: &ResourceToolRow,
    plugin: &PluginName,
    resource: &str,
    dimensions: &[ScopeDimension],
) -> Option<Tool> {
    let definition: Map<String, Value> = serde_json::from_str(&row.definition).ok()?;
    let digest = definition_hash(&definition);
    let is_approved = row.approved_digest.as_ref().is_some_and(|approved| *approved == definition_digest(&definition));
    if !row.is_served() || !is_approved {
        tracing::error!(tool.id = %row.id, "a tool is not served, because its definition is not the approved one");
        return None;
    }
    let object = |member: &str| definition.get(member).and_then(Value::as_object).cloned();
    let effect = Effect::from_word(&row.effect).unwrap_or_default();
    let is_agent = plugin.as_str() == built_in::AGENT;
    let access = if effect == Effect::Read { "read" } else { "write" };
    let manifest = ToolManifest {
        name: full_tool_name(resource, &row.slug).parse().ok()?,
        description: description(&definition),
        operation: format!("{}.{access}", if is_agent { built_in::AGENT } else { built_in::MCP }),
        input_schema: object("inputSchema").unwrap_or_default(),
        output_schema: object("outputSchema"),
        cost: None,
        effect,
        result: if is_agent { ResultForm::Json } else { ResultForm::Content },
    };
    let title = definition.get("title").and_then(Value::as_str).filter(|title| !title.trim().is_empty());
    let (original_name, title) = (row.original_name.as_str().into(), title.map(Box::from));
    let remote = RemoteTool { original_name, title, digest };
    Some(Tool::remote(manifest, remote, dimensions))
}

/// Returns the description that models read: the description or, if it is absent, the title or the name.
fn description(definition: &Map<String, Value>) -> String {
    let texts = ["description", "title", "name"].into_iter();
    let mut texts = texts.filter_map(|member| definition.get(member)?.as_str()).filter(|text| !text.trim().is_empty());
    texts.next().unwrap_or_default().to_owned()
}

/// Returns the effect that the annotations of a definition declare.
pub fn hinted_effect(definition: &Map<String, Value>) -> Option<Effect> {
    let annotations = definition.get("annotations")?.as_object()?;
    let is_set = |hint: &str| annotations.get(hint).and_then(Value::as_bool);
    match (is_set("readOnlyHint"), is_set("idempotentHint")) {
        (Some(true), _) => Some(Effect::Read),
        (_, Some(true)) => Some(Effect::Idempotent),
        (Some(false), _) | (_, Some(false)) => Some(Effect::Write),
        (None, None) => None,
    }
}
