//! The text of a denial: for language models, for the audit and for administrators.

use std::borrow::Cow;
use std::io::Write;
use std::ops::ControlFlow;

use monstrum_manifest::MatchMode;
use monstrum_types::{Code, Effort, Status, is_invisible};
use serde_json::Value;

use crate::decide::{Question, VALUE_BYTES_MAX};
use crate::matching::{escape_glob, match_path};
use crate::policy::{Dimension, GrantSource, SetSource, ToolRules};
use crate::values::{Found, Stop, visit};

/// Maximum number of characters of a value in a message: enough to recognise the value, but too few to flood a log or a
/// prompt.
const SHOWN_CHARS_MAX: usize = 200;
/// The prefix of all scope violation messages.
const SCOPE_VIOLATION: &str = "Scope violation: ";
/// Maximum number of steps to find a value to show. If the budget is exhausted first, the message contains no value.
const VALUE_STEPS_MAX: u64 = 1 << 16;
/// The text that replaces the value if the call has none.
const MISSING: &str = "(missing)";

/// The reason why a call may not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// `PermissionDenied` if the role, the binding's permissions or the tool list of a delegation link denies the call;
    /// `ScopeViolation` if a scope constraint denies the call.
    pub status: Status,
    /// The rule that denied the call, as a stable identifier: `role.allowed_operations`, `scope.repos`,
    /// `scope.unknown_key`.
    pub rule: String,
    /// The text that the LLM reads.
    pub message: String,
    /// The text that an administrator reads.
    pub reason: String,
    /// The smallest change of the rules that would allow this call.
    pub smallest_change: String,
    /// The value that violates a scope dimension, if there is one.
    pub violation: Option<Box<Violation>>,
}

/// A value that violates a scope dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key of the dimension.
    pub dimension: String,
    /// The value, safe to display: truncated, with invisible characters escaped.
    pub value: String,
}

/// The holder of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Bot,
    Role,
    Permissions,
    Binding,
    /// The index of the link, where 0 is the outermost link.
    Delegation(usize),
}

