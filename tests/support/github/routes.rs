//! The answers of the upstream, following GitHub's documentation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Canned, Issue, Recorded, World};

/// GitHub's default and maximum numbers of items per page.
const PER_PAGE_DEFAULT: usize = 30;
const PER_PAGE_MAX: usize = 100;

/// Returns the repositories of a new upstream.
pub(super) fn first_repositories() -> BTreeMap<String, Vec<Issue>> {
    let site = vec![
        issue(1, "The home page is slow", "open", &["bug"]),
        issue(2, "Write an imprint", "closed", &[]),
        issue(3, "Dark mode", "open", &["feature", "good first issue"]),
    ];
    let secret = vec![issue(1, "Do not tell", "open", &[])];
    BTreeMap::from([
        ("acme/site".to_owned(), site),
        ("acme/api".to_owned(), Vec::new()),
        ("other/secret".to_owned(), secret),
    ])
}

/// Returns a comment in GitHub's format.
pub(super) fn comment(number: usize, body: &str) -> Value {
    json!({ "id": 1000 + number, "body": body, "user": { "login": "octocat" } })
}

/// Returns the answer to a request.
pub(super) fn answer(world: &mut World, request: &Recorded) -> Canned {
    if let Some(canned) = world.canned.get(&request.path) {
        return canned.clone();
    }
    if matches!(request.path.as_str(), "/echo" | "/echo-headers") {
        return echo(request);
    }
    if request.header("authorization") != Some(&format!("Bearer {}", world.token)) {
        return problem(401, "Bad credentials");
    }
    if let Some(marker) = request.path.strip_prefix("/effects/") {
        return Canned::json(200, &json!({ "marker": decode(marker) }));
    }
    let segments: Vec<String> = request.path.split('/').skip(1).map(decode).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let ["repos", owner, name, rest @ ..] = segments.as_slice() else { return problem(404, "Not Found") };
    let full_name = format!("{owner}/{name}");
    let Some(issues) = world.repositories.get_mut(&full_name) else { return problem(404, "Not Found") };
    match (request.method.as_str(), rest) {
        ("GET", []) => Canned::json(200, &repository(owner, name)),
        ("GET", ["issues"]) => list_issues(issues, request),
        ("POST", ["issues"]) => create_issue(issues, &request.json()),
        (method, ["issues", number, rest @ ..]) => {
            let index = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            match index.and_then(|index| issues.get_mut(index)) {
                Some(issue) => one_issue(issue, method, rest, request),
                None => problem(404, "Not Found"),
            }
        }
        _ => problem(404, "Not Found"),
    }
}

