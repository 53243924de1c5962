//! Declared tools, checked and measured.

use std::collections::{HashMap, HashSet};

use monstrum_manifest::Effect;
use monstrum_store::ResourceToolRow;
use monstrum_types::{Digest, PinStatus};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{DeclaredTool, ERROR_CHARS_MAX, shortened};
use crate::plugins::remote;

/// Maximum number of tools that a resource can have.
pub const TOOLS_MAX: usize = 512;
/// Maximum size of a stored definition in bytes. Only an invalid definition can be larger.
const DEFINITION_BYTES_MAX: usize = 192 << 10;
/// The length at which a name that is too long is cut, in bytes.
const CUT_NAME_BYTES: usize = 96;

/// A declared tool with its digest and the first rule that it breaks.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub original_name: String,
    /// The name in the row. It differs from the original name only if that is too long or cannot be stored.
    pub stored_name: String,
    pub digest: Digest,
    /// The definition as JSON text.
    pub text: String,
    pub hint: Option<Effect>,
    pub reason: Option<String>,
    /// Whether the definition contains characters that a person does not see.
    pub hides: bool,
}

/// Checks declared tools. Schemas of definitions that are equal in `known` are not compiled again. This function must
/// run beside the serving threads.
pub(super) fn check(tools: Vec<DeclaredTool>, known: &[ResourceToolRow]) -> Vec<Declared> {
    let known: HashMap<(&str, &Digest), &ResourceToolRow> =
        known.iter().map(|row| ((row.original_name.as_str(), &row.digest), row)).collect();
    let mut names = HashSet::new();
    let mut checked: Vec<Declared> = Vec::new();
    for tool in tools.into_iter().take(TOOLS_MAX) {
        let DeclaredTool { original_name, definition, effect_hint } = tool;
        let stored_name = stored_name(&original_name);
        if !names.insert(stored_name.clone()) {
            if let Some(first) = checked.iter_mut().find(|first| first.stored_name == stored_name) {
                first.reason = Some("the name is declared twice".to_owned());
            }
            continue;
        }
        let definition = remote::definition(&definition);
        let digest = remote::definition_digest(&definition);
        let is_valid = known.get(&(stored_name.as_str(), &digest)).is_some_and(|row| {
            // The status `gone` does not say whether the definition is valid.
            !matches!(row.status, PinStatus::Invalid | PinStatus::Gone)
        });
        let reason = if is_valid { None } else { remote::check(&original_name, &definition).err() };
        let reason = reason.map(|reason| shortened(&reason, ERROR_CHARS_MAX));
        let hint = effect_hint.or_else(|| remote::hinted_effect(&definition));
        let hides = remote::object_hides(&definition);
        checked.push(Declared { text: text(&definition), original_name, stored_name, digest, hint, reason, hides });
    }
    checked
}

/// Returns the definition as JSON text, or a substitute if it is too large to be stored.
fn text(definition: &Map<String, Value>) -> String {
    let text = Value::Object(definition.clone()).to_string();
    if text.len() <= DEFINITION_BYTES_MAX {
        return text;
    }
    json!({ "bytes": text.len() }).to_string()
}

/// Returns the name under which a tool is stored: its original name, unless that is too long or contains a NUL.
fn stored_name(original: &str) -> String {
    if original.len() <= remote::NAME_BYTES_MAX && !original.contains('\0') {
        return original.to_owned();
    }
    let mut cut = String::new();
    for character in original.chars().filter(|character| *character != '\0') {
        if cut.len() + character.len_utf8() > CUT_NAME_BYTES {
            break;
        }
        cut.push(character);
    }
    format!("{cut}…{}", &hex::encode(Sha256::digest(original))[..12])
}
