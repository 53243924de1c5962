//! What is more than a shape: names, references from one part of the manifest to another, limits.
//!
//! Every fault is collected, so that an author mends them in one go. Nothing here reads the text: a fault says to which
//! field it belongs, and the parser finds the line.

mod auth;
pub(crate) mod contract;

use std::collections::HashSet;

use crate::error::FieldPath;
use crate::fields::{check_url, check_value};
use crate::model::{Capability, Executor, Field, FieldKind, Manifest};
use crate::schema::SchemaLimits;

/// Names that belong to the platform, as type and as plugin.
pub(crate) const RESERVED_NAMES: [&str; 12] =
    ["ssh", "mcp", "bot", "web", "web3", "sandbox", "agent", "workflow", "schedule", "event", "platform", "monstrum"];
/// Beginnings of tool names that belong to the platform.
pub(crate) const RESERVED_TOOL_PREFIXES: [&str; 7] = ["sandbox_", "bot_", "mcp_", "ssh_", "web_", "web3_", "platform_"];
/// Tools of one plugin: the largest APIs have several hundred operations, and a model cannot choose among more.
pub(crate) const TOOLS_MAX: usize = 1_000;
/// Scope dimensions of one type: each costs every call a check, and an operator fills each in by hand.
pub(crate) const DIMENSIONS_MAX: usize = 100;
/// Fields of one schema: a form that a person fills in.
pub(crate) const FIELDS_MAX: usize = 100;
/// Entries of every other list (tags, egress, audience, calls, param_paths, …): looked at one by one in each call.
pub(crate) const ENTRIES_MAX: usize = 64;
/// Values of an enum field: a list that a person picks from.
pub(crate) const ENUM_VALUES_MAX: usize = 1_000;
/// Regular expressions in all schemas of a manifest: each takes time to compile, and memory.
pub(crate) const PATTERNS_MAX: usize = 500;
/// Hops that a manifest may ask for: what browsers and HTTP clients stop at, halved.
pub(crate) const REDIRECTS_MAX: u8 = 10;
/// Characters of a name, glob or path: far more than readable ones have.
pub(crate) const NAME_CHARS_MAX: usize = 256;

/// The faults that have been found.
#[derive(Default)]
pub(crate) struct Faults(Vec<(FieldPath, String)>);

impl Faults {
    pub(crate) fn add(&mut self, field: FieldPath, message: impl Into<String>) {
        self.0.push((field, message.into()));
    }

    /// A list that is longer than allowed.
    fn cap<T>(&mut self, field: FieldPath, list: &[T], entries_max: usize) {
        if list.len() > entries_max {
            self.add(field, format!("at most {entries_max} entries are allowed, here are {}", list.len()));
        }
    }

    /// Entries that occur before in the same list.
    fn unique<'a>(&mut self, entries: impl Iterator<Item = (FieldPath, &'a str)>) {
        let mut seen = HashSet::new();
        for (field, entry) in entries {
            if !seen.insert(entry) {
                self.add(field, format!("`{}` is there twice", crate::error::cut(entry, NAME_CHARS_MAX)));
            }
        }
    }

    /// A short text without control characters: a name, a glob or a path.
    fn short_text(&mut self, field: FieldPath, text: &str) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.chars().any(char::is_control) {
            self.add(field, "must not hold control characters");
        } else if text.chars().count() > NAME_CHARS_MAX {
            self.add(field, format!("longer than {NAME_CHARS_MAX} characters"));
        }
    }
}