/// A rule that denies a call or hides a tool.
#[derive(Clone, Debug)]
pub(crate) enum Refusal<'a> {
    NoGrant,
    Operation(GrantSource),
    Tool(Holder),
    UnknownKey { holder: Holder, key: &'a str },
    EmptyList { holder: Holder, dimension: &'a Dimension },
    Undeclared { holder: Holder, dimension: &'a Dimension },
    Missing { dimension: &'a Dimension },
    Unfit { dimension: &'a Dimension, value: &'a Value },
    Unmatched { holder: Holder, dimension: &'a Dimension, value: Cow<'a, str> },
    TooLong { dimension: &'a Dimension, bytes: usize },
}

impl Denial {
    /// Returns the denial for a tool that does not exist. The message equals the message for a tool that roles hide, so
    /// that guessing tool names does not reveal which tools exist.
    #[must_use]
    pub fn unknown_tool(tool: &str) -> Denial {
        Denial {
            status: Status::PermissionDenied,
            rule: "unknown_tool".to_owned(),
            message: not_available(tool),
            reason: format!("no resource bound to the bot has a tool `{}`", visible(tool)),
            smallest_change: "bind a resource whose plugin provides this tool to the bot".to_owned(),
            violation: None,
        }
    }

    /// Creates the denial of a gate.
    pub(crate) fn by_gate(tool: &ToolRules, holder: Holder, reason: Option<&str>) -> Denial {
        let tool = tool.tool.as_str();
        let because = reason.map(|reason| format!(": {}", visible(reason))).unwrap_or_default();
        Denial {
            status: Status::PermissionDenied,
            rule: format!("{}.gates", holder.word()),
            message: format!("Permission denied: a gate denies this call of tool '{}'{because}", visible(tool)),
            reason: format!("a gate of {holder} has the action `deny` and applies to this call of `{tool}`{because}"),
            smallest_change: format!("remove the gate from gates of {holder}, or narrow its conditions"),
            violation: None,
        }
    }

    /// Returns the code that corresponds to the status.
    #[must_use]
    pub fn code(&self) -> Code {
        match self.status {
            Status::ScopeViolation => Code::Scope,
            Status::PermissionDenied | Status::ApprovalRequired | Status::Error | Status::Success => Code::Denied,
        }
    }

    /// Creates a denial from the first refusal. The smallest change also includes the changes for the other refusals.
    pub(crate) fn new(tool: &ToolRules, question: Question<'_>, first: &Refusal<'_>, others: &[Refusal<'_>]) -> Denial {
        let mut changes: Vec<String> = Vec::new();
        for refusal in std::iter::once(first).chain(others) {
            let change = refusal.change(tool, question);
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        let violation = first.violation(question);
        let (status, message) = match (first, &violation) {
            (Refusal::UnknownKey { key, .. }, _) => {
                (Status::ScopeViolation, format!("{SCOPE_VIOLATION}this tool has no scope {}", visible(key)))
            }
            (Refusal::TooLong { dimension, bytes }, _) => {
                (Status::ScopeViolation, format!("{SCOPE_VIOLATION}{}", too_long(&dimension.key, *bytes)))
            }
            (_, Some((dimension, value))) => {
                (Status::ScopeViolation, in_words(&dimension.error_template, &dimension.key, value))
            }
            (_, None) => (Status::PermissionDenied, not_available(tool.tool.as_str())),
        };
        let violation =
            violation.map(|(dimension, value)| Box::new(Violation { dimension: dimension.key.clone(), value }));
        let (rule, reason) = (first.rule(), first.reason(tool));
        Denial { status, rule, message, reason, smallest_change: changes.join("; "), violation }
    }

    /// Rewrites the message with the translated template of the dimension, if `translate` returns one.
    #[must_use]
    pub fn translated<'t>(mut self, translate: impl FnOnce(&str) -> Option<&'t str>) -> Denial {
        if let Some(Violation { dimension, value }) = self.violation.as_deref()
            && let Some(template) = translate(dimension)
        {
            self.message = in_words(template, dimension, value);
        }
        self
    }
}

impl Refusal<'_> {
    fn rule(&self) -> String {
        match self {
            Refusal::NoGrant => "grant.none".to_owned(),
            Refusal::Operation(source) => format!("{}.allowed_operations", Holder::from(*source).word()),
            Refusal::Tool(holder) => format!("{}.allowed_tools", holder.word()),
            Refusal::UnknownKey { .. } => "scope.unknown_key".to_owned(),
            Refusal::EmptyList { dimension, .. }
            | Refusal::Undeclared { dimension, .. }
            | Refusal::Missing { dimension }
            | Refusal::Unfit { dimension, .. }
            | Refusal::Unmatched { dimension, .. }
            | Refusal::TooLong { dimension, .. } => format!("scope.{}", dimension.key),
        }
    }

    /// Returns the violated dimension and its value, safe to display, if the refusal is due to a scope.
    fn violation(&self, question: Question<'_>) -> Option<(&Dimension, String)> {
        let missing = || MISSING.to_owned();
        match self {
            Refusal::NoGrant
            | Refusal::Operation(_)
            | Refusal::Tool(_)
            | Refusal::UnknownKey { .. }
            // The message of this refusal names the limit instead of the value, and does not use the template.
            | Refusal::TooLong { .. } => None,
            Refusal::EmptyList { dimension, .. } => {
                Some((dimension, first_value(dimension, question).map_or_else(missing, |value| visible(&value))))
            }
            Refusal::Undeclared { dimension, .. } | Refusal::Missing { dimension } => Some((dimension, missing())),
            Refusal::Unfit { dimension, value } => Some((dimension, visible(&text_of(value)))),
            Refusal::Unmatched { dimension, value, .. } => Some((dimension, visible(value))),
        }
    }

    fn reason(&self, tool: &ToolRules) -> String {
        let ToolRules { tool, operation, .. } = tool;
        match self {
            Refusal::NoGrant => {
                "neither the role nor the permissions of the binding list any operations or tools".to_owned()
            }
            Refusal::Operation(source) => {
                format!(
                    "operation `{operation}` does not match any entry in allowed_operations of {}",
                    Holder::from(*source)
                )
            }
            Refusal::Tool(holder) => format!("tool `{tool}` does not match any entry in allowed_tools of {holder}"),
            Refusal::UnknownKey { holder, key } => {
                format!(
                    "scope_constraints of {holder} contains the key `{}`, which the plugin does not declare",
                    visible(key)
                )
            }
            Refusal::EmptyList { holder, dimension } => {
                format!("{} is an empty list, which permits no value", list(dimension, *holder))
            }
            Refusal::Undeclared { holder, dimension } => {
                let (list, paths) = (list(dimension, *holder), paths(dimension));
                format!("{list} constrains operation `{operation}`, but tool `{tool}` does not declare any of {paths}")
            }
            Refusal::Missing { dimension } => {
                format!("scope {} is constrained, but the call has no value at {}", dimension.key, paths(dimension))
            }
            Refusal::Unfit { dimension, value } => {
                let shown = visible(&text_of(value));
                format!(
                    "the value `{shown}` at one of {} cannot be compared with the patterns of scope {}",
                    paths(dimension),
                    dimension.key
                )
            }
            Refusal::Unmatched { holder, dimension, value } => {
                format!("value `{}` does not match any entry in {}", visible(value), list(dimension, *holder))
            }
            Refusal::TooLong { dimension, bytes } => too_long(&dimension.key, *bytes),
        }
    }

    fn change(&self, tool: &ToolRules, question: Question<'_>) -> String {
        match self {
            Refusal::NoGrant => format!("set allowed_tools of the binding's permissions to [`{}`]", tool.tool),
            Refusal::Operation(source) => {
                let (operation, holder) = (escape_glob(&tool.operation), Holder::from(*source));
                format!("add `{operation}` to allowed_operations of {holder}")
            }
            Refusal::Tool(holder) => format!("add `{}` to allowed_tools of {holder}", tool.tool),
            Refusal::UnknownKey { holder, key } => {
                format!("remove `{}` from scope_constraints of {holder}", visible(key))
            }
            Refusal::Undeclared { holder, dimension } => {
                format!("remove `{}` from scope_constraints of {holder}", dimension.key)
            }
            Refusal::EmptyList { holder, dimension } => match first_value(dimension, question) {
                Some(value) => add_entry(dimension, *holder, &value),
                None => format!("add an entry to {}", list(dimension, *holder)),
            },
            Refusal::Missing { dimension } | Refusal::Unfit { dimension, .. } => {
                format!("none: the call must have a string, a number or a boolean at one of {}", paths(dimension))
            }
            Refusal::Unmatched { holder, dimension, value } => add_entry(dimension, *holder, value),
            Refusal::TooLong { dimension, .. } => format!(
                "none: the value for scope {} must have at most {VALUE_BYTES_MAX} bytes, unless every list for the \
                 scope has the entry `*`",
                dimension.key
            ),
        }
    }
}

impl Holder {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Holder::Bot => "bot",
            Holder::Role => "role",
            Holder::Permissions => "permissions",
            Holder::Binding => "binding",
            Holder::Delegation(_) => "delegation",
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Bot => f.write_str("the bot"),
            Holder::Role => f.write_str("the role"),
            Holder::Permissions => f.write_str("the binding's permissions"),
            Holder::Binding => f.write_str("the binding"),
            Holder::Delegation(index) => write!(f, "link {} of the delegation", index + 1),
        }
    }
}

impl From<GrantSource> for Holder {
    fn from(source: GrantSource) -> Self {
        match source {
            GrantSource::Role => Holder::Role,
            GrantSource::Permissions => Holder::Permissions,
        }
    }
}

impl From<SetSource> for Holder {
    fn from(source: SetSource) -> Self {
        match source {
            SetSource::Role => Holder::Role,
            SetSource::Binding => Holder::Binding,
        }
    }
}

fn too_long(key: &str, bytes: usize) -> String {
    format!(
        "{key} has a value of {bytes} bytes; at most {VALUE_BYTES_MAX} bytes are compared with the patterns of a scope"
    )
}

fn not_available(tool: &str) -> String {
    format!("Permission denied: tool '{}' is not available to this bot", visible(tool))
}

/// Renders the template of a dimension. An occurrence of `{value}` inside the value is not replaced again.
fn in_words(template: &str, key: &str, shown: &str) -> String {
    if template.is_empty() {
        format!("{SCOPE_VIOLATION}{key} {shown} is not authorized")
    } else {
        format!("{SCOPE_VIOLATION}{}", filled(template, shown))
    }
}

/// Replaces every `{value}` in the template. The result is truncated, because a plugin's template may contain many
/// placeholders.
fn filled(template: &str, shown: &str) -> String {
    const BYTES_MAX: usize = 4096;
    let mut text = String::new();
    for (index, part) in template.split("{value}").enumerate() {
        for piece in [if index == 0 { "" } else { shown }, part] {
            let left = BYTES_MAX - text.len();
            text.push_str(&piece[..piece.floor_char_boundary(left)]);
            if piece.len() > left {
                text.push('…');
                return text;
            }
        }
    }
    text
}

fn list(dimension: &Dimension, holder: Holder) -> String {
    format!("scope_constraints.{} of {holder}", dimension.key)
}

fn paths(dimension: &Dimension) -> String {
    dimension.param_paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ")
}

/// Suggests the narrowest entry that permits `value`.
fn add_entry(dimension: &Dimension, holder: Holder, value: &str) -> String {
    let list = list(dimension, holder);
    if value.len() > VALUE_BYTES_MAX {
        return format!("none: no entry of {list} can permit a value of more than {VALUE_BYTES_MAX} bytes");
    }
    let (entry, note) = match dimension.mode {
        MatchMode::Pattern => (escape_glob(value), ""),
        MatchMode::Path => (escape_glob(value), ", which also permits its descendants"),
        MatchMode::Exact => (value.to_owned(), ""),
    };
    if dimension.mode == MatchMode::Path && !match_path(value, &entry) {
        return format!(
            "none: no entry of {list} can permit a path that contains a NUL or leads outside its start through `..`"
        );
    }
    if visible(&entry) == entry {
        format!("add `{entry}` to {list}{note}")
    } else {
        format!("add the exact value from the call to {list}{note}")
    }
}

/// Returns the first value of the call for a dimension.
fn first_value<'p>(dimension: &Dimension, question: Question<'p>) -> Option<Cow<'p, str>> {
    let Question::Call(params) = question else { return None };
    if !dimension.applies {
        return None;
    }
    let effort = Effort::of(VALUE_STEPS_MAX);
    let found = dimension.param_paths.iter().try_for_each(|path| {
        visit(params, path, &effort, &mut |found| {
            ControlFlow::Break(Stop::Found(match found {
                Found::Text(value) => value,
                Found::Unfit(value) => text_of(value),
            }))
        })
    });
    match found.break_value() {
        Some(Stop::Found(value)) => Some(value),
        Some(Stop::Overrun(_)) | None => None,
    }
}

