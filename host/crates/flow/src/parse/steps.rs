//! Reads steps.

use super::fields::{Fields, Parsing};
use super::kinds;
use crate::expr::reserved_words;
use crate::fault::{At, nearest};
use crate::model::{
    BLOCK_DEPTH_MAX, OnError, OnUncertain, RETRY_ATTEMPTS_MAX, Retry, STEPS_IN_DEFINITION_MAX, Step, StepKind,
};
use crate::node::Node;

/// The keys that name a kind.
const KINDS: [&str; 10] =
    ["tool", "agent", "choose", "parallel", "each", "wait", "approve", "workflow", "emit", "stop"];
/// The keys that do not name a kind.
const OTHER_KEYS: [&str; 18] = [
    "id",
    "when",
    "needs",
    "timeout",
    "retry",
    "on_error",
    "on_uncertain",
    "undo",
    "params",
    "resource",
    "steps",
    "concurrency",
    "on_item_error",
    "collect",
    "input",
    "data",
    "message",
    "output",
];
const ON_ERROR: [(&str, OnError); 2] = [("fail", OnError::Fail), ("continue", OnError::Continue)];
const ID_FORM: &str = "an id has at most 63 lower case letters, digits and `_`, and starts with a letter";
/// Maximum duration of an attempt, a pause or a question in days, as for a whole run.
pub(super) const DAYS_MAX: i64 = 30;

/// Reads a list of steps. A step needs the one before it, unless it says otherwise.
pub(super) fn list(parsing: &mut Parsing, node: &Node, at: At<'_>, depth: usize) -> Vec<Step> {
    let Some(items) = parsing.list(node, at, "a list of steps") else { return Vec::new() };
    if items.is_empty() {
        parsing.fault(node.spot(at).fault("the list has no steps"));
    }
    let mut steps: Vec<Step> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        parsing.steps += 1;
        if parsing.steps == STEPS_IN_DEFINITION_MAX + 1 {
            let message = format!("the definition has more than {STEPS_IN_DEFINITION_MAX} steps");
            parsing.fault(item.spot(At::Index(&at, index)).fault(message));
        }
        if parsing.steps > STEPS_IN_DEFINITION_MAX {
            break;
        }
        let before = steps.last().map(|step| step.id.clone());
        steps.extend(step(parsing, item, At::Index(&at, index), depth, before));
    }
    steps
}

fn step(parsing: &mut Parsing, node: &Node, at: At<'_>, depth: usize, before: Option<String>) -> Option<Step> {
    let mut fields = Fields::of(parsing, node, at, "a step")?;
    let id = match fields.required("id", parsing) {
        Some(node) => self_id(parsing, node, At::Key(&at, "id")),
        None => None,
    };
    let when = fields.optional("when").and_then(|node| parsing.expression(node, At::Key(&at, "when")));
    let needs = match fields.optional("needs") {
        Some(node) => parsing.texts(node, At::Key(&at, "needs")).unwrap_or_default(),
        None => before.into_iter().collect(),
    };
    let timeout_ms =
        fields.optional("timeout").and_then(|node| parsing.duration(node, At::Key(&at, "timeout"), DAYS_MAX));
    let retry = fields.optional("retry").and_then(|node| retry(parsing, node, At::Key(&at, "retry")));
    let on_error = fields.optional("on_error").and_then(|node| parsing.word(node, At::Key(&at, "on_error"), &ON_ERROR));
    let on_uncertain = fields.optional("on_uncertain").and_then(|node| {
        let words = [("fail", OnUncertain::Fail), ("retry", OnUncertain::Retry), ("ask", OnUncertain::Ask)];
        parsing.word(node, At::Key(&at, "on_uncertain"), &words)
    });
    let undo = fields.optional("undo");
    let kind = kind(parsing, &mut fields, at, depth);
    let kind_name = kind.as_ref().map(|(name, _)| *name);
    if let Some(name) = kind_name {
        check_keys(parsing, &fields, name);
    }
    let undo = undo.and_then(|node| {
        let at = At::Key(&at, "undo");
        let mut fields = Fields::of(parsing, node, at, "a map with `tool` and `params`")?;
        let undo = kinds::tool(parsing, &mut fields, at);
        fields.end(parsing, "`undo`");
        undo
    });
    let what = kind_name.map_or("a step".to_owned(), |name| format!("a `{name}` step"));
    let spot = fields.spot().clone();
    // Without a kind, the keys of all kinds may be meant.
    if kind_name.is_some() {
        fields.end(parsing, &what);
    }
    let kind = kind.and_then(|(_, kind)| kind);
    if kind.is_none() {
        parsing.broken.extend(id.clone());
    }
    Some(Step {
        id: id?,
        kind: kind?,
        when,
        needs,
        timeout_ms,
        retry: retry.unwrap_or_default(),
        on_error: on_error.unwrap_or_default(),
        on_uncertain: on_uncertain.unwrap_or_default(),
        undo,
        spot,
    })
}