impl IntoIterator for Faults {
    type Item = (FieldPath, String);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Checks a manifest of the right shape; the faults in the order of the file's usual layout.
pub(crate) fn validate(manifest: &Manifest, limits: SchemaLimits) -> Vec<(FieldPath, String)> {
    let mut faults = Faults::default();
    let root = FieldPath::default();
    if RESERVED_NAMES.contains(&manifest.name.as_str()) {
        faults.add(root.key("name"), format!("`{}` is reserved for the platform", manifest.name));
    }
    faults.cap(root.key("tags"), &manifest.tags, ENTRIES_MAX);
    for (name, link) in [("homepage", &manifest.homepage), ("repository", &manifest.repository)] {
        // Shown as a link, so a script must not pass for one.
        if let Some(Err(why)) = link.as_deref().map(check_url) {
            faults.add(root.key(name), why);
        }
    }
    if let Err(why) = check_file_name(&manifest.locales_dir) {
        faults.add(root.key("locales_dir"), why);
    }
    contract::check(&mut faults, &manifest.resource_type, limits, &root.key("resource_type"));
    executor(&mut faults, &manifest.executor, &root.key("executor"));
    faults.0
}

fn executor(faults: &mut Faults, executor: &Executor, at: &FieldPath) {
    if let Err(why) = check_file_name(&executor.component) {
        faults.add(at.key("component"), why);
    }
    let capabilities = at.key("capabilities");
    let mut seen = HashSet::new();
    for (index, capability) in executor.capabilities.iter().enumerate() {
        if !seen.insert(*capability) {
            faults.add(capabilities.index(index), "the capability is there twice");
        }
        if *capability == Capability::Events {
            faults.add(capabilities.index(index), "`events` is not available in this version: no plugin can use it");
        }
    }
    faults.cap(at.key("egress"), &executor.egress, ENTRIES_MAX);
    let calls = at.key("calls");
    faults.cap(calls.clone(), &executor.calls, ENTRIES_MAX);
    for (index, glob) in executor.calls.iter().enumerate() {
        faults.short_text(calls.index(index), glob);
    }
    if !executor.calls.is_empty() && !executor.capabilities.contains(&Capability::Tools) {
        faults.add(calls, "calls to other tools need `tools` among the capabilities");
    }
    let limits = at.key("limits");
    for (name, limit) in [
        ("fuel", executor.limits.fuel),
        ("memory_mib", executor.limits.memory_mib.map(u64::from)),
        ("timeout_s", executor.limits.timeout_s.map(u64::from)),
    ] {
        if limit == Some(0) {
            faults.add(limits.key(name), "must be more than 0");
        }
    }
    if executor.follow_redirects > REDIRECTS_MAX {
        faults.add(at.key("follow_redirects"), format!("at most {REDIRECTS_MAX} redirects may be followed"));
    }
}

/// A file or folder inside of the plugin's own: a relative path that cannot lead out of it on any system.
fn check_file_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > NAME_CHARS_MAX {
        return Err("expected a name of at most 256 bytes");
    }
    if name.starts_with('/') || name.contains(['\\', ':']) || name.chars().any(char::is_control) {
        return Err("expected a path inside of the plugin's folder, with `/` between its parts");
    }
    if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err("the path must not have empty parts, `.` or `..`");
    }
    Ok(())
}

/// Where a field definition stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldUse {
    Config,
    Credential,
}

fn fields(faults: &mut Faults, fields: &[Field], at: &FieldPath, usage: FieldUse) {
    faults.cap(at.clone(), fields, FIELDS_MAX);
    faults.unique(fields.iter().enumerate().map(|(index, field)| (at.index(index).key("field"), field.field.as_str())));
    for (index, field) in fields.iter().enumerate() {
        one_field(faults, field, &at.index(index), usage);
    }
}

fn one_field(faults: &mut Faults, field: &Field, at: &FieldPath, usage: FieldUse) {
    if !crate::auth::is_field_name(&field.field) {
        faults.add(at.key("field"), "expected 1 to 64 letters, digits, `_` or `-`");
    }
    if usage == FieldUse::Config && field.kind == FieldKind::Secret {
        faults.add(
            at.key("type"),
            "a configuration is stored and shown as plain text: put secrets into credential_schema",
        );
    }
    if usage == FieldUse::Config && field.field == "api_base" && field.kind != FieldKind::Url {
        faults.add(at.key("type"), "api_base says where credentials may go: its type must be `url`");
    }
    match (&field.enum_values, field.kind) {
        (Some(values), FieldKind::Enum) if !values.is_empty() => {
            let listed = at.key("enum_values");
            faults.cap(listed.clone(), values, ENUM_VALUES_MAX);
            faults.unique(values.iter().enumerate().map(|(index, value)| (listed.index(index), value.as_str())));
        }
        (_, FieldKind::Enum) => faults.add(at.key("enum_values"), "a field of type `enum` needs its values"),
        (Some(_), _) => faults.add(at.key("enum_values"), "only a field of type `enum` has values to choose from"),
        (None, _) => {}
    }
    match &field.default {
        Some(_) if field.kind == FieldKind::Secret => {
            faults.add(at.key("default"), "a secret has no default: it would be the same for everybody");
        }
        Some(default) => {
            if let Err(why) = check_value(field, default) {
                faults.add(at.key("default"), format!("not a value of this field: {why}"));
            }
        }
        None => {}
    }
}
