//! Translates the outcome of a call into the result of `tools/call`.
//!
//! A call that ran and failed, and a call that the host refused, are results with `isError`, because models read
//! results. Models never see JSON-RPC errors.

use monstrum_manifest::ResultForm;
use monstrum_types::{JsonText, Status};
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Map, Value, json};

use crate::offer::Outcome;

/// The text before a result that does not match the tool's output schema. Client libraries reject such a result if it
/// is structured, and a model would then repeat the call.
const MISMATCH: &str = "The call succeeded, but its result does not match the tool's output schema:";

/// Returns the result for a client. If `is_legacy`, structured content must be an object.
pub(crate) fn result(outcome: &Outcome, is_legacy: bool) -> CallToolResult {
    if outcome.status != Status::Success {
        return failure(outcome);
    }
    let data = outcome.data.as_ref();
    let value = data.map(JsonText::value);
    if outcome.form == ResultForm::Content
        && !outcome.output_mismatch
        && let Some(Value::Object(members)) = value
    {
        return content(members, is_legacy);
    }
    let text = match (&value, data) {
        (Some(Value::String(text)), _) => text.clone(),
        (_, Some(data)) => data.as_str().to_owned(),
        (_, None) => String::new(),
    };
    if outcome.output_mismatch {
        return CallToolResult::error(vec![ContentBlock::text(format!("{MISMATCH}\n{text}"))]);
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = value.filter(|value| !is_legacy || value.is_object());
    result
}

/// Returns the result of a tool whose data is a list of content blocks. The pipeline has checked the blocks.
fn content(mut members: Map<String, Value>, is_legacy: bool) -> CallToolResult {
    let blocks = members.shift_remove("content").unwrap_or_default();
    let Ok(blocks) = serde_json::from_value::<Vec<ContentBlock>>(blocks) else {
        let message =
            "The call succeeded, but a member of its content blocks has a form that the protocol does not know.";
        return CallToolResult::error(vec![ContentBlock::text(message)]);
    };
    let mut result = CallToolResult::success(blocks);
    let structured = members.shift_remove("structured");
    result.structured_content = structured.filter(|value| !is_legacy || value.is_object());
    result
}

fn failure(outcome: &Outcome) -> CallToolResult {
    let mut text = outcome.message.clone().unwrap_or_else(|| "the call failed".to_owned());
    if let Some(approval) = &outcome.approval {
        text.push_str(&match &approval.url {
            Some(url) => format!("\nA person can decide at {url}; then call the tool again."),
            None => format!(
                "\nAn operator can decide with `monstrum approval approve {}`; then call the tool again.",
                approval.id
            ),
        });
    }
    if let Some(url) = &outcome.connect_url {
        text.push_str(&format!("\nThe user can authorize it at {url}; then call the tool again."));
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.meta = Some(meta(outcome));
    result
}

/// Returns the metadata of an answer to a call that did not succeed.
pub(crate) fn meta(outcome: &Outcome) -> MetaObject {
    let mut meta = MetaObject::new();
    meta.insert("monstrum/status".to_owned(), json!(outcome.status));
    if let Some(code) = &outcome.code {
        meta.insert("monstrum/code".to_owned(), json!(code));
    }
    meta.insert("monstrum/request_id".to_owned(), json!(outcome.request_id));
    meta
}

#[cfg(test)]
mod tests {
    use monstrum_types::{AwaitedApproval, Code, RequestId, UtcMillis};

    use super::*;

    fn success(data: &Value) -> Outcome {
        Outcome {
            request_id: "019a0000-0000-7000-8000-000000000001".parse::<RequestId>().unwrap(),
            status: Status::Success,
            code: None,
            message: None,
            data: Some(JsonText::from(data)),
            form: ResultForm::Json,
            output_mismatch: false,
            approval: None,
            connect_url: None,
            request_state: None,
        }
    }

    fn json_of(outcome: &Outcome, is_legacy: bool) -> Value {
        serde_json::to_value(result(outcome, is_legacy)).unwrap()
    }

    #[test]
    fn structured_content_of_an_earlier_revision_is_an_object() {
        let object = json!({"a": 1});
        for is_legacy in [false, true] {
            let answer = json_of(&success(&object), is_legacy);
            assert_eq!((&answer["structuredContent"], &answer["isError"]), (&object, &json!(false)));
            assert_eq!(answer["content"], json!([{"type": "text", "text": "{\"a\":1}"}]));
        }
        for data in [json!("a\nb"), json!([1]), json!(null)] {
            assert_eq!(json_of(&success(&data), false)["structuredContent"], data);
            assert!(json_of(&success(&data), true).get("structuredContent").is_none());
        }
        assert_eq!(json_of(&success(&json!("a\nb")), false)["content"][0]["text"], "a\nb");
    }

    #[test]
    fn a_result_that_misses_its_schema_is_an_error_that_says_that_the_call_succeeded() {
        let answer = json_of(&Outcome { output_mismatch: true, ..success(&json!({"a": 1})) }, false);
        assert_eq!(answer["isError"], json!(true));
        assert_eq!(answer["content"][0]["text"], format!("{MISMATCH}\n{{\"a\":1}}"));
        assert!(answer.get("structuredContent").is_none());
    }

    #[test]
    fn content_blocks_are_passed_on() {
        let blocks = json!([
            {"type": "text", "text": "a"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "a"}},
            {"type": "resource_link", "uri": "https://example.com/", "name": "c"},
        ]);
        let of = |data: Value| Outcome { form: ResultForm::Content, ..success(&data) };
        let answer = json_of(&of(json!({"content": blocks, "structured": [1]})), false);
        assert_eq!((&answer["content"], &answer["structuredContent"]), (&blocks, &json!([1])));
        let answer = json_of(&of(json!({"content": blocks, "structured": [1]})), true);
        assert!(answer.get("structuredContent").is_none(), "{answer}");
        let odd = json!({"content": [{"type": "text", "text": "a", "annotations": {"audience": [1]}}]});
        let answer = json_of(&of(odd.clone()), false);
        assert_eq!(answer["isError"], json!(true), "{answer}");
        let mismatch = Outcome { output_mismatch: true, ..of(odd) };
        assert!(json_of(&mismatch, false)["content"][0]["text"].as_str().unwrap().starts_with(MISMATCH));
    }

    #[test]
    fn an_approval_names_where_a_person_decides() {
        let id = "019a0000-0000-7000-8000-000000000002".parse().unwrap();
        let text = |url: Option<&str>| {
            let approval = AwaitedApproval { id, url: url.map(str::to_owned), expires_at: UtcMillis(0) };
            let outcome = Outcome {
                status: Status::ApprovalRequired,
                code: Some(Code::Approval),
                message: Some("A person must approve this call.".to_owned()),
                approval: Some(Box::new(approval)),
                ..success(&Value::Null)
            };
            let answer = json_of(&outcome, false);
            assert_eq!(answer["isError"], true);
            answer["content"][0]["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(
            text(Some("https://a.example/x")),
            "A person must approve this call.\nA person can decide at https://a.example/x; then call the tool again."
        );
        assert!(text(None).contains("`monstrum approval approve 019a0000-0000-7000-8000-000000000002`"));
    }

    #[test]
    fn a_refusal_is_a_result_with_its_status_in_the_metadata() {
        let refused = Outcome {
            status: Status::ScopeViolation,
            code: Some(Code::Denied),
            message: Some("no".to_owned()),
            data: None,
            ..success(&json!(null))
        };
        let answer = json_of(&refused, false);
        assert_eq!((&answer["isError"], &answer["content"][0]["text"]), (&json!(true), &json!("no")));
        assert_eq!(
            answer["_meta"],
            json!({
                "monstrum/status": "scope_violation",
                "monstrum/code": "denied",
                "monstrum/request_id": "019a0000-0000-7000-8000-000000000001",
            })
        );
    }
}
