//! Reads what a step does.

use serde_json::{Map, Value};

use super::fields::{Fields, Parsing};
use super::steps::{self, DAYS_MAX};
use super::{is_workflow_name, schema};
use crate::expr::Template;
use crate::fault::At;
use crate::model::{AgentUse, Approve, Branch, EACH_ITEMS_MAX, Each, OnError, StepKind, ToolUse, Wait};
use crate::node::Node;

const EACH_CONCURRENCY_MAX: u32 = 16;
const EACH_CONCURRENCY_DEFAULT: u32 = 4;
const PARALLEL_BRANCHES_MAX: usize = 16;
/// Maximum number of branches of `choose`: each has a step, and its condition a part of the expressions.
const CHOOSE_BRANCHES_MAX: usize = 64;
const ROLES: [(&str, &str); 3] = [("admin", "admin"), ("operator", "operator"), ("approver", "approver")];
const DAY_MS: i64 = 86_400_000;

/// Reads the keys of the kind `name`.
pub(super) fn read(
    parsing: &mut Parsing,
    fields: &mut Fields<'_>,
    name: &'static str,
    at: At<'_>,
    depth: usize,
) -> Option<StepKind> {
    let node = fields.required(name, parsing)?;
    match name {
        "tool" => tool(parsing, fields, at).map(StepKind::Tool),
        "agent" => agent(parsing, node, At::Key(&at, "agent")).map(StepKind::Agent),
        "choose" => choose(parsing, node, At::Key(&at, "choose"), depth),
        "parallel" => parallel(parsing, node, At::Key(&at, "parallel"), depth),
        "each" => each(parsing, fields, at, depth).map(StepKind::Each),
        "wait" => wait(parsing, node, At::Key(&at, "wait")).map(StepKind::Wait),
        "approve" => approve(parsing, node, At::Key(&at, "approve")).map(StepKind::Approve),
        "workflow" => {
            let form = "a name has at most 63 lower case letters, digits and `-`, and starts with a letter";
            let workflow = parsing.name(node, At::Key(&at, "workflow"), is_workflow_name, form);
            let input = map_or_empty(parsing, fields, "input", at);
            Some(StepKind::Workflow { workflow: workflow?, input: input? })
        }
        "emit" => {
            let form = "a name has at most 128 letters, digits and `._:-`, and does not start with `custom.`";
            let name = parsing.name(node, At::Key(&at, "emit"), is_event_name, form);
            let data = map_or_empty(parsing, fields, "data", at);
            Some(StepKind::Emit { name: name?, data: data? })
        }
        _ => {
            let completed = parsing.word(node, At::Key(&at, "stop"), &[("completed", true), ("failed", false)]);
            let message = fields.optional("message");
            let message = message.and_then(|node| parsing.template_text(node, At::Key(&at, "message")));
            let output = fields.optional("output").and_then(|node| parsing.template(node, At::Key(&at, "output")));
            Some(StepKind::Stop { completed: completed?, message, output })
        }
    }
}

fn is_event_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))
        && !text.starts_with("custom.")
}

/// The exact type of an event: one of the platform's, or `custom.` and a name.
fn is_event_type(text: &str) -> bool {
    let name = text.strip_prefix("custom.").unwrap_or(text);
    is_event_name(name) && text.contains('.')
}

fn is_tool_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))
}

fn map_or_empty(parsing: &mut Parsing, fields: &mut Fields<'_>, key: &'static str, at: At<'_>) -> Option<Template> {
    match fields.optional(key) {
        Some(node) => parsing.template_map(node, At::Key(&at, key)),
        None => Some(Template::Literal(Value::Object(Map::new()))),
    }
}

/// Reads `tool`, `params` and `resource`.
pub(super) fn tool(parsing: &mut Parsing, fields: &mut Fields<'_>, at: At<'_>) -> Option<ToolUse> {
    let spot = fields.spot().clone();
    let node = fields.required("tool", parsing);
    let form = "a name has at most 128 letters, digits and `._:-`";
    let tool = node.and_then(|node| parsing.name(node, At::Key(&at, "tool"), is_tool_name, form));
    let spot = node.map_or(spot, |node| node.spot(At::Key(&at, "tool")));
    let params = map_or_empty(parsing, fields, "params", at);
    let resource = fields.optional("resource");
    let resource = resource.and_then(|node| parsing.template_text(node, At::Key(&at, "resource")));
    Some(ToolUse { tool: tool?, params: params?, resource, spot })
}

