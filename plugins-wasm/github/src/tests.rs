use std::collections::BTreeSet;

use monstrum_sdk::testing::{Answer, Call, Run};
use monstrum_sdk::{Executor, FailureCode, Value, json};

use super::GitHub;

const SITE: &str = "https://api.github.com/repos/acme/site";

fn call(tool: &str, params: Value) -> Call {
    let operation = match tool {
        "github_list_issues" => "issue.read",
        "github_create_issue" | "github_update_issue" => "issue.write",
        "github_add_labels" | "github_remove_labels" => "issue.label.write",
        "github_add_comment" => "issue.comment.write",
        "github_list_comments" => "issue.comment.read",
        "github_get_repo" => "repo.read",
        other => panic!("{other} is not one of the eight tools"),
    };
    let Value::Object(params) = params else { panic!("{params} is not an object") };
    Call::new(tool, operation).params(params)
}

/// Runs a call that sends one request.
fn run(tool: &str, params: Value, answer: Answer) -> Run {
    call(tool, params).answer(answer).run(&GitHub)
}

#[test]
fn get_repo_reads_the_repository_with_githubs_headers() {
    let run = run("github_get_repo", json!({ "repo": "acme/site" }), Answer::get(SITE).json(json!({ "id": 1 })));
    let headers = [
        ("Accept", "application/vnd.github+json"),
        ("X-GitHub-Api-Version", "2022-11-28"),
        ("User-Agent", "monstrum-github/1.0.0"),
    ];
    assert_eq!(run.requests[0].headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(run.requests[0].authenticate);
    assert_eq!(run.success(), json!({ "id": 1 }));
}

#[test]
fn an_enterprise_base_replaces_the_public_one() {
    let answer = Answer::get("https://ghe.example/api/v3/repos/acme/site").json(json!({}));
    call("github_get_repo", json!({ "repo": "acme/site" }))
        .config("api_base", "https://ghe.example/api/v3/")
        .answer(answer)
        .run(&GitHub)
        .success();
}

#[test]
fn list_issues_reads_one_page() {
    let next = format!("<{SITE}/issues?page=2>; rel=\"next\"");
    let answer = Answer::get(&format!("{SITE}/issues")).json(json!([{ "number": 1 }])).header("Link", &next);
    let run = run("github_list_issues", json!({ "repo": "acme/site" }), answer);
    assert_eq!(run.requests[0].url, format!("{SITE}/issues"));
    assert_eq!(run.success(), json!([{ "number": 1 }]));
}

#[test]
fn list_issues_filters() {
    let params = json!({
        "repo": "acme/site", "state": "all", "labels": ["bug", "good first issue"], "since": "2026-01-01T00:00:00Z", "per_page": 5,
        "page": 2,
    });
    let url = format!(
        "{SITE}/issues?state=all&labels=bug%2Cgood%20first%20issue&since=2026-01-01T00%3A00%3A00Z&per_page=5&page=2"
    );
    run("github_list_issues", params, Answer::get(&url).json(json!([]))).success();
    let empty = json!({ "repo": "acme/site", "state": null, "labels": [], "since": "", "per_page": 0 });
    let run = run("github_list_issues", empty, Answer::get(&format!("{SITE}/issues")).json(json!([])));
    assert!(run.requests[0].query.is_empty());
}

#[test]
fn create_issue_sends_what_is_given() {
    let params = json!({
        "assignees": ["ann"], "repo": "acme/site", "title": "Broken", "body": "It is.", "labels": ["bug"], "issue_number": 9,
    });
    let run = run(
        "github_create_issue",
        params,
        Answer::post(&format!("{SITE}/issues")).status(201).json(json!({ "number": 7 })),
    );
    let expected = json!({ "title": "Broken", "body": "It is.", "labels": ["bug"], "assignees": ["ann"] });
    assert_eq!(run.requests[0].json(), expected);
    assert_eq!(run.success(), json!({ "number": 7 }));
}

#[test]
fn update_issue_ignores_empty_values() {
    let params = json!({
        "repo": "acme/site", "issue_number": 7, "state": "closed", "title": "", "body": null, "labels": [], "assignees": [],
    });
    let run =
        run("github_update_issue", params, Answer::patch(&format!("{SITE}/issues/7")).json(json!({ "number": 7 })));
    assert_eq!(run.requests[0].json(), json!({ "state": "closed" }));
    assert_eq!(run.success(), json!({ "number": 7 }));
}

#[test]
fn add_labels_sends_them_all_at_once() {
    let params = json!({ "repo": "acme/site", "issue_number": 7, "labels": ["bug", "ui"] });
    let run = run(
        "github_add_labels",
        params,
        Answer::post(&format!("{SITE}/issues/7/labels")).json(json!([{ "name": "bug" }])),
    );
    assert_eq!(run.requests[0].json(), json!({ "labels": ["bug", "ui"] }));
    assert_eq!(run.success(), json!([{ "name": "bug" }]));
}

#[test]
fn remove_labels_removes_and_reports_each() {
    let labels = format!("{SITE}/issues/7/labels");
    let run = call(
        "github_remove_labels",
        json!({ "repo": "acme/site", "issue_number": 7, "labels": ["good first", "a/b"] }),
    )
    .answer(Answer::delete(&format!("{labels}/good%20first")).json(json!([])))
    .answer(Answer::delete(&format!("{labels}/a%2Fb")).status(404).json(json!({ "message": "Label does not exist" })))
    .run(&GitHub);
    assert_eq!(run.log[0].fields, json!({ "status": 404 }));
    let expected = json!([{ "label": "good first", "removed": true }, { "label": "a/b", "removed": false }]);
    assert_eq!(run.success(), expected);
}

#[test]
fn remove_labels_never_removes_all_labels() {
    let run =
        call("github_remove_labels", json!({ "repo": "acme/site", "issue_number": 7, "labels": [""] })).run(&GitHub);
    assert!(run.requests.is_empty());
    assert_eq!(run.error(), "a segment of the URL path must not be empty, `.` or `..`");
}

#[test]
fn add_comment_sends_its_body() {
    let params = json!({ "repo": "acme/site", "issue_number": 7, "body": "Thanks." });
    let run = run(
        "github_add_comment",
        params,
        Answer::post(&format!("{SITE}/issues/7/comments")).status(201).json(json!({ "id": 3 })),
    );
    assert_eq!(run.requests[0].json(), json!({ "body": "Thanks." }));
    assert_eq!(run.success(), json!({ "id": 3 }));
}

#[test]
fn list_comments_reads_the_requested_page() {
    let comments = format!("{SITE}/issues/7/comments");
    for (page, query) in [
        (json!({}), "per_page=100"),
        (json!({ "page": 1, "per_page": 20 }), "per_page=20"),
        (json!({ "page": 3, "per_page": 20 }), "per_page=20&page=3"),
        (json!({ "page": 0, "per_page": 0 }), "per_page=100"),
        (json!({ "per_page": 1000 }), "per_page=100"),
    ] {
        let mut params = json!({ "repo": "acme/site", "issue_number": 7 });
        params.as_object_mut().unwrap().extend(page.as_object().unwrap().clone());
        // Only the caller requests a next page; the link in the response is ignored.
        let answer = Answer::get(&format!("{comments}?{query}"))
            .json(json!([{ "id": 1 }]))
            .header("Link", &format!("<{comments}?page=2>; rel=\"next\""));
        assert_eq!(run("github_list_comments", params, answer).success(), json!([{ "id": 1 }]), "{query}");
    }
}

#[test]
fn the_error_for_a_large_page_suggests_a_smaller_one() {
    let body = json!([{ "body": "x".repeat(1 << 20) }]);
    for (tool, path) in [("github_list_comments", "issues/7/comments"), ("github_list_issues", "issues")] {
        let answer = Answer::get(&format!("{SITE}/{path}")).json(body.clone());
        let run = run(tool, json!({ "repo": "acme/site", "issue_number": 7 }), answer);
        assert_eq!(run.error(), "The page exceeds 1 MiB; request fewer items with `per_page`");
    }
}

#[test]
fn a_repository_that_changes_the_path_is_refused_by_all_tools() {
    let tools = manifest()["resource_type"]["tools"].as_array().unwrap().clone();
    assert_eq!(tools.len(), 8);
    for repo in [
        json!("acme/../../user"),
        json!("acme/..%2f.."),
        json!("acme"),
        json!(""),
        json!(null),
        json!(7),
        json!(["acme/site"]),
    ] {
        for tool in &tools {
            let run = call(tool["name"].as_str().unwrap(), json!({ "repo": repo, "issue_number": 7, "labels": ["a"] }))
                .run(&GitHub);
            assert!(run.requests.is_empty());
            assert_eq!(run.error(), "Invalid repo format, expected 'owner/repo'");
        }
    }
}

#[test]
fn missing_parameters_are_named() {
    let cases = [
        ("github_update_issue", json!({ "title": "x" }), "issue_number is required"),
        ("github_update_issue", json!({ "issue_number": 0 }), "issue_number is required"),
        ("github_list_comments", json!({ "issue_number": null }), "issue_number is required"),
        ("github_add_comment", json!({ "body": "x" }), "issue_number is required"),
        ("github_add_comment", json!({ "issue_number": 7, "body": "" }), "body is required"),
        ("github_add_labels", json!({ "labels": ["a"] }), "issue_number is required"),
        ("github_add_labels", json!({ "issue_number": 7 }), "labels are required"),
        ("github_remove_labels", json!({ "issue_number": 7, "labels": [] }), "labels are required"),
        (
            "github_add_labels",
            json!({ "issue_number": -7, "labels": ["a"] }),
            "parameter 'issue_number': invalid value: integer `-7`, expected u64",
        ),
        (
            "github_list_issues",
            json!({ "labels": "bug" }),
            "parameter 'labels': invalid type: string \"bug\", expected a sequence",
        ),
    ];
    for (tool, params, message) in cases {
        assert_eq!(call(tool, params).param("repo", "acme/site").run(&GitHub).error(), message);
    }
}

#[test]
fn errors_of_github_are_cut() {
    let get = |answer: Answer| run("github_get_repo", json!({ "repo": "acme/site" }), answer);
    let not_found = get(Answer::get(SITE).status(404).body(r#"{"message":"Not Found"}"#));
    assert_eq!(not_found.log[0].fields, json!({ "status": 404 }));
    assert_eq!(not_found.error(), r#"GitHub API error: 404 - {"message":"Not Found"}"#);
    let long = get(Answer::get(SITE).status(502).body("é".repeat(500)));
    assert_eq!(long.error(), format!("GitHub API error: 502 - {}", "é".repeat(200)));
    let late = get(Answer::get(SITE).failure(FailureCode::Timeout, "no answer within 30 s"));
    assert_eq!(late.error(), "GitHub request error: no answer within 30 s");
}

#[test]
fn an_unknown_operation_is_an_error() {
    assert_eq!(Call::new("github_get_repo", "repo.delete").run(&GitHub).error(), "Unknown operation: repo.delete");
}

fn manifest() -> Value {
    serde_yaml::from_str(include_str!("../monstrum.yaml")).unwrap()
}

fn texts(value: &Value, key: &str) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_operations_are_those_of_the_manifest() {
    let handled: BTreeSet<String> = GitHub::OPERATIONS.keys().map(str::to_owned).collect();
    assert_eq!(texts(&manifest()["resource_type"]["tools"], "operation"), handled);
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