/// Returns the text of a value: a string unchanged, or the beginning of the JSON text of any other value.
fn text_of(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => {
            let mut start = Start(Vec::new());
            // If the text is longer than the limit of `Start`, writing fails, and the kept part is used.
            let _: Result<(), serde_json::Error> = serde_json::to_writer(&mut start, other);
            Cow::Owned(String::from_utf8_lossy(&start.0).into_owned())
        }
    }
}

/// A writer that keeps a limited number of bytes, which is more than a message displays, and fails when this limit is
/// exceeded.
struct Start(Vec<u8>);

impl Write for Start {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        const BYTES_MAX: usize = 4 * (SHOWN_CHARS_MAX + 1);
        let kept = bytes.len().min(BYTES_MAX - self.0.len());
        self.0.extend_from_slice(&bytes[..kept]);
        if kept < bytes.len() { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(kept) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Makes a text safe to display: truncates it, and escapes all characters that move a cursor, hide text or change the
/// text direction.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN_CHARS_MAX));
    let mut characters = text.chars();
    for character in characters.by_ref().take(SHOWN_CHARS_MAX) {
        if is_invisible(character) {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_values_are_cut_and_escaped() {
        assert_eq!(visible("a\nb\0c\u{1b}[31m"), "a\\nb\\0c\\u{1b}[31m");
        assert_eq!(visible("acme/\u{202e}ipa\u{2028}x\u{200b}"), "acme/\\u{202e}ipa\\u{2028}x\\u{200b}");
        assert_eq!(visible("日本/é"), "日本/é");
        assert_eq!(visible(&"é".repeat(200)), "é".repeat(200));
        assert_eq!(visible(&"é".repeat(201)), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn a_template_does_not_multiply_a_value() {
        assert_eq!(filled("<{value}> {value}", "x"), "<x> x");
        let long = filled(&"{value}".repeat(37_000), &"é".repeat(800));
        assert!(long.len() <= 4096 + '…'.len_utf8() && long.ends_with("é…"), "{} bytes", long.len());
        assert_eq!(filled(&"y".repeat(4096), "x"), "y".repeat(4096));
    }

    #[test]
    fn the_name_of_an_unknown_tool_is_cut() {
        let denial = Denial::unknown_tool("no_such_tool");
        assert_eq!(denial.message, "Permission denied: tool 'no_such_tool' is not available to this bot");
        assert_eq!((denial.rule.as_str(), denial.status), ("unknown_tool", Status::PermissionDenied));
        assert_eq!(denial.code(), Code::Denied);
        assert!(Denial::unknown_tool(&"x\n".repeat(100_000)).message.len() < 600);
    }
}
