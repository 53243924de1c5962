//! Reads the names that a stored manifest claims for its plugin, even from a manifest that is no longer valid.
//!
//! A stored manifest may violate rules that were added later. Its names still belong to its plugin, so that no other
//! plugin can claim them without approval.

use monstrum_types::{ResourceTypeId, ToolName};
use serde::Deserialize;

use crate::document::Document;
use crate::parse::MANIFEST_BYTES_MAX;
use crate::yaml::Keys;

const STORED: Document = Document { kind: "manifest", bytes_max: MANIFEST_BYTES_MAX, keys: Keys::WithoutFree };

/// The names that a manifest claims for its plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedNames {
    /// The resource type.
    pub resource_type: ResourceTypeId,
    /// The tools that the manifest lists.
    pub tools: Vec<ToolName>,
}

// Reads only the names: all other fields may have any shape.
#[derive(Deserialize)]
struct Names {
    resource_type: NamedType,
}

#[derive(Deserialize)]
struct NamedType {
    id: ResourceTypeId,
    #[serde(default)]
    tools: Vec<NamedTool>,
}

#[derive(Deserialize)]
struct NamedTool {
    name: ToolName,
}

/// Returns the names in a manifest, even if other parts of the manifest are invalid. Returns `None` if the manifest
/// does not name a resource type.
#[must_use]
pub fn claimed_names(text: &str) -> Option<ClaimedNames> {
    let Names { resource_type: NamedType { id, tools } } = serde_json::from_value(STORED.value(text).ok()?).ok()?;
    Some(ClaimedNames { resource_type: id, tools: tools.into_iter().map(|tool| tool.name).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_an_invalid_manifest() {
        let text = "name: [not, a, name]\nnever_known: 1\nresource_type:\n  id: sandbox\n  tool_discovery: dynamic\n  \
                    tools:\n    - name: acme_list\n      input_schema: 7\n    - { name: bot_read }\n";
        assert!(crate::parse("monstrum.yaml", text).is_err());
        let names = claimed_names(text).unwrap();
        assert_eq!(names.resource_type.as_str(), "sandbox");
        assert_eq!(names.tools.iter().map(ToolName::as_str).collect::<Vec<_>>(), ["acme_list", "bot_read"]);
        assert_eq!(claimed_names("resource_type: { id: acme }").unwrap().tools, []);
        for none in ["", "name: acme", "resource_type: { id: \"A B\" }", "resource_type: { id: a, tools: [{}] }", "- a"]
        {
            assert_eq!(claimed_names(none), None, "{none}");
        }
    }
}
