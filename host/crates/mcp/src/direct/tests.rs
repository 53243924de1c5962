//! Compares the answers with those of rmcp.

use bytes::Bytes;
use futures::FutureExt as _;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use monstrum_manifest::{Effect, ResultForm};
use monstrum_types::{AwaitedApproval, Code, JsonText, Status, UtcMillis};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::offer::{OfferedPage, OfferedTool, Outcome, Refusal, ToolCall};
use crate::server::by_rmcp;

/// A bot with 450 tools, of which each call tells what it received.
#[derive(Clone)]
struct Echo;

impl Offer for Echo {
    type Error = String;

    fn title(&self) -> String {
        "echo".to_owned()
    }

    async fn list(&self, after: Option<String>, count: usize) -> Result<OfferedPage, String> {
        if after.as_deref() == Some("failure") {
            return Err("the list is not available".to_owned());
        }
        let names = (0..450).map(|number| format!("tool_{number:03}"));
        let mut rest = names.filter(|name| after.as_ref().is_none_or(|after| name > after));
        let tools = rest.by_ref().take(count).map(offered).collect();
        Ok(OfferedPage { tools, has_more: rest.next().is_some() })
    }

    async fn call(&self, call: ToolCall) -> Result<Outcome, Refusal<String>> {
        let mut outcome = Outcome {
            request_id: "019a0000-0000-7000-8000-000000000001".parse().unwrap(),
            status: Status::Success,
            code: None,
            message: None,
            data: None,
            form: ResultForm::Json,
            output_mismatch: false,
            approval: None,
            connect_url: None,
            request_state: None,
        };
        match call.tool.as_str() {
            "invalid" => return Err(Refusal::Params("no".to_owned())),
            "failure" => return Err(Refusal::Failed("the call could not run".to_owned())),
            "number" => outcome.data = Some(JsonText::from(&json!(1.5))),
            "approval" => {
                let id = "019a0000-0000-7000-8000-000000000002".parse().unwrap();
                let url = Some("https://a.example/x".to_owned());
                outcome.status = Status::ApprovalRequired;
                outcome.code = Some(Code::Approval);
                outcome.approval = Some(Box::new(AwaitedApproval { id, url, expires_at: UtcMillis(0) }));
                outcome.request_state = Some("state".to_owned());
            }
            _ => {
                let retry = call.retry.map(|retry| json!([retry.request_state, retry.is_declined]));
                let data = json!({
                    "tool": call.tool, "arguments": call.arguments, "task": call.task_id, "chat": call.chat,
                    "wait": call.wait_for_approval_s, "trace": call.trace_parent, "asks": call.takes_request_state,
                    "retry": retry,
                });
                outcome.data = Some(JsonText::from(&data));
            }
        }
        Ok(outcome)
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        stream::empty().boxed()
    }
}

fn offered(name: String) -> OfferedTool {
    OfferedTool {
        title: name.ends_with('7').then(|| format!("Tool {name}")),
        name,
        description: "Echoes".to_owned(),
        input_schema: JsonText::from(&json!({"type": "object", "properties": {"a": {"x-mcp-header": "A"}}})),
        output_schema: Some(JsonText::from(&json!({"type": "array"}))),
        operation: "echo.read".to_owned(),
        effect: Effect::Read,
        asks: false,
    }
}

