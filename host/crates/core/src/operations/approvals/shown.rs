//! Approvals in the form of the API.

use monstrum_api::approvals::{Approval, ApprovalTarget, ApprovalUser, AskedBy, FullApproval, ShortApproval};
use monstrum_store::{ApprovalKind, ApprovalRow};
use monstrum_types::{JsonText, is_invisible};
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::app::App;
use crate::approvals::{Params, StepQuestion, targets_of};

/// Returns an approval as its approvers read it.
pub(super) fn full(app: &App, row: ApprovalRow, params: Params) -> Approval {
    let (params, params_omitted) = match params {
        Params::Whole(params) => (Some(written_out(params.value())), false),
        Params::Omitted => (None, true),
        Params::Deleted => (None, false),
    };
    let (params, question) = match row.kind {
        ApprovalKind::Call => (params, None),
        ApprovalKind::Step => (None, params.and_then(|question| StepQuestion::deserialize(question).ok())),
    };
    let targets = (row.kind == ApprovalKind::Step).then(|| shown_targets(&row, question.as_ref()));
    let url = app.approvals.url(row.workspace_id, row.id);
    let user = row.app_id.zip(row.user_id);
    let user = user.map(|(app, user)| ApprovalUser { app_id: visible(app), user_id: visible(user) });
    Approval::Full(Box::new(FullApproval {
        id: row.id,
        kind: row.kind.as_str().to_owned(),
        status: row.status.as_str().to_owned(),
        digest: row.digest.to_string(),
        bot_id: row.bot_id,
        user,
        tool: row.tool,
        resource_id: row.resource_id,
        operation: row.operation,
        effect: row.effect,
        run_id: row.run_id,
        step: row.run_step,
        item: row.item,
        text: question.map(|question| question.text),
        targets,
        params: params.as_ref().map(JsonText::from),
        params_omitted,
        links: row.links,
        labels: row.labels,
        gates: row.gates,
        approvers: row.approvers,
        allow_starter: row.allow_starter,
        asked_by: AskedBy { key_id: row.asked_key, task_id: row.asked_task },
        request_id: row.request_id,
        created_at: row.created_at,
        expires_at: row.expires_at,
        decided_by: row.decided_by,
        decided_at: row.decided_at,
        note: row.note,
        url,
    }))
}

/// Returns the calls that the approval of a step names. The record of the question has their parameters.
fn shown_targets(row: &ApprovalRow, question: Option<&StepQuestion>) -> Vec<ApprovalTarget> {
    let targets = targets_of(row).unwrap_or_default();
    let params = |index: usize| question.and_then(|question| question.params.get(index)).map(JsonText::from);
    let shown = targets.into_iter().enumerate().map(|(index, target)| ApprovalTarget {
        step: target.step,
        tool: target.tool,
        resource_id: target.resource_id,
        operation: target.operation,
        effect: target.effect,
        params: params(index),
    });
    shown.collect()
}

/// Returns an approval as its bot reads it.
pub(super) fn short(row: ApprovalRow) -> Approval {
    let ApprovalRow { id, status, expires_at, note, .. } = row;
    Approval::Short(ShortApproval { id, status: status.as_str().to_owned(), expires_at, note })
}

/// Replaces invisible characters in all texts of a value with escapes, so that a person sees what the call would send.
fn written_out(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(written_out).collect()),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (visible(name), written_out(value)));
            Value::Object(members.collect::<Map<String, Value>>())
        }
        other => other,
    }
}

/// Writes invisible characters as escapes. Line feeds and tabs stay, because JSON itself escapes them.
fn visible(text: String) -> String {
    let is_hidden = |character: char| is_invisible(character) && !matches!(character, '\n' | '\t');
    if !text.contains(is_hidden) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_hidden(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invisible_characters_are_written_out() {
        let params = json!({ "a\u{202e}b": ["x\u{200b}y", { "z": "1\n2\t\u{1b}" }], "n": 9_007_199_254_740_993_u64 });
        assert_eq!(
            written_out(params),
            json!({
                "a\\u{202e}b": ["x\\u{200b}y", { "z": "1\n2\t\\u{1b}" }],
                "n": 9_007_199_254_740_993_u64,
            })
        );
    }
}
