//! The Jira plugin: lists and creates issues with the REST API of Jira Cloud.
//!
//! The host enforces the permissions that `monstrum.yaml` declares. The plugin builds the requests, and ensures that a
//! parameter cannot extend a query beyond the authorized project.

#![forbid(unsafe_code)]

mod project;
mod query;
#[cfg(test)]
mod tests;

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::{
    Error, Executor, Http, HttpResponse, Map, Operations, Outcome, RESULT_BYTES_MAX, Request, Value, json, operations,
};

use project::ProjectKey;

const USER_AGENT: &str = concat!("monstrum-jira/", env!("CARGO_PKG_VERSION"));
/// The default number of results, which is also the default in the manifest.
const RESULTS_DEFAULT: u64 = 50;
/// The maximum number of issues that Jira returns at once with all fields.
const RESULTS_MAX: u64 = 100;
/// The default issue type, which is also the default in the manifest.
const ISSUE_TYPE_DEFAULT: &str = "Task";
/// The maximum number of characters of a response in an error message: enough for Jira's message, and short enough for
/// a model's context.
const ERROR_BODY_CHARS_MAX: usize = 200;
const NOT_FOUND: u16 = 404;

struct Jira;

impl Executor for Jira {
    const OPERATIONS: Operations = operations! {
        "issue.read" => issue_list,
        "issue.write" => issue_create,
    };

    fn handle_error(&self, _: &Request, error: Error) -> Outcome {
        match error {
            Error::Http { status, body } => {
                log::write(Level::Error, "Jira API error", &[("status", status.into())]);
                let body: String = body.chars().take(ERROR_BODY_CHARS_MAX).collect();
                Outcome::Error(format!("Jira API error: {status} - {body}"))
            }
            Error::Host(failure) => {
                log::write(Level::Error, "Jira request error", &[("code", failure.code.as_str().into())]);
                Outcome::Error(format!("Jira request error: {failure}"))
            }
            other => other.into(),
        }
    }
}

monstrum_sdk::export!(Jira);

fn issue_list(request: &Request) -> Result<Value, Error> {
    let project = ProjectKey::of(request)?;
    let jql = query::issues_of(&project, given_text(request, "status")?.as_deref())?;
    let results_max = request.optional_param::<u64>("max_results")?.unwrap_or(RESULTS_DEFAULT);
    if results_max == 0 {
        return Err(Error::message("max_results must be at least 1"));
    }
    let token = given_text(request, "next_page_token")?;
    let http = http(request);
    let search =
        |path: &'static str| http.get(path).query("jql", &jql).query("maxResults", results_max.min(RESULTS_MAX));
    // If `fields` is missing, this search returns only ids.
    let by_token =
        search("/rest/api/3/search/jql").query("fields", "*navigable").optional_query("nextPageToken", token.as_ref());
    let response = by_token.send()?;
    if response.status() != NOT_FOUND {
        return within_a_result(&response.error_for_status()?);
    }
    // Older Jira servers have only the previous search, which Jira Cloud has removed. The previous search paginates by
    // offset instead of by token.
    let start = match token.as_deref().map(str::parse::<u64>) {
        None => None,
        Some(Ok(start)) => Some(start),
        Some(Err(_)) => {
            return Err(Error::message(
                "this Jira server did not return this `next_page_token`; pass the `nextPageToken` of the previous response",
            ));
        }
    };
    let older = search("/rest/api/3/search").optional_query("startAt", start).send()?.error_for_status()?;
    Ok(with_token(within_a_result(&older)?))
}

/// Parses the response. If the response is too large for a result, the error explains how to request fewer issues. The
/// host's own error does not explain this.
fn within_a_result(response: &HttpResponse) -> Result<Value, Error> {
    if response.body().len() > RESULT_BYTES_MAX {
        return Err(Error::message("The issues exceed 1 MiB; request fewer issues with `max_results`"));
    }
    response.json()
}

/// Adds the token of the next page, if any, to a response of the previous search.
fn with_token(mut answer: Value) -> Value {
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let issues = answer.get("issues").and_then(Value::as_array).map_or(0, Vec::len);
    let next = number("startAt").unwrap_or(0) + u64::try_from(issues).unwrap_or(0);
    let is_more = issues > 0 && number("total").is_some_and(|total| next < total);
    if let Some(answer) = answer.as_object_mut().filter(|_| is_more) {
        answer.insert("nextPageToken".to_owned(), next.to_string().into());
    }
    answer
}

fn issue_create(request: &Request) -> Result<Value, Error> {
    let project = ProjectKey::of(request)?;
    let summary = given_text(request, "summary")?.ok_or_else(|| Error::message("summary is required"))?;
    let issue_type = given_text(request, "issue_type")?.unwrap_or_else(|| ISSUE_TYPE_DEFAULT.to_owned());
    let mut fields = Map::new();
    fields.insert("project".to_owned(), json!({ "key": project.as_str() }));
    fields.insert("summary".to_owned(), summary.into());
    if let Some(text) = given_text(request, "description")? {
        fields.insert("description".to_owned(), document(&text));
    }
    fields.insert("issuetype".to_owned(), json!({ "name": issue_type }));
    http(request).post("/rest/api/3/issue").body_json(&json!({ "fields": fields })).json()
}

/// Converts a text to Atlassian's document format, with a paragraph for each line. Blank lines are omitted, because the
/// format does not allow empty texts.
fn document(text: &str) -> Value {
    let paragraph = |line: &str| json!({ "type": "paragraph", "content": [{ "type": "text", "text": line }] });
    let content: Vec<Value> = text.lines().filter(|line| !line.trim().is_empty()).map(paragraph).collect();
    json!({ "type": "doc", "version": 1, "content": content })
}

fn http(request: &Request) -> Http {
    Http::new(request).header("Accept", "application/json").header("User-Agent", USER_AGENT)
}

/// Returns a text parameter if it is present and not blank.
fn given_text(request: &Request, name: &str) -> Result<Option<String>, Error> {
    Ok(request.optional_param::<String>(name)?.filter(|text| !text.trim().is_empty()))
}
