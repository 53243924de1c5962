//! `monstrum audit show`: a call, and the calls below it as a tree.

use std::collections::HashMap;
use std::process::ExitCode;

use monstrum_types::RequestId;
use serde_json::Value;

use crate::cli::client::{Client, NOT_MONSTRUM};
use crate::cli::failure::Failure;
use crate::cli::{Options, output};

/// The maximum number of calls of a tree, which is also the limit of the API.
const CALLS_MAX: &str = "200";
/// The fields of the call, with the names under which they are shown.
const FIELDS: [(&str, &str); 14] = [
    ("request", "request_id"),
    ("tool", "tool"),
    ("operation", "operation"),
    ("status", "status"),
    ("code", "code"),
    ("rule", "rule"),
    ("message", "message"),
    ("bot", "bot_id"),
    ("resource", "resource_id"),
    ("task", "task_id"),
    ("parent", "parent_request_id"),
    ("started", "started_at"),
    ("ms", "duration_ms"),
    ("params", "params"),
];

pub(super) async fn run(options: &Options, request: RequestId) -> Result<ExitCode, Failure> {
    let query = [("tree", request.to_string()), ("limit", CALLS_MAX.to_owned())];
    let tree = Client::new(options)?.get(&["api", "audit"], &query).await?;
    if options.json {
        output::json(&tree)?;
        return Ok(ExitCode::SUCCESS);
    }
    let calls = tree["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(root) = calls.first() else {
        return Err(Failure::new("the server's response contains no call", NOT_MONSTRUM));
    };
    output::given_fields(root, &FIELDS)?;
    if calls.len() > 1 {
        output::line("")?;
        for line in lines(calls) {
            output::line(output::plain(&line))?;
        }
    }
    if let Some(omitted) = tree["omitted"].as_u64() {
        output::note(&format!("{omitted} more calls below this call are not shown; show one of its calls instead"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each call, indented below its parent. `calls` begins with the root, and a parent precedes its child
/// calls.
fn lines(calls: &[Value]) -> Vec<String> {
    let mut children: HashMap<&str, Vec<&Value>> = HashMap::new();
    for call in calls.iter().skip(1).rev() {
        children.entry(text(&call["parent_request_id"])).or_default().push(call);
    }
    let mut lines = Vec::with_capacity(calls.len());
    let mut open: Vec<(&Value, usize)> = calls.first().map(|root| (root, 0)).into_iter().collect();
    while let Some((call, depth)) = open.pop() {
        lines.push(line(call, depth));
        let below = children.remove(text(&call["request_id"])).unwrap_or_default();
        open.extend(below.into_iter().map(|child| (child, depth + 1)));
    }
    lines
}

fn line(call: &Value, depth: usize) -> String {
    let name = if call["tool"].is_null() { &call["operation"] } else { &call["tool"] };
    let mut line = format!("{:width$}{}  {}", "", output::cell(name), output::cell(&call["status"]), width = depth * 2);
    if let Some(ms) = call["duration_ms"].as_i64() {
        line.push_str(&format!("  {ms} ms"));
    }
    line.push_str("  ");
    line.push_str(text(&call["request_id"]));
    if let Some(message) = call["message"].as_str() {
        line.push_str("  ");
        line.push_str(message);
    }
    // A message of several lines would look like several calls.
    line.replace('\n', " ")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_below_the_calls_that_made_them() {
        let call = |id: &str, parent: Option<&str>| json!({ "request_id": id, "parent_request_id": parent, "tool": id, "status": "success", "duration_ms": 1 });
        let mut calls = vec![call("a", Some("x")), call("b", Some("a")), call("c", Some("a")), call("d", Some("b"))];
        calls[2]["message"] = json!("two\nlines");
        assert_eq!(
            lines(&calls),
            [
                "a  success  1 ms  a",
                "  b  success  1 ms  b",
                "    d  success  1 ms  d",
                "  c  success  1 ms  c  two lines",
            ]
        );
    }
}
