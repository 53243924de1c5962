//! The GitHub plugin: issues, comments, labels and repositories, with GitHub's REST API.
//!
//! The host enforces the permissions that `monstrum.yaml` declares. The plugin builds the requests, and rejects
//! repository names that would change the authorized path.

#![forbid(unsafe_code)]

mod repo;
#[cfg(test)]
mod tests;

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::{
    Error, Executor, Http, HttpRequest, Map, Operations, Outcome, RESULT_BYTES_MAX, Request, Value, json, operations,
    path,
};

use repo::Repo;

const API: &str = "https://api.github.com";
/// The `User-Agent` header. GitHub rejects requests without a `User-Agent`.
const USER_AGENT: &str = concat!("monstrum-github/", env!("CARGO_PKG_VERSION"));
/// The maximum page size of GitHub, which is also the default for comments in the manifest. At an average of 2 KB, 100
/// comments take less than a quarter of the maximum size of a result.
const PER_PAGE_MAX: u64 = 100;
/// The maximum number of characters of a response in an error message: enough for GitHub's message, and short enough
/// for a model's context.
const ERROR_BODY_CHARS_MAX: usize = 200;

struct GitHub;

impl Executor for GitHub {
    const OPERATIONS: Operations = operations! {
        "repo.read" => repo_read,
        "issue.read" => issue_list,
        "issue.write" => issue_write,
        "issue.comment.read" => comment_list,
        "issue.comment.write" => comment_add,
        "issue.label.write" => label_write,
    };

    fn handle_error(&self, _: &Request, error: Error) -> Outcome {
        match error {
            Error::Http { status, body } => {
                log::write(Level::Error, "GitHub API error", &[("status", status.into())]);
                let body: String = body.chars().take(ERROR_BODY_CHARS_MAX).collect();
                Outcome::Error(format!("GitHub API error: {status} - {body}"))
            }
            Error::Host(failure) => {
                log::write(Level::Error, "GitHub request error", &[("code", failure.code.as_str().into())]);
                Outcome::Error(format!("GitHub request error: {failure}"))
            }
            other => other.into(),
        }
    }
}

monstrum_sdk::export!(GitHub);

fn repo_read(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    http(request).get(path!("/repos/{}/{}", repo.owner, repo.name)).json()
}

fn issue_list(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    let labels = request.optional_param::<Vec<String>>("labels")?.unwrap_or_default().join(",");
    let issues = http(request)
        .get(path!("/repos/{}/{}/issues", repo.owner, repo.name))
        .optional_query("state", given_text(request, "state")?)
        .optional_query("labels", Some(labels).filter(|labels| !labels.is_empty()))
        .optional_query("since", given_text(request, "since")?)
        .optional_query("per_page", given_count(request, "per_page")?.map(|count| count.min(PER_PAGE_MAX)));
    page(issues, request)
}

fn issue_write(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    // Models often send empty values for fields that they do not want to change, which would clear these fields.
    let fields: Map<String, Value> = ["title", "body", "labels", "assignees", "state"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), request.params.get(name).filter(|value| !is_empty(value))?.clone())))
        .collect();
    let http = http(request);
    let call = if request.tool_name == "github_update_issue" {
        http.patch(path!("/repos/{}/{}/issues/{}", repo.owner, repo.name, issue_number(request)?))
    } else {
        http.post(path!("/repos/{}/{}/issues", repo.owner, repo.name))
    };
    call.body_json(&fields).json()
}

fn comment_list(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    let per_page = given_count(request, "per_page")?.unwrap_or(PER_PAGE_MAX).min(PER_PAGE_MAX);
    let comments = http(request)
        .get(path!("/repos/{}/{}/issues/{}/comments", repo.owner, repo.name, issue_number(request)?))
        .query("per_page", per_page);
    page(comments, request)
}

/// Fetches the requested page of a list, or the first page by default.
fn page(list: HttpRequest, request: &Request) -> Result<Value, Error> {
    let number = given_count(request, "page")?.filter(|number| *number > 1);
    let response = list.optional_query("page", number).send()?.error_for_status()?;
    // The host rejects larger results, but its error does not say how to request a smaller result.
    if response.body().len() > RESULT_BYTES_MAX {
        return Err(Error::message("The page exceeds 1 MiB; request fewer items with `per_page`"));
    }
    response.json()
}

fn comment_add(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    let number = issue_number(request)?;
    let body = given_text(request, "body")?.ok_or_else(|| Error::message("body is required"))?;
    http(request)
        .post(path!("/repos/{}/{}/issues/{}/comments", repo.owner, repo.name, number))
        .body_json(&json!({ "body": body }))
        .json()
}

fn label_write(request: &Request) -> Result<Value, Error> {
    let repo = Repo::of(request)?;
    let number = issue_number(request)?;
    let labels: Vec<String> = request.optional_param("labels")?.unwrap_or_default();
    if labels.is_empty() {
        return Err(Error::message("labels are required"));
    }
    if request.tool_name == "github_remove_labels" {
        return label_remove(&http(request), &repo, number, &labels);
    }
    http(request)
        .post(path!("/repos/{}/{}/issues/{}/labels", repo.owner, repo.name, number))
        .body_json(&json!({ "labels": labels }))
        .json()
}

/// Removes labels from an issue. GitHub removes one label per request, so each label has its own result.
fn label_remove(http: &Http, repo: &Repo, number: u64, labels: &[String]) -> Result<Value, Error> {
    let mut results = Vec::with_capacity(labels.len());
    for label in labels {
        let response =
            http.delete(path!("/repos/{}/{}/issues/{}/labels/{}", repo.owner, repo.name, number, label)).send()?;
        let is_removed = response.status() == 200;
        if !is_removed {
            log::write(Level::Warn, "GitHub did not remove a label", &[("status", response.status().into())]);
        }
        results.push(json!({ "label": label, "removed": is_removed }));
    }
    Ok(Value::Array(results))
}

fn http(request: &Request) -> Http {
    Http::new(request)
        .base(API)
        .header("Accept", "application/vnd.github+json")
        .header("X-GitHub-Api-Version", "2022-11-28")
        .header("User-Agent", USER_AGENT)
}

fn issue_number(request: &Request) -> Result<u64, Error> {
    match request.optional_param("issue_number")? {
        None | Some(0) => Err(Error::message("issue_number is required")),
        Some(number) => Ok(number),
    }
}

/// Returns a number parameter if it is present and not zero.
fn given_count(request: &Request, name: &str) -> Result<Option<u64>, Error> {
    Ok(request.optional_param::<u64>(name)?.filter(|count| *count > 0))
}

/// Returns a text parameter if it is present and not empty.
fn given_text(request: &Request, name: &str) -> Result<Option<String>, Error> {
    Ok(request.optional_param::<String>(name)?.filter(|text| !text.is_empty()))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