fn one_issue(issue: &mut Issue, method: &str, rest: &[&str], request: &Recorded) -> Canned {
    match (method, rest) {
        ("GET", []) => Canned::json(200, &issue.json()),
        ("PATCH", []) => {
            set_fields(&mut issue.fields, &request.json());
            Canned::json(200, &issue.json())
        }
        ("GET", ["comments"]) => page(&issue.comments, request),
        ("POST", ["comments"]) => match request.json()["body"].as_str() {
            Some(body) => {
                let new = comment(issue.comments.len() + 1, body);
                issue.comments.push(new.clone());
                Canned::json(201, &new)
            }
            None => problem(422, "Validation Failed"),
        },
        ("POST", ["labels"]) => {
            let mut names = issue.labels();
            let asked = request.json()["labels"].as_array().cloned().unwrap_or_default();
            for name in asked.iter().filter_map(Value::as_str) {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
            issue.set_labels(&names);
            Canned::json(200, &issue.fields["labels"])
        }
        ("DELETE", ["labels", label]) => {
            let mut names = issue.labels();
            let before = names.len();
            names.retain(|name| name != label);
            if names.len() == before {
                return problem(404, "Label does not exist");
            }
            issue.set_labels(&names);
            Canned::json(200, &issue.fields["labels"])
        }
        _ => problem(404, "Not Found"),
    }
}

fn list_issues(issues: &[Issue], request: &Recorded) -> Canned {
    let query = query(request);
    let state = query.get("state").map_or("open", String::as_str);
    let labels: Vec<&str> = query.get("labels").map(|labels| labels.split(',').collect()).unwrap_or_default();
    let found: Vec<Value> = issues
        .iter()
        .filter(|issue| state == "all" || issue.fields["state"] == state)
        .filter(|issue| labels.iter().all(|label| issue.labels().iter().any(|own| own == label)))
        .map(Issue::json)
        .collect();
    page(&found, request)
}

fn create_issue(issues: &mut Vec<Issue>, body: &Value) -> Canned {
    let Some(title) = body["title"].as_str() else { return problem(422, "Validation Failed") };
    let mut new = issue(issues.len() + 1, title, "open", &[]);
    set_fields(&mut new.fields, body);
    let answer = new.json();
    issues.push(new);
    Canned::json(201, &answer)
}

fn set_fields(fields: &mut Map<String, Value>, body: &Value) {
    for name in ["title", "body", "state", "assignees"] {
        if let Some(value) = body.get(name) {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(labels) = body["labels"].as_array() {
        let names: Vec<&str> = labels.iter().filter_map(Value::as_str).collect();
        fields.insert("labels".to_owned(), label_objects(&names));
    }
}

fn repository(owner: &str, name: &str) -> Value {
    json!({
        "id": 1, "name": name, "full_name": format!("{owner}/{name}"), "private": owner != "acme",
        "owner": { "login": owner }, "description": format!("The repository {name}"), "default_branch": "main",
        "open_issues_count": 2,
    })
}

fn issue(number: usize, title: &str, state: &str, labels: &[&str]) -> Issue {
    let Value::Object(fields) = json!({
        "number": number, "title": title, "state": state, "labels": label_objects(labels), "body": null,
        "assignees": [], "user": { "login": "octocat" },
    }) else {
        unreachable!("it is an object")
    };
    Issue { fields, comments: Vec::new() }
}

fn label_objects(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name })).collect()
}

impl Issue {
    fn json(&self) -> Value {
        let mut fields = self.fields.clone();
        fields.insert("comments".to_owned(), json!(self.comments.len()));
        Value::Object(fields)
    }

    fn labels(&self) -> Vec<String> {
        let labels = self.fields["labels"].as_array().map(Vec::as_slice).unwrap_or_default();
        labels.iter().filter_map(|label| label["name"].as_str()).map(str::to_owned).collect()
    }

    fn set_labels(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.fields.insert("labels".to_owned(), label_objects(&names));
    }
}

/// Returns one page, with GitHub's `Link` header to the next and the last page.
fn page(items: &[Value], request: &Recorded) -> Canned {
    let query = query(request);
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok()).filter(|number| *number > 0);
    let per_page = number("per_page").unwrap_or(PER_PAGE_DEFAULT).min(PER_PAGE_MAX);
    let page = number("page").unwrap_or(1);
    let last = items.len().div_ceil(per_page).max(1);
    let here: Vec<&Value> = items.iter().skip((page - 1) * per_page).take(per_page).collect();
    let answer = Canned::json(200, &json!(here));
    if page >= last {
        return answer;
    }
    let host = request.header("host").unwrap_or_default();
    let link = |page: usize, rel: &str| {
        format!("<http://{host}{}?per_page={per_page}&page={page}>; rel=\"{rel}\"", request.path)
    };
    answer.header("link", &format!("{}, {}", link(page + 1, "next"), link(last, "last")))
}

/// Echoes the request, including the token, in the body and in a header.
fn echo(request: &Recorded) -> Canned {
    let headers: Map<String, Value> =
        request.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let answer = Canned::json(
        200,
        &json!({
            "method": request.method, "path": request.path, "query": request.query, "headers": headers,
            "body": String::from_utf8_lossy(&request.body),
        }),
    );
    match request.header("authorization") {
        Some(value) => answer.header("x-echo-authorization", value),
        None => answer,
    }
}

fn problem(status: u16, message: &str) -> Canned {
    Canned::json(status, &json!({ "message": message, "documentation_url": "https://docs.github.com/rest" }))
}

fn query(request: &Recorded) -> BTreeMap<String, String> {
    let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decode(name), decode(&value.replace('+', " ")))).collect()
}

/// Decodes percent escapes.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|digits| hex::decode(digits).ok());
        match escaped {
            Some(decoded) => {
                bytes.extend(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