fn self_id(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<String> {
    let id = parsing.name(node, at, is_id, ID_FORM)?;
    if reserved_words().contains(&id.as_str()) {
        let fault = node.spot(at).fault(format!("`{id}` is a word of the expression language"));
        parsing.fault(fault.hint("use another id"));
        return None;
    }
    Some(id)
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Reads the kind. The outer `None` says that it is not known which kind is meant.
fn kind(
    parsing: &mut Parsing,
    fields: &mut Fields<'_>,
    at: At<'_>,
    depth: usize,
) -> Option<(&'static str, Option<StepKind>)> {
    let named: Vec<&'static str> = KINDS.into_iter().filter(|kind| fields.has(kind)).collect();
    let name = match named.as_slice() {
        [name] => *name,
        [] => {
            let fault = fields.spot().fault("the step does not say what it does");
            let unknown = fields.keys().filter(|key| !OTHER_KEYS.contains(key));
            let meant = unknown.filter_map(|key| nearest(key, KINDS)).next();
            parsing.fault(match meant {
                Some(kind) => fault.hint(format!("did you mean `{kind}`?")),
                None => fault.hint(format!("add one of {}", KINDS.join(", "))),
            });
            return None;
        }
        several => {
            let message = format!("the step has {} kinds: {}", several.len(), several.join(", "));
            parsing.fault(fields.spot().fault(message).hint("make a step of each"));
            return None;
        }
    };
    if matches!(name, "choose" | "parallel" | "each") && depth >= BLOCK_DEPTH_MAX {
        parsing.fault(fields.spot().fault(format!("blocks are nested deeper than {BLOCK_DEPTH_MAX} levels")));
        return None;
    }
    Some((name, kinds::read(parsing, fields, name, at, depth + 1)))
}

/// Refuses keys that have no meaning for this kind.
fn check_keys(parsing: &mut Parsing, fields: &Fields<'_>, name: &str) {
    let path = |key: &str| fields.key_spot(key);
    if fields.has("undo") && name != "tool" {
        parsing.fault(path("undo").fault("only `tool` steps have `undo`"));
    }
    let repeats = matches!(name, "tool" | "agent" | "workflow" | "emit");
    if fields.has("retry") && !repeats {
        let fault = path("retry").fault(format!("a `{name}` step is not repeated"));
        parsing.fault(fault.hint("`tool`, `agent`, `workflow` and `emit` steps have `retry`"));
    }
    if fields.has("on_uncertain") && !repeats {
        let fault = path("on_uncertain").fault(format!("a `{name}` step is never uncertain"));
        parsing.fault(fault.hint("`tool`, `agent`, `workflow` and `emit` steps have `on_uncertain`"));
    }
    if fields.has("timeout") && name == "stop" {
        parsing.fault(path("timeout").fault("a `stop` step takes no time"));
    }
}

fn retry(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Retry> {
    let mut fields = Fields::of(parsing, node, at, "a map with `attempts`")?;
    let mut retry = Retry::default();
    let attempts = fields.required("attempts", parsing);
    let attempts = attempts.and_then(|node| parsing.integer(node, At::Key(&at, "attempts"), RETRY_ATTEMPTS_MAX));
    retry.attempts = attempts.unwrap_or(retry.attempts);
    let backoff = fields.optional("backoff");
    let backoff = backoff.and_then(|node| parsing.duration(node, At::Key(&at, "backoff"), DAYS_MAX));
    retry.backoff_ms = backoff.unwrap_or(retry.backoff_ms);
    let most = fields.optional("backoff_max");
    let most = most.and_then(|node| parsing.duration(node, At::Key(&at, "backoff_max"), DAYS_MAX));
    retry.backoff_max_ms = most.unwrap_or(retry.backoff_max_ms.max(retry.backoff_ms));
    if retry.backoff_max_ms < retry.backoff_ms {
        parsing.fault(fields.spot().fault("`backoff_max` is shorter than `backoff`"));
    }
    retry.on = fields.optional("on").and_then(|node| parsing.texts(node, At::Key(&at, "on"))).unwrap_or_default();
    fields.end(parsing, "`retry`");
    Some(retry)
}

pub(super) fn on_error(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<OnError> {
    parsing.word(node, at, &ON_ERROR)
}
