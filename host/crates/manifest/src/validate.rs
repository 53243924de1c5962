//! Validation of a manifest's content: names, references between its parts, limits.
//!
//! Validation collects all errors, so that an author can fix them in one pass. Each error names its field, and the
//! parser adds the line.

pub(crate) mod auth;
pub(crate) mod contract;

use std::collections::HashSet;

use crate::error::FieldPath;
use crate::fields::{check_url, check_value};
use crate::model::{Capability, Executor, Field, FieldKind, Manifest};
use crate::schema::SchemaLimits;

/// Reserved names of resource types and plugins.
pub(crate) const RESERVED_NAMES: [&str; 14] = [
    "ssh", "mcp", "bot", "web", "web3", "sandbox", "agent", "llm", "task", "workflow", "schedule", "event", "platform",
    "monstrum",
];
/// Reserved prefixes of tool names.
pub(crate) const RESERVED_TOOL_PREFIXES: [&str; 7] = ["sandbox_", "bot_", "mcp_", "ssh_", "web_", "web3_", "platform_"];
/// Prefixes of tool names that were reserved later. Stored versions and configurations may have such names.
pub(crate) const NEW_RESERVED_TOOL_PREFIXES: [&str; 3] = ["agent_", "llm_", "task_"];
/// Maximum number of tools in one plugin. The largest APIs have several hundred operations, and a model cannot choose
/// among more tools.
pub(crate) const TOOLS_MAX: usize = 1_000;
/// Maximum number of scope dimensions of one type. Each call checks all dimensions, and an operator configures each
/// dimension by hand.
pub(crate) const DIMENSIONS_MAX: usize = 100;
/// Maximum number of fields in one schema. A person fills in these fields in a form.
pub(crate) const FIELDS_MAX: usize = 100;
/// Maximum number of entries in each list without a specific limit (tags, egress, audience, calls, `param_paths`, …).
/// Calls search these lists linearly.
pub(crate) const ENTRIES_MAX: usize = 64;
/// Maximum number of values of an enum field. A person picks one of the values from a list.
pub(crate) const ENUM_VALUES_MAX: usize = 1_000;
/// Maximum number of regular expressions in all schemas of a manifest. Compiling and storing an expression takes time
/// and memory.
pub(crate) const PATTERNS_MAX: usize = 500;
/// Maximum number of redirects that a manifest may request: half the limit of common browsers and HTTP clients.
pub(crate) const REDIRECTS_MAX: u8 = 10;
/// Maximum length of a name, glob or path in characters. Readable names are much shorter.
pub(crate) const NAME_CHARS_MAX: usize = 256;

/// The collected errors, each with its field.
#[derive(Default)]
pub(crate) struct ContentErrors(Vec<(FieldPath, String)>);

impl ContentErrors {
    pub(crate) fn add(&mut self, field: FieldPath, message: impl Into<String>) {
        self.0.push((field, message.into()));
    }

    /// Adds an error if a list has more than `entries_max` entries.
    fn cap<T>(&mut self, field: FieldPath, list: &[T], entries_max: usize) {
        if list.len() > entries_max {
            self.add(field, format!("at most {entries_max} entries are allowed, found {}", list.len()));
        }
    }

    /// Adds an error for each entry that repeats an earlier one.
    fn unique<'a>(&mut self, entries: impl Iterator<Item = (FieldPath, &'a str)>) {
        let mut seen = HashSet::new();
        for (field, entry) in entries {
            if !seen.insert(entry) {
                self.add(field, format!("duplicate entry `{}`", crate::error::cut(entry, NAME_CHARS_MAX)));
            }
        }
    }

    /// Checks a name, a glob or a path: a short text without control characters.
    fn short_text(&mut self, field: FieldPath, text: &str) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.chars().any(char::is_control) {
            self.add(field, "must not contain control characters");
        } else if text.chars().count() > NAME_CHARS_MAX {
            self.add(field, format!("must not be longer than {NAME_CHARS_MAX} characters"));
        }
    }
}