/// The text of a request, and its headers in addition to those that say that it is JSON.
#[derive(Clone)]
struct Sent {
    headers: Vec<(&'static str, String)>,
    body: String,
    opens_urls: bool,
}

impl Sent {
    fn legacy(method: &str, params: &Value, revision: &str) -> Sent {
        let headers = vec![
            ("accept", "application/json, text/event-stream".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("mcp-protocol-version", revision.to_owned()),
        ];
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
        Sent { headers, body, opens_urls: false }
    }

    fn newest(method: &str, params: &Value) -> Sent {
        let mut params = params.clone();
        let meta = params.as_object_mut().unwrap().entry("_meta").or_insert_with(|| json!({}));
        let capabilities = meta.get("capabilities").cloned().unwrap_or_else(|| json!({}));
        meta[REVISION] = json!("2026-07-28");
        meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let mut sent = Sent::legacy(method, &params, "2026-07-28").with("mcp-method", method);
        if let Some(Value::String(name)) = params.get("name") {
            sent = sent.with("mcp-name", name);
        }
        sent
    }

    fn with(mut self, name: &'static str, value: &str) -> Sent {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Sent {
        self.headers.retain(|(one, _)| *one != name);
        self
    }

    fn replacing(mut self, text: &str, by: &str) -> Sent {
        assert!(self.body.contains(text), "{}", self.body);
        self.body = self.body.replace(text, by);
        self
    }

    fn parts(&self) -> Parts {
        let mut request = http::Request::post("/mcp/x").header("host", "localhost").body(()).unwrap();
        for (name, value) in &self.headers {
            request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
        }
        request.into_parts().0
    }

    fn message(&self) -> Message {
        Message::read(self.body.as_bytes()).unwrap()
    }

    fn read(&self) -> Option<Request> {
        Request::read(&self.parts(), self.body.as_bytes(), &self.message())
    }

    /// Returns the status, the type and the body of an answer, and the error that the gateway receives.
    async fn answered<F: Future<Output = Response<Body>>>(
        &self,
        by: impl FnOnce(Handler<Echo>) -> F,
    ) -> (StatusCode, Option<HeaderValue>, String, Option<String>) {
        let (failed, mut failures) = mpsc::unbounded_channel();
        let response = by(Handler::new(Echo, failed, self.opens_urls, None)).await;
        let (status, kind) = (response.status(), response.headers().get(CONTENT_TYPE).cloned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, kind, String::from_utf8(body.to_vec()).unwrap(), failures.recv().now_or_never().flatten())
    }

    /// Checks that this request needs no rmcp, and that rmcp gives the same answer. Returns the answer.
    async fn same(&self) -> Value {
        let request = self.read().unwrap_or_else(|| panic!("left to rmcp: {}", self.body));
        let direct = self.answered(|handler| answer(handler, request)).await;
        let (body, id) = (Bytes::from(self.body.clone()), self.message().id);
        let by_rmcp = self.answered(|handler| by_rmcp(handler, self.parts(), body, id)).await;
        assert_eq!(direct, by_rmcp, "{}", self.body);
        serde_json::from_str(&direct.2).unwrap()
    }
}

fn calls() -> Vec<Value> {
    let arguments = json!({"b": [1, 1.0, -0.0, 1e300, 18_446_744_073_709_551_615_u64], "a": {"é\n": null}});
    let meta = json!({
        "monstrum/task_id": "t", "monstrum/chat": {"chat_id": "c"}, "monstrum/wait_for_approval_s": 3, "progressToken": 1,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
        "capabilities": {"elicitation": {"url": {}}},
    });
    let responses = json!({"approval": {"action": "decline"}});
    vec![
        json!({"name": "echo"}),
        json!({"name": "echo", "arguments": null, "more": 1, "_meta": null}),
        json!({"name": "echo", "arguments": arguments, "_meta": meta}),
        json!({"name": "echo", "requestState": "s", "inputResponses": responses}),
        json!({"name": "echo", "_meta": {"monstrum/task_id": 1}}),
        json!({"name": "echo", "_meta": {"monstrum/wait_for_approval_s": "x"}}),
        json!({"name": "number"}),
        json!({"name": "approval"}),
        json!({"name": "approval", "_meta": meta}),
        json!({"name": "invalid"}),
        json!({"name": "failure"}),
    ]
}

#[tokio::test]
async fn calls_are_answered_as_rmcp_answers_them() {
    for mut params in calls() {
        for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
            for opens_urls in [false, true] {
                Sent { opens_urls, ..Sent::legacy("tools/call", &params, revision) }.same().await;
            }
        }
        Sent::legacy("tools/call", &params, "").without("mcp-protocol-version").same().await;
        // Requests of the newest revision have metadata.
        params.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        Sent::newest("tools/call", &params).same().await;
    }
    let asked = Sent::newest("tools/call", &calls()[8]).same().await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
}

#[tokio::test]
async fn lists_are_answered_as_rmcp_answers_them() {
    for params in [json!({}), json!({"cursor": "tool_199"}), json!({"cursor": "tool_1"}), json!({"cursor": "failure"})]
    {
        Sent::newest("tools/list", &params).same().await;
        Sent::legacy("tools/list", &params, "2025-06-18").same().await;
    }
    Sent::legacy("tools/list", &json!(null), "2025-06-18").same().await;
    Sent::legacy("tools/list", &json!({}), "2025-06-18").replacing(",\"params\":{}", "").same().await;
    let last = Sent::newest("tools/list", &json!({"cursor": "tool_399"})).same().await;
    let count = last["result"]["tools"].as_array().map(Vec::len);
    assert_eq!((count, last["result"].get("nextCursor")), (Some(50), None));
}

#[tokio::test]
async fn ids_and_headers_have_several_forms() {
    let call = || Sent::newest("tools/call", &json!({"name": "echo"}));
    for id in ["\"7\"", "-1", "1.0", "9007199254740993"] {
        call().replacing("\"id\":7", &format!("\"id\":{id}")).same().await;
    }
    for (name, value) in [
        ("accept", "TEXT/event-stream,application/json,*/*"),
        ("content-type", "application/json; charset=utf-8"),
        ("content-type", "Application/JSON"),
    ] {
        call().without(name).with(name, value).same().await;
    }
}

/// rmcp rejects some of these requests.
#[test]
fn other_requests_are_left_to_rmcp() {
    let (echo, list) = (json!({"name": "echo"}), json!({}));
    let (call, listing) = (|| Sent::newest("tools/call", &echo), || Sent::newest("tools/list", &list));
    let legacy = || Sent::legacy("tools/call", &echo, "2025-06-18");
    assert!(call().read().is_some() && listing().read().is_some() && legacy().read().is_some());
    let capabilities = "\"io.modelcontextprotocol/clientCapabilities\":{}";
    let others = [
        ("another method", legacy().replacing("tools/call", "ping")),
        ("a notification", legacy().replacing("\"id\":7,", "")),
        ("no id", legacy().replacing("\"id\":7", "\"id\":null")),
        ("a fraction as id", legacy().replacing("\"id\":7", "\"id\":7.5")),
        ("another member", legacy().replacing("\"id\":7", "\"id\":7,\"result\":{}")),
        ("no name", legacy().replacing("\"name\"", "\"title\"")),
        ("arguments that are no object", legacy().replacing("\"echo\"", "\"echo\",\"arguments\":[]")),
        ("repeated arguments", legacy().replacing("\"echo\"", "\"echo\",\"arguments\":{},\"arguments\":{}")),
        ("no parameters", Sent::legacy("tools/call", &json!(null), "2025-06-18")),
        ("a number as cursor", Sent::newest("tools/list", &json!({"cursor": 1}))),
        ("no accepted type", call().without("accept")),
        ("only JSON is accepted", call().without("accept").with("accept", "application/json")),
        ("weights", call().without("accept").with("accept", "application/json, text/event-stream;q=0")),
        ("a repeated header", call().with("accept", "application/json, text/event-stream")),
        ("another type", call().without("content-type").with("content-type", "text/plain")),
        ("no type", call().without("content-type")),
        ("an unknown revision", Sent::legacy("tools/call", &echo, "2024-11-05")),
        ("no metadata", Sent::legacy("tools/call", &echo, "2026-07-28")),
        ("no revision in the headers", call().without("mcp-protocol-version")),
        (
            "another revision in the headers",
            call().without("mcp-protocol-version").with("mcp-protocol-version", "2025-06-18"),
        ),
        ("two revisions in the headers", call().with("mcp-protocol-version", "2026-07-28")),
        ("an earlier revision in the metadata", call().replacing("2026-07-28", "2025-06-18")),
        (
            "a revision that is no text",
            legacy().replacing("\"echo\"", &format!("\"echo\",\"_meta\":{{\"{REVISION}\":1}}")),
        ),
        ("no capabilities", call().replacing(capabilities, "\"x\":{}")),
        ("malformed capabilities", call().replacing(capabilities, &capabilities.replace("{}", "1"))),
        ("no method in the headers", listing().without("mcp-method")),
        ("another method in the headers", listing().without("mcp-method").with("mcp-method", "tools/call")),
        ("two methods in the headers", listing().with("mcp-method", "tools/list")),
        ("no name in the headers", call().without("mcp-name")),
        ("another name in the headers", call().without("mcp-name").with("mcp-name", "other")),
        ("a name in Base64", call().without("mcp-name").with("mcp-name", "=?base64?ZWNobw==?=")),
        ("a name like Base64", Sent::newest("tools/call", &json!({"name": "=?base64?ZWNobw==?="}))),
    ];
    for (what, sent) in others {
        assert!(sent.read().is_none(), "{what}: {}", sent.body);
    }
}
