use std::collections::BTreeSet;

use monstrum_sdk::testing::{Answer, Call, Run};
use monstrum_sdk::{Executor, FailureCode, Value, json};

use super::Jira;

const BASE: &str = "https://acme.atlassian.net";
const ISSUE: &str = "https://acme.atlassian.net/rest/api/3/issue";

fn call(tool: &str, params: Value) -> Call {
    let operation = match tool {
        "jira_list_issues" => "issue.read",
        "jira_create_issue" => "issue.write",
        other => panic!("{other} is not one of the two tools"),
    };
    let Value::Object(params) = params else { panic!("{params} is not an object") };
    Call::new(tool, operation).params(params).config("api_base", BASE)
}

/// Runs a call that sends one request.
fn run(tool: &str, params: Value, answer: Answer) -> Run {
    call(tool, params).answer(answer).run(&Jira)
}

/// Returns the URL of a search with the percent-encoded `jql`.
fn search(jql: &str, results_max: u64) -> String {
    format!("{BASE}/rest/api/3/search/jql?jql={jql}&maxResults={results_max}&fields=%2Anavigable")
}

#[test]
fn list_issues_requests_one_project_with_jiras_headers() {
    let url = search("project%20%3D%20%22PROJ%22", 50);
    let run = run("jira_list_issues", json!({ "project": "PROJ" }), Answer::get(&url).json(json!({ "issues": [] })));
    let headers = [("Accept", "application/json"), ("User-Agent", "monstrum-jira/1.0.0")];
    assert_eq!(run.requests[0].headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(run.requests[0].authenticate);
    assert_eq!(run.success(), json!({ "issues": [] }));
}

#[test]
fn list_issues_filters_by_status() {
    let url = search("project%20%3D%20%22PROJ%22%20AND%20status%20%3D%20%22In%20Progress%22", 5);
    let params = json!({ "project": "PROJ", "status": "In Progress", "max_results": 5 });
    run("jira_list_issues", params, Answer::get(&url).json(json!({}))).success();
    let blank = json!({ "project": "PROJ", "status": " ", "max_results": null });
    run("jira_list_issues", blank, Answer::get(&search("project%20%3D%20%22PROJ%22", 50)).json(json!({}))).success();
}

#[test]
fn an_older_jira_gets_the_previous_search() {
    let before = format!("{BASE}/rest/api/3/search?jql=project%20%3D%20%22PROJ%22&maxResults=50");
    let run = call("jira_list_issues", json!({ "project": "PROJ" }))
        .answer(Answer::get(&search("project%20%3D%20%22PROJ%22", 50)).status(404))
        .answer(Answer::get(&before).json(json!({ "total": 0 })))
        .run(&Jira);
    assert_eq!(run.success(), json!({ "total": 0 }));
}

#[test]
fn list_issues_continues_with_a_token() {
    let jql = "project%20%3D%20%22PROJ%22";
    let url = format!("{}&nextPageToken=CAEaAggD", search(jql, 100));
    let params = json!({ "project": "PROJ", "max_results": 1000, "next_page_token": "CAEaAggD" });
    let answer = json!({ "issues": [{ "key": "PROJ-9" }], "isLast": true });
    let run = run("jira_list_issues", params, Answer::get(&url).json(answer.clone()));
    assert_eq!(run.success(), answer);
}

#[test]
fn the_previous_search_continues_with_an_offset() {
    let jql = "project%20%3D%20%22PROJ%22";
    let older = |query: &str| format!("{BASE}/rest/api/3/search?jql={jql}&maxResults=2{query}");
    let page = |token: Option<&str>, query: &str, answer: Value| {
        let present = search(jql, 2) + &token.map(|token| format!("&nextPageToken={token}")).unwrap_or_default();
        call("jira_list_issues", json!({ "project": "PROJ", "max_results": 2, "next_page_token": token }))
            .answer(Answer::get(&present).status(404))
            .answer(Answer::get(&older(query)).json(answer))
            .run(&Jira)
            .success()
    };
    let first = page(None, "", json!({ "startAt": 0, "total": 3, "issues": [1, 2] }));
    assert_eq!(first, json!({ "startAt": 0, "total": 3, "issues": [1, 2], "nextPageToken": "2" }));
    let last = page(Some("2"), "&startAt=2", json!({ "startAt": 2, "total": 3, "issues": [3] }));
    assert_eq!(last, json!({ "startAt": 2, "total": 3, "issues": [3] }));
    let foreign = call("jira_list_issues", json!({ "project": "PROJ", "next_page_token": "CAE" }))
        .answer(Answer::get(&format!("{}&nextPageToken=CAE", search(jql, 50))).status(404));
    assert_eq!(
        foreign.run(&Jira).error(),
        "this Jira server did not return this `next_page_token`; pass the `nextPageToken` of the previous response"
    );
}

#[test]
fn the_error_for_a_large_result_suggests_fewer_issues() {
    let answer =
        Answer::get(&search("project%20%3D%20%22PROJ%22", 50)).json(json!({ "issues": ["x".repeat(1 << 20)] }));
    let run = run("jira_list_issues", json!({ "project": "PROJ" }), answer);
    assert_eq!(run.error(), "The issues exceed 1 MiB; request fewer issues with `max_results`");
}

#[test]
fn create_issue_sends_what_is_given() {
    let params = json!({
        "project": "PROJ", "summary": "Broken", "description": "It is.\n\nSince \"today\".", "issue_type": "Bug",
    });
    let run = run("jira_create_issue", params, Answer::post(ISSUE).status(201).json(json!({ "key": "PROJ-7" })));
    let paragraph = |text: &str| json!({ "type": "paragraph", "content": [{ "type": "text", "text": text }] });
    let expected = json!({ "fields": {
        "project": { "key": "PROJ" },
        "summary": "Broken",
        "description": { "type": "doc", "version": 1, "content": [paragraph("It is."), paragraph("Since \"today\".")] },
        "issuetype": { "name": "Bug" },
    } });
    assert_eq!(run.requests[0].json(), expected);
    assert_eq!(run.success(), json!({ "key": "PROJ-7" }));
}

#[test]
fn create_issue_omits_empty_values() {
    let params = json!({ "project": "PROJ", "summary": "Broken", "description": "", "issue_type": null });
    let run = run("jira_create_issue", params, Answer::post(ISSUE).status(201).json(json!({})));
    let expected = json!({ "project": { "key": "PROJ" }, "summary": "Broken", "issuetype": { "name": "Task" } });
    assert_eq!(run.requests[0].json()["fields"], expected);
}

#[test]
fn a_project_that_extends_the_query_is_refused_by_both_tools() {
    for project in
        [json!("PROJ OR project = SECRET"), json!("10001"), json!(""), json!(null), json!(7), json!(["PROJ"])]
    {
        for tool in ["jira_list_issues", "jira_create_issue"] {
            let run = call(tool, json!({ "project": project, "summary": "x" })).run(&Jira);
            assert!(run.requests.is_empty());
            assert_eq!(run.error(), "Invalid project key, expected letters, digits and '_' such as 'PROJ'");
        }
    }
}

#[test]
fn missing_parameters_are_named() {
    let cases = [
        ("jira_create_issue", json!({ "summary": " " }), "summary is required"),
        ("jira_list_issues", json!({ "max_results": 0 }), "max_results must be at least 1"),
        (
            "jira_list_issues",
            json!({ "max_results": -1 }),
            "parameter 'max_results': invalid value: integer `-1`, expected u64",
        ),
        ("jira_list_issues", json!({ "status": "a\nb" }), "status must not contain control characters"),
    ];
    for (tool, params, message) in cases {
        assert_eq!(call(tool, params).param("project", "PROJ").run(&Jira).error(), message);
    }
}

#[test]
fn errors_of_jira_are_cut() {
    let post = |answer: Answer| run("jira_create_issue", json!({ "project": "PROJ", "summary": "x" }), answer);
    let refused = post(Answer::post(ISSUE).status(400).body(r#"{"errorMessages":["no such type"]}"#));
    assert_eq!(refused.log[0].fields, json!({ "status": 400 }));
    assert_eq!(refused.error(), r#"Jira API error: 400 - {"errorMessages":["no such type"]}"#);
    let long = post(Answer::post(ISSUE).status(502).body("é".repeat(500)));
    assert_eq!(long.error(), format!("Jira API error: 502 - {}", "é".repeat(200)));
    let late = post(Answer::post(ISSUE).failure(FailureCode::Timeout, "no answer within 30 s"));
    assert_eq!(late.error(), "Jira request error: no answer within 30 s");
    let url = search("project%20%3D%20%22PROJ%22", 50);
    let forbidden = run("jira_list_issues", json!({ "project": "PROJ" }), Answer::get(&url).status(403).body("no"));
    assert_eq!(forbidden.error(), "Jira API error: 403 - no");
}

#[test]
fn an_unknown_operation_is_an_error() {
    assert_eq!(Call::new("jira_list_issues", "issue.delete").run(&Jira).error(), "Unknown operation: issue.delete");
}

fn manifest() -> Value {
    serde_yaml::from_str(include_str!("../monstrum.yaml")).unwrap()
}

#[test]
fn the_operations_are_those_of_the_manifest() {
    let handled: BTreeSet<String> = Jira::OPERATIONS.keys().map(str::to_owned).collect();
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