impl IntoIterator for ContentErrors {
    type Item = (FieldPath, String);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Validates a manifest. The errors follow the usual order of the fields in the file.
pub(crate) fn validate(manifest: &Manifest, limits: SchemaLimits) -> Vec<(FieldPath, String)> {
    let mut errors = ContentErrors::default();
    let root = FieldPath::default();
    if RESERVED_NAMES.contains(&manifest.name.as_str()) {
        errors.add(root.key("name"), format!("`{}` is reserved for the platform", manifest.name));
    }
    errors.cap(root.key("tags"), &manifest.tags, ENTRIES_MAX);
    for (name, link) in [("homepage", &manifest.homepage), ("repository", &manifest.repository)] {
        // User interfaces show these values as links, so a script URL must be rejected.
        if let Some(Err(why)) = link.as_deref().map(check_url) {
            errors.add(root.key(name), why);
        }
    }
    if let Err(why) = check_file_name(&manifest.locales_dir) {
        errors.add(root.key("locales_dir"), why);
    }
    contract::check(&mut errors, &manifest.resource_type, limits, &root.key("resource_type"));
    executor(&mut errors, &manifest.executor, &root.key("executor"));
    errors.0
}

fn executor(errors: &mut ContentErrors, executor: &Executor, at: &FieldPath) {
    if let Err(why) = check_file_name(&executor.component) {
        errors.add(at.key("component"), why);
    }
    let capabilities = at.key("capabilities");
    let mut seen = HashSet::new();
    for (index, capability) in executor.capabilities.iter().enumerate() {
        if !seen.insert(*capability) {
            errors.add(capabilities.index(index), "duplicate capability");
        }
    }
    errors.cap(at.key("egress"), &executor.egress, ENTRIES_MAX);
    let calls = at.key("calls");
    errors.cap(calls.clone(), &executor.calls, ENTRIES_MAX);
    for (index, glob) in executor.calls.iter().enumerate() {
        errors.short_text(calls.index(index), glob);
    }
    if !executor.calls.is_empty() && !executor.capabilities.contains(&Capability::Tools) {
        errors.add(calls, "calls to other tools require the capability `tools`");
    }
    let limits = at.key("limits");
    for (name, limit) in [
        ("fuel", executor.limits.fuel),
        ("memory_mib", executor.limits.memory_mib.map(u64::from)),
        ("timeout_s", executor.limits.timeout_s.map(u64::from)),
    ] {
        if limit == Some(0) {
            errors.add(limits.key(name), "must be greater than 0");
        }
    }
    if executor.follow_redirects > REDIRECTS_MAX {
        errors.add(at.key("follow_redirects"), format!("at most {REDIRECTS_MAX} redirects are allowed"));
    }
}

/// Checks the path of a file in the plugin's folder: a relative path that stays inside the folder on every operating
/// system.
fn check_file_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > NAME_CHARS_MAX {
        return Err("expected a name of at most 256 bytes");
    }
    if name.starts_with('/') || name.contains(['\\', ':']) || name.chars().any(char::is_control) {
        return Err("expected a relative path in the plugin's folder, with `/` between its parts");
    }
    if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err("the path must not have empty parts, `.` or `..`");
    }
    Ok(())
}

/// The schema that a field definition belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldUse {
    Config,
    Credential,
}

fn fields(errors: &mut ContentErrors, fields: &[Field], at: &FieldPath, usage: FieldUse) {
    errors.cap(at.clone(), fields, FIELDS_MAX);
    errors.unique(fields.iter().enumerate().map(|(index, field)| (at.index(index).key("field"), field.field.as_str())));
    for (index, field) in fields.iter().enumerate() {
        one_field(errors, field, &at.index(index), usage);
    }
}

fn one_field(errors: &mut ContentErrors, field: &Field, at: &FieldPath, usage: FieldUse) {
    if !crate::auth::is_field_name(&field.field) {
        errors.add(at.key("field"), "expected 1 to 64 letters, digits, `_` or `-`");
    }
    if usage == FieldUse::Config && field.kind == FieldKind::Secret {
        errors.add(
            at.key("type"),
            "a configuration is stored and shown as plain text: put secrets into credential_schema",
        );
    }
    if usage == FieldUse::Config && field.field == "api_base" && field.kind != FieldKind::Url {
        errors.add(
            at.key("type"),
            "the type of api_base must be `url`, because api_base determines where credentials are sent",
        );
    }
    if field.kind == FieldKind::Json || field.schema.is_some() {
        errors.add(at.key("type"), "only built-in types can have a field of type `json` or a field with a schema");
    }
    match (&field.enum_values, field.kind) {
        (Some(values), FieldKind::Enum) if !values.is_empty() => {
            let listed = at.key("enum_values");
            errors.cap(listed.clone(), values, ENUM_VALUES_MAX);
            errors.unique(values.iter().enumerate().map(|(index, value)| (listed.index(index), value.as_str())));
        }
        (_, FieldKind::Enum) => errors.add(at.key("enum_values"), "a field of type `enum` requires a list of values"),
        (Some(_), _) => errors.add(at.key("enum_values"), "only a field of type `enum` may have a list of values"),
        (None, _) => {}
    }
    match &field.default {
        Some(_) if field.kind == FieldKind::Secret => {
            errors.add(at.key("default"), "a secret must not have a default, because all resources would share it");
        }
        Some(default) => {
            if let Err(why) = check_value(field, default) {
                errors.add(at.key("default"), format!("the default is not a valid value: {why}"));
            }
        }
        None => {}
    }
}