fn agent(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<AgentUse> {
    let mut fields = Fields::of(parsing, node, at, "a map with `instruction`")?;
    let instruction = fields.required("instruction", parsing);
    let instruction = instruction.and_then(|node| parsing.pieces(node, At::Key(&at, "instruction")));
    let params = map_or_empty(parsing, &mut fields, "params", at);
    let output_schema = fields.optional("output_schema");
    let output_schema = output_schema.and_then(|node| schema::read(parsing, node, At::Key(&at, "output_schema")));
    let mut plain = |key: &'static str| {
        let node = fields.optional(key)?;
        parsing.entries(node, At::Key(&at, key), "a map").map(|_| node.to_json())
    };
    let (limits, narrow) = (plain("limits"), plain("narrow"));
    fields.end(parsing, "`agent`");
    Some(AgentUse { instruction: instruction?, params: params?, output_schema, limits, narrow })
}

fn choose(parsing: &mut Parsing, node: &Node, at: At<'_>, depth: usize) -> Option<StepKind> {
    let items = parsing.list(node, at, "a list of branches")?;
    if items.is_empty() || items.len() > CHOOSE_BRANCHES_MAX {
        parsing.fault(node.spot(at).fault(format!("`choose` has 1 to {CHOOSE_BRANCHES_MAX} branches")));
        return None;
    }
    let mut branches = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = At::Index(&at, index);
        let Some(mut fields) = Fields::of(parsing, item, at, "a branch with `when` and `steps`") else { continue };
        let when = fields.optional("when");
        if when.is_none() && index + 1 < items.len() {
            parsing.fault(item.spot(at).fault("only the last branch may have no `when`"));
        }
        let when = when.and_then(|node| parsing.expression(node, At::Key(&at, "when")));
        let steps = fields.required("steps", parsing);
        let steps = steps.map(|node| steps::list(parsing, node, At::Key(&at, "steps"), depth)).unwrap_or_default();
        fields.end(parsing, "a branch");
        branches.push(Branch { when, steps });
    }
    Some(StepKind::Choose(branches))
}

fn parallel(parsing: &mut Parsing, node: &Node, at: At<'_>, depth: usize) -> Option<StepKind> {
    let entries = parsing.entries(node, at, "a map of branches")?;
    if !(2..=PARALLEL_BRANCHES_MAX).contains(&entries.len()) {
        parsing.fault(node.spot(at).fault(format!("`parallel` has 2 to {PARALLEL_BRANCHES_MAX} branches")));
        return None;
    }
    let mut branches = Vec::new();
    for entry in entries {
        let at = At::Key(&at, &entry.key);
        if !steps::is_id(&entry.key) {
            parsing.fault(entry.node.spot(at).fault(format!("`{}` is not a valid name of a branch", entry.key)));
        }
        branches.push((entry.key.clone(), steps::list(parsing, &entry.node, at, depth)));
    }
    Some(StepKind::Parallel(branches))
}

fn each(parsing: &mut Parsing, fields: &mut Fields<'_>, at: At<'_>, depth: usize) -> Option<Each> {
    let node = fields.required("each", parsing)?;
    let list = parsing.template(node, At::Key(&at, "each"));
    if !matches!(list, Some(Template::Expression(_) | Template::List(_) | Template::Literal(Value::Array(_))) | None) {
        let fault = node.spot(At::Key(&at, "each")).fault("expected a list, or an expression that gives one");
        parsing.fault(fault.hint("write `${{ … }}` without text around it"));
    }
    let items = match &list {
        Some(Template::Literal(Value::Array(items))) => items.len(),
        Some(Template::List(items)) => items.len(),
        _ => 0,
    };
    if items > EACH_ITEMS_MAX {
        let message = format!("a list of `each` has at most {EACH_ITEMS_MAX} items, found {items}");
        parsing.fault(node.spot(At::Key(&at, "each")).fault(message));
    }
    let concurrency = fields.optional("concurrency");
    let concurrency =
        concurrency.and_then(|node| parsing.integer(node, At::Key(&at, "concurrency"), EACH_CONCURRENCY_MAX));
    let on_item_error = fields.optional("on_item_error");
    let on_item_error: Option<OnError> =
        on_item_error.and_then(|node| steps::on_error(parsing, node, At::Key(&at, "on_item_error")));
    let collect = fields.optional("collect").and_then(|node| parsing.expression(node, At::Key(&at, "collect")));
    let steps = fields.required("steps", parsing);
    let steps = steps.map(|node| steps::list(parsing, node, At::Key(&at, "steps"), depth)).unwrap_or_default();
    Some(Each {
        list: list?,
        steps,
        concurrency: concurrency.unwrap_or(EACH_CONCURRENCY_DEFAULT),
        on_item_error: on_item_error.unwrap_or_default(),
        collect,
    })
}

