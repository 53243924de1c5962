//! The definition of a call: what runs, and where its requests may go. A person approves a call with its definition, so
//! a change of the definition requires another approval.

use monstrum_types::{Digest, Effort, Overrun, canonical};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::checks::{pay_for, pay_for_object};
use crate::plugins::Tool;
use crate::policy::Resource;

/// Returns the digest of the definition of a call: the tool as declared, the component, and the configuration, the
/// network rules and the audience of the resource.
pub fn definition(tool: &Tool, resource: &Resource, effort: &Effort) -> Result<Digest, Overrun> {
    pay_for_object(&tool.manifest.input_schema, effort)?;
    if let Some(schema) = &tool.manifest.output_schema {
        pay_for_object(schema, effort)?;
    }
    pay_for_object(&resource.config, effort)?;
    let mut definition = json!({
        "tool": tool.manifest,
        "component": resource.plugin.digest(),
        "plugin": resource.plugin.name,
        "config": resource.config,
        "network": resource.row.network,
        "audience": resource.scope.audience,
    });
    if let Some(remote) = &tool.remote {
        definition["remote"] = json!(hex::encode(remote.digest));
    }
    pay_for(&definition, effort)?;
    let mut text = String::new();
    canonical::write(&definition, &mut text);
    Ok(content_digest(text.as_bytes()))
}

/// Returns the SHA-256 of `bytes`.
pub fn content_digest(bytes: &[u8]) -> Digest {
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
    digest.parse().expect("a SHA-256 has the form of a digest")
}
