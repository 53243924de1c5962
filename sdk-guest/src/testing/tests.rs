use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use super::*;
use crate::{Http, Operations, PluginClient, log, operations};

struct Plugin;

impl Executor for Plugin {
    const OPERATIONS: Operations = operations! {
        "fetch" => |request| {
            log::info("fetching");
            Http::new(request).get("https://api.example.com/a").query("q", "x y").json()
        },
        "call" => |_| Ok(PluginClient::new("other").call("read", json!({"a": "b"}))?),
        "nothing" => |request| Ok(json!(request.scope.permits("repos", |pattern| pattern == "a"))),
    };
}

fn panic_of(call: Call) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| call.run(&Plugin))).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn an_unexpected_request_fails_the_test() {
    let wrong = [
        Answer::get("https://api.example.com/b"),
        Answer::post("https://api.example.com/a"),
        Answer::get("https://api.example.com/a?q=x"),
    ];
    for answer in wrong {
        let line = format!("  {} {}\n", answer.method, answer.url);
        let expected = "unexpected request GET https://api.example.com/a?q=x%20y; the remaining answers are:\n";
        assert_eq!(panic_of(Call::new("t", "fetch").answer(answer)), format!("{expected}{line}"));
    }
}

#[test]
fn an_unused_answer_fails_the_test() {
    let call = Call::new("t", "nothing").answer(Answer::get("https://api.example.com/a"));
    assert_eq!(panic_of(call), "unused answers:\n  GET https://api.example.com/a\n");
}

#[test]
fn an_answer_is_used_once_and_in_order() {
    let call = Call::new("t", "fetch").answer(Answer::get("https://api.example.com/a?q=x%20y").json(json!(1)));
    let run = call.clone().run(&Plugin);
    assert_eq!(run.log, [Line { level: Level::Info, message: "fetching".to_owned(), fields: Value::Null }]);
    assert_eq!(run.success(), 1);
    assert!(panic_of(call.answer(Answer::get("https://api.example.com/a"))).starts_with("unused answers:"));
}

#[test]
fn answers_of_tools_are_used_once_and_by_name() {
    let call = || Call::new("t", "call");
    let run = call().tool("other_read", json!({"n": 1})).run(&Plugin);
    assert_eq!(run.tool_calls, [ToolCall { tool: "other_read".to_owned(), params: json!({"a": "b"}) }]);
    assert_eq!(run.success(), json!({"n": 1}));
    let wrong = panic_of(call().tool("another_read", json!(1)));
    assert_eq!(wrong, "unexpected call of other_read; the remaining answers are:\n  another_read\n");
    let left = panic_of(call().tool("other_read", json!(1)).tool("other_write", json!(2)));
    assert_eq!(left, "unused tool answers:\n  other_write\n");
}

#[test]
fn scope_sets_are_combined() {
    let call = Call::new("t", "nothing").scope(&[("repos", &["a", "b"])]);
    assert_eq!(call.clone().run(&Plugin).success(), true);
    assert_eq!(call.scope(&[("repos", &["b"])]).run(&Plugin).success(), false);
}

#[test]
fn another_outcome_fails_the_test() {
    let panic = catch_unwind(|| Call::new("t", "unknown").run(&Plugin).success()).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert_eq!(text, "expected a success, got Error(\"Unknown operation: unknown\")");
}