fn wait(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Wait> {
    let mut fields = Fields::of(parsing, node, at, "a map with `for`, `until` or `event`")?;
    let given: Vec<&str> = ["for", "until", "event"].into_iter().filter(|key| fields.has(key)).collect();
    let wait = match given.as_slice() {
        ["for"] => {
            let node = fields.required("for", parsing)?;
            parsing.duration(node, At::Key(&at, "for"), DAYS_MAX).map(Wait::For)
        }
        ["until"] => {
            let node = fields.required("until", parsing)?;
            parsing.template_text(node, At::Key(&at, "until")).map(Wait::Until)
        }
        ["event"] => {
            let node = fields.required("event", parsing)?;
            let form = "give the whole type, such as `custom.deployed` or `task.completed`";
            let event_type = parsing.name(node, At::Key(&at, "event"), is_event_type, form);
            let matches = fields.optional("match").and_then(|node| matches(parsing, node, At::Key(&at, "match")));
            let since = fields.optional("since");
            let since =
                since.and_then(|node| parsing.word(node, At::Key(&at, "since"), &[("step", false), ("run", true)]));
            event_type.map(|event_type| Wait::Event {
                event_type,
                matches: matches.unwrap_or_default(),
                since_run: since.unwrap_or(false),
            })
        }
        _ => {
            let fault = node.spot(at).fault("`wait` has exactly one of `for`, `until` and `event`");
            parsing.fault(fault);
            return None;
        }
    };
    fields.end(parsing, "`wait`");
    wait
}

fn matches(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Vec<(String, Template)>> {
    let entries = parsing.entries(node, at, "a map of fields")?;
    let read = |entry: &crate::node::Entry| {
        Some((entry.key.clone(), parsing.template(&entry.node, At::Key(&at, &entry.key))?))
    };
    Some(entries.iter().filter_map(read).collect())
}

fn approve(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Approve> {
    let mut fields = Fields::of(parsing, node, at, "a map with `text`")?;
    let text = fields.required("text", parsing);
    let text = text.and_then(|node| parsing.template_text(node, At::Key(&at, "text")));
    let targets = fields.optional("for").and_then(|node| parsing.texts(node, At::Key(&at, "for"))).unwrap_or_default();
    let by = match fields.optional("by") {
        Some(node) => {
            let at = At::Key(&at, "by");
            let items = parsing.list(node, at, "a list of roles").unwrap_or_default();
            if items.is_empty() {
                parsing.fault(node.spot(at).fault("nobody may decide").hint("name at least one role"));
            }
            let words = items.iter().enumerate();
            words.filter_map(|(index, item)| parsing.word(item, At::Index(&at, index), &ROLES)).collect()
        }
        None => vec!["admin", "operator", "approver"],
    };
    let expires = fields.optional("expires");
    let expires = expires.and_then(|node| parsing.duration(node, At::Key(&at, "expires"), DAYS_MAX));
    let starter = fields.optional("allow_starter");
    let allow_starter = starter.and_then(|node| parsing.boolean(node, At::Key(&at, "allow_starter"))).unwrap_or(true);
    fields.end(parsing, "`approve`");
    Some(Approve {
        text: text?,
        targets,
        by: by.into_iter().map(str::to_owned).collect(),
        expires_ms: expires.unwrap_or(DAY_MS),
        allow_starter,
    })
}
