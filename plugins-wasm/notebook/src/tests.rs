use std::collections::BTreeSet;

use monstrum_sdk::testing::{Answer, Call, Run};
use monstrum_sdk::{Executor, FailureCode, Value, json};

use super::Notebook;

const BASE: &str = "http://127.0.0.1:4100";
const PAGES: &str = "http://127.0.0.1:4100/notebooks/team/pages";
const WELCOME: &str = "http://127.0.0.1:4100/notebooks/team/pages/welcome";

fn call(tool: &str, params: Value) -> Call {
    let operation = match tool {
        "notebook_list" | "notebook_read" => "page.read",
        "notebook_write" => "page.write",
        other => panic!("{other} is not one of the three tools"),
    };
    let Value::Object(params) = params else { panic!("{params} is not an object") };
    Call::new(tool, operation).params(params).config("api_base", BASE)
}

/// Runs a call that sends one request.
fn run(tool: &str, params: Value, answer: Answer) -> Run {
    call(tool, params).answer(answer).run(&Notebook)
}

#[test]
fn each_tool_sends_one_request_with_the_credential() {
    let listed = json!({ "notebook": "team", "pages": ["welcome"] });
    let list = run("notebook_list", json!({ "notebook": "team" }), Answer::get(PAGES).json(listed.clone()));
    assert!(list.requests[0].authenticate);
    assert_eq!(list.requests[0].header("accept"), Some("application/json"));
    assert_eq!(list.success(), listed);

    let page = json!({ "notebook": "team", "page": "welcome", "text": "Hello" });
    let params = json!({ "notebook": "team", "page": "welcome" });
    let read = run("notebook_read", params, Answer::get(WELCOME).json(page.clone()));
    assert!(read.requests[0].authenticate);
    assert_eq!(read.success(), page);

    let write = run("notebook_write", page.clone(), Answer::put(WELCOME).json(page.clone()));
    assert!(write.requests[0].authenticate);
    assert_eq!(write.requests[0].json(), json!({ "text": "Hello" }));
    assert_eq!(write.success(), page);
}

#[test]
fn a_name_that_changes_the_path_is_refused_by_all_tools() {
    for name in [json!("../board"), json!("a/b"), json!(".."), json!(""), json!(null), json!(7), json!(["team"])] {
        for tool in ["notebook_list", "notebook_read", "notebook_write"] {
            let run = call(tool, json!({ "notebook": name, "page": "welcome", "text": "x" })).run(&Notebook);
            assert!(run.requests.is_empty());
            assert_eq!(
                run.error(),
                "Invalid notebook, expected 1 to 64 letters, digits, '-', '_' and '.'",
                "{tool} {name}"
            );
        }
        for tool in ["notebook_read", "notebook_write"] {
            let run = call(tool, json!({ "notebook": "team", "page": name, "text": "x" })).run(&Notebook);
            assert!(run.requests.is_empty());
            assert_eq!(
                run.error(),
                "Invalid page, expected 1 to 64 letters, digits, '-', '_' and '.'",
                "{tool} {name}"
            );
        }
    }
}

#[test]
fn errors_of_the_server_are_cut() {
    let params = || json!({ "notebook": "team", "page": "welcome" });
    let absent = run("notebook_read", params(), Answer::get(WELCOME).status(404).body("no such page"));
    assert_eq!(absent.log[0].fields, json!({ "status": 404 }));
    assert_eq!(absent.error(), "Notebook server error: 404 - no such page");
    let long = run("notebook_read", params(), Answer::get(WELCOME).status(502).body("é".repeat(500)));
    assert_eq!(long.error(), format!("Notebook server error: 502 - {}", "é".repeat(200)));
    let late =
        run("notebook_read", params(), Answer::get(WELCOME).failure(FailureCode::Timeout, "no answer within 30 s"));
    assert_eq!(late.error(), "Notebook request error: no answer within 30 s");
}

#[test]
fn an_unknown_operation_is_an_error() {
    assert_eq!(Call::new("notebook_read", "page.delete").run(&Notebook).error(), "Unknown operation: page.delete");
}

fn manifest() -> Value {
    serde_yaml::from_str(include_str!("../monstrum.yaml")).unwrap()
}

#[test]
fn the_operations_are_those_of_the_manifest() {
    let handled: BTreeSet<String> = Notebook::OPERATIONS.keys().map(str::to_owned).collect();
    let manifest = manifest();
    let tools = manifest["resource_type"]["tools"].as_array().unwrap();
    let declared: BTreeSet<String> = tools.iter().map(|tool| tool["operation"].as_str().unwrap().to_owned()).collect();
    assert_eq!(declared, handled);
}

#[test]
fn the_translations_are_complete_and_english_equals_the_manifest() {
    let manifest = manifest();
    let resource_type = &manifest["resource_type"];
    let mut expected = serde_json::Map::new();
    expected.insert("description".to_owned(), manifest["description"].clone());
    for tool in resource_type["tools"].as_array().unwrap() {
        expected.insert(format!("tools.{}.description", tool["name"].as_str().unwrap()), tool["description"].clone());
    }
    for dimension in resource_type["scope_dimensions"].as_array().unwrap() {
        let key = format!("scope_dimensions.{}.error_template", dimension["key"].as_str().unwrap());
        expected.insert(key, dimension["error_template"].clone());
    }
    for (index, method) in resource_type["auth_methods"].as_array().unwrap().iter().enumerate() {
        for text in ["label", "description"] {
            expected.insert(format!("auth_methods.{index}.{text}"), method[text].clone());
        }
    }
    let english: Value = serde_json::from_str(include_str!("../locales/en-US.json")).unwrap();
    assert_eq!(english, Value::Object(expected.clone()));
    let chinese: Value = serde_json::from_str(include_str!("../locales/zh-CN.json")).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&chinese), keys(&english));
}
