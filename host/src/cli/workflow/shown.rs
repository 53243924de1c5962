//! How runs and their steps are printed.

use monstrum_types::{RunId, UtcMillis};
use owo_colors::{OwoColorize as _, Stream};
use serde_json::Value;

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::output;

/// The number of characters of parameters and results that a line shows.
const SHORTENED_CHARS: usize = 100;

/// Prints a run with its steps.
pub(super) async fn one(client: &Client, run: RunId, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 16] = [
        ("id", "id"),
        ("workflow", "workflow"),
        ("version", "version"),
        ("status", "status"),
        ("attempt", "attempt"),
        ("error", "error"),
        ("waits for", "waiting_for"),
        ("uncertain", "uncertain"),
        ("not undone", "undo_failed"),
        ("bot", "bot_id"),
        ("started by", "started_by"),
        ("labels", "labels"),
        ("created", "created_at"),
        ("ended", "ended_at"),
        ("input", "input"),
        ("output", "output"),
    ];
    let id = run.to_string();
    let mut shown = client.get(&["api", "runs", &id], &[]).await?;
    let steps = client.items(&["api", "runs", &id, "steps"], &[]).await?;
    if is_json {
        shown["items"] = Value::Array(steps);
        return output::json(&shown);
    }
    let (by, waits, error) = (started_by(&shown), waiting_for(&shown), error(&shown));
    for (field, text) in [("started_by", by), ("waiting_for", waits), ("error", error)] {
        shown[field] = if text.is_empty() { Value::Null } else { Value::String(text) };
    }
    for field in ["uncertain", "undo_failed"] {
        let names: Vec<Value> = steps_of(&shown[field]).into_iter().map(Value::String).collect();
        shown[field] = if names.is_empty() { Value::Null } else { Value::Array(names) };
    }
    if shown["labels"].as_array().is_some_and(Vec::is_empty) {
        shown["labels"] = Value::Null;
    }
    output::given_fields(&shown, &FIELDS)?;
    if steps.is_empty() {
        output::note("the run has no steps yet");
        return Ok(());
    }
    let rows = steps.iter().map(|step| {
        let attempt = format!("{}.{}", output::cell(&step["run_attempt"]), output::cell(&step["attempt"]));
        let fields = ["kind", "status", "started_at"].map(|field| output::cell(&step[field]));
        let [kind, status, started] = fields;
        vec![name(step), kind, status, attempt, started, what(step)]
    });
    output::line("")?;
    output::table(&["STEP", "KIND", "STATUS", "ATTEMPT", "STARTED", "WHAT"], rows.collect())
}

/// Returns the name of a step of the journal, such as `label[3]` or `announce (undo)`.
pub(super) fn name(step: &Value) -> String {
    let item = step["item"].as_str().unwrap_or_default();
    step_name(&output::cell(&step["step"]), item, step["undo"] == true)
}

/// Returns the name of a step, with the item of its list.
pub(super) fn step_name(step: &str, item: &str, is_undo: bool) -> String {
    let item = if item.is_empty() { String::new() } else { format!("[{item}]") };
    format!("{step}{item}{}", if is_undo { " (undo)" } else { "" })
}

/// Returns what a run waits for, on one line.
pub(super) fn waiting_for(run: &Value) -> String {
    let waits = run["waiting_for"].as_array().into_iter().flatten();
    waits.map(wait).collect::<Vec<_>>().join("; ")
}

/// Returns what a step waits for: `ok: approval 01998a3c-…`.
pub(super) fn wait(wait: &Value) -> String {
    let mut text = format!("{}: {}", name(wait), output::cell(&wait["kind"]));
    if let Some(id) = wait["id"].as_str() {
        text.push_str(&format!(" {id}"));
    }
    if let Some(until) = wait["until"].as_str() {
        text.push_str(&format!(" until {until}"));
    }
    text
}

/// Returns the names of steps.
pub(super) fn steps_of(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(name).collect()
}

/// Returns why a run failed: `announce: upstream: the upstream answered 500`.
pub(super) fn error(run: &Value) -> String {
    let error = &run["error"];
    if error.is_null() {
        return String::new();
    }
    let at = if error["step"].is_null() { String::new() } else { format!("{}: ", name(error)) };
    format!("{at}{}: {}", output::cell(&error["code"]), output::cell(&error["message"]))
}

fn started_by(run: &Value) -> String {
    let [kind, id] = ["kind", "id"].map(|field| output::cell(&run["started_by"][field]));
    format!("{kind} {id}").trim().to_owned()
}

/// Returns what an attempt was given, and why it failed.
fn what(step: &Value) -> String {
    let mut text = given(step);
    let error = &step["error"];
    if !error.is_null() {
        let separator = if text.is_empty() { "" } else { "  " };
        text.push_str(&format!("{separator}{}: {}", output::cell(&error["code"]), output::cell(&error["message"])));
    }
    text
}

/// Returns what an attempt was given: the tool with its parameters, or other values of the step.
fn given(step: &Value) -> String {
    let params = if step["params"].is_null() { String::new() } else { step["params"].to_string() };
    let text = match step["tool"].as_str() {
        Some(tool) => format!("{tool} {params}"),
        None => params,
    };
    match text.char_indices().nth(SHORTENED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns an attempt that has ended, on one line.
pub(super) fn line(step: &Value) -> String {
    let status = output::cell(&step["status"]);
    let mark = match status.as_str() {
        "succeeded" => "✓".if_supports_color(Stream::Stdout, |mark| mark.green()).to_string(),
        "failed" => "✗".if_supports_color(Stream::Stdout, |mark| mark.red()).to_string(),
        "uncertain" => "?".if_supports_color(Stream::Stdout, |mark| mark.yellow()).to_string(),
        _ => "·".if_supports_color(Stream::Stdout, |mark| mark.dimmed()).to_string(),
    };
    let mut text = name(step);
    // The marks of the two most frequent statuses stand for them.
    if !matches!(status.as_str(), "succeeded" | "failed") {
        text.push_str(&format!(" {status}"));
    }
    let attempt = step["attempt"].as_u64().filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}"));
    let details: Vec<String> = attempt.into_iter().chain(time_of(step, "started_at")).collect();
    if !details.is_empty() {
        text.push_str(&format!(" ({})", details.join(", ")));
    }
    let what = what(step);
    if !what.is_empty() {
        text.push_str(&format!("  {what}"));
    }
    format!("{mark} {}", output::plain(&text.replace('\n', " ")))
}

/// Returns how long something took that has ended, if that was a second or longer.
pub(super) fn time_of(object: &Value, began: &str) -> Option<String> {
    let time = |field: &str| object[field].as_str()?.parse::<UtcMillis>().ok();
    let seconds = time("ended_at")?.since_ms(time(began)?) / 1000;
    match seconds {
        ..1 => None,
        1..120 => Some(format!("{seconds} s")),
        120..7200 => Some(format!("{} min", seconds / 60)),
        _ => Some(format!("{} h", seconds / 3600)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_is_one_line() {
        let step = json!({
            "step": "announce", "item": "3.0", "attempt": 2, "started_at": "2027-01-04T09:00:00.000Z",
            "ended_at": "2027-01-04T09:01:30.500Z", "kind": "tool", "status": "failed",
            "tool": "github_create_issue", "params": { "repo": "acme/site" },
            "error": { "code": "upstream", "message": "it\nanswered 500" },
        });
        assert_eq!(
            line(&step),
            "✗ announce[3.0] (attempt 2, 90 s)  github_create_issue {\"repo\":\"acme/site\"}  upstream: it answered 500"
        );
        let skipped = json!({ "step": "tell", "attempt": 1, "status": "skipped", "params": null });
        assert_eq!(line(&skipped), "· tell skipped");
        let undone = json!({ "step": "announce", "undo": true, "attempt": 1, "status": "succeeded", "params": null });
        assert_eq!(line(&undone), "✓ announce (undo)");
        let long = json!({ "step": "a", "status": "succeeded", "params": { "x": "ä".repeat(500) } });
        assert_eq!(line(&long).chars().count(), "✓ a  ".chars().count() + SHORTENED_CHARS + 1);
    }

    #[test]
    fn short_times_are_not_shown() {
        let took = |end: &str| time_of(&json!({ "created_at": "2027-01-04T09:00:00Z", "ended_at": end }), "created_at");
        assert_eq!(took("2027-01-04T09:00:00.900Z"), None);
        assert_eq!(took("2027-01-04T09:00:01.900Z").as_deref(), Some("1 s"));
        assert_eq!(took("2027-01-04T09:02:01Z").as_deref(), Some("2 min"));
        assert_eq!(took("2027-01-05T11:00:00Z").as_deref(), Some("26 h"));
        assert_eq!(took("never"), None);
    }

    #[test]
    fn what_a_run_waits_for_is_one_line() {
        let run = json!({ "waiting_for": [
            { "step": "ok", "kind": "approval", "id": "a", "until": "t" },
            { "step": "label", "item": "3", "kind": "resolve" },
        ] });
        assert_eq!(waiting_for(&run), "ok: approval a until t; label[3]: resolve");
        assert_eq!(waiting_for(&json!({})), "");
        assert_eq!(steps_of(&json!([{ "step": "a" }, { "step": "b", "item": "0" }])), ["a", "b[0]"]);
        let failed = json!({ "error": { "step": "a", "code": "timeout", "message": "too late" } });
        assert_eq!(error(&failed), "a: timeout: too late");
    }
}
