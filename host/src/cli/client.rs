//! The API client of the command line. A client uses one server and one key. It sends and receives JSON, except that
//! `upload` sends a multipart form, and `open` and `stream` return the response body unread, for downloads. It turns error
//! responses into failures with a message and a hint.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use monstrum_types::Secret;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use reqwest::multipart::Form;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use super::failure::Failure;
use super::{FolderFlags, Options, output};
use crate::boot::ADMIN_KEY_FILE;

const URL_DEFAULT: &str = "http://127.0.0.1:8080";
/// The hint for a response that no Monstrum server sends.
pub(super) const NOT_MONSTRUM: &str = "check that --url is the URL of a Monstrum server";
/// The time limit for connecting. The limit is short, so that an unreachable server is reported soon.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The time limit of a request. The limit is long, because the server may compile a plugin or verify the audit first.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// The time limit of a whole download. A stalled download ends earlier, because each chunk has a shorter limit.
const DOWNLOAD_MAX: Duration = Duration::from_secs(86_400);
/// The maximum size of a response, enough for 1 000 audit rows with the largest parameters kept in full (16 KiB).
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The maximum number of items in a page of the API.
const PAGE_ITEMS_MAX: usize = 1000;
/// The maximum size of a key file. A file with one key is far smaller.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// The answer to an import.
pub(super) enum Imported {
    Done(Value),
    /// The errors of the lines, each with a path and a message.
    Invalid(Vec<Value>),
}

/// The reason why a stream of events did not begin.
pub(super) enum NotFollowed {
    /// The server cannot be reached or is not ready. A later attempt may succeed.
    Away(Failure),
    /// The server does not permit or understand the request.
    Refused(Failure),
}

impl From<NotFollowed> for Failure {
    fn from(reason: NotFollowed) -> Failure {
        match reason {
            NotFollowed::Away(failure) | NotFollowed::Refused(failure) => failure,
        }
    }
}

/// A client of one server.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: HeaderValue,
    workspace: Option<String>,
}

impl Client {
    /// Creates a client without sending a request.
    pub(super) fn new(options: &Options) -> Result<Client, Failure> {
        let base = server_url(options.url.as_deref().unwrap_or(URL_DEFAULT))?;
        let key = match &options.key {
            Some(key) => key.clone(),
            None => key_of_server(&options.settings(FolderFlags::default())?.data_dir)?,
        };
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
            .map_err(|_| Failure::new("the API key contains invalid characters", "API keys have the form mk_…"))?;
        authorization.set_sensitive(true);
        if base.scheme() == "http" && !is_local(&base) {
            output::warning(&format!("the API key is sent unencrypted to {base}; use https"));
        }
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_MAX)
            .timeout(ANSWER_MAX);
        if base.scheme() == "http" {
            // Without this setting, creating the client fails on a machine that has no CA certificates, even if the
            // server is local.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| {
            Failure::of(
                "cannot create the HTTP client",
                &error,
                "check that CA certificates are installed on this machine",
            )
        })?;
        Ok(Client { http, base, authorization, workspace: options.workspace.clone() })
    }

    /// Sends GET to the route with the segments `path`.
    pub(super) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    /// Sends POST to the route with the segments `path`.
    pub(super) async fn post(&self, path: &[&str], body: Option<&Value>) -> Result<Value, Failure> {
        self.send(Method::POST, path, &[], body).await
    }

    /// Sends PATCH to the route with the segments `path`.
    pub(super) async fn patch(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(Method::PATCH, path, &[], Some(body)).await
    }

    /// Like [`Client::patch`], but the server refuses the change if the object differs from `present`.
    pub(super) async fn patch_present(&self, path: &[&str], present: &Value, body: &Value) -> Result<Value, Failure> {
        self.answer(self.request(Method::PATCH, path).header(IF_MATCH, version(present)).json(body)).await
    }

    /// Like [`Client::put`], but the server refuses the change if the object differs from `present`, or exists if
    /// `present` is absent.
    pub(super) async fn put_present(
        &self,
        path: &[&str],
        present: Option<&Value>,
        body: &Value,
    ) -> Result<Value, Failure> {
        let request = self.request(Method::PUT, path);
        let request = match present {
            Some(present) => request.header(IF_MATCH, version(present)),
            None => request.header(IF_NONE_MATCH, "*"),
        };
        self.answer(request.json(body)).await
    }

    /// Like [`Client::delete`], but the server refuses the deletion if the object differs from `present`.
    pub(super) async fn delete_present(&self, path: &[&str], present: &Value) -> Result<Value, Failure> {
        self.answer(self.request(Method::DELETE, path).header(IF_MATCH, version(present))).await
    }

    /// Sends DELETE to the route with the segments `path`.
    pub(super) async fn delete(&self, path: &[&str]) -> Result<Value, Failure> {
        self.send(Method::DELETE, path, &[], None).await
    }

    /// Returns a client that acts in this workspace.
    pub(super) fn in_workspace(&self, workspace: &str) -> Client {
        Client { workspace: Some(workspace.to_owned()), ..self.clone() }
    }

    /// Sends GET to a route that answers with JSON Lines.
    pub(super) async fn lines(&self, path: &[&str]) -> Result<Vec<Value>, Failure> {
        let response = self.request(Method::GET, path).send().await.map_err(|error| self.unreachable(&error))?;
        let (status, path, bytes) = self.bytes(response).await?;
        if !status.is_success() {
            return Err(refusal(status, &path, &bytes));
        }
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let parsed: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
        parsed.map_err(|error| Failure::of("the server's response is not JSON Lines", &error, NOT_MONSTRUM))
    }

    /// Imports the lines of `body`. With the `plan` of a dry run, the server makes only the changes of that plan.
    pub(super) async fn import(&self, body: String, dry_run: bool, plan: Option<&str>) -> Result<Imported, Failure> {
        let request = self.request(Method::POST, &["api", "import"]).query(&[("dry_run", dry_run)]);
        let request = request.query(&plan.map(|plan| ("plan", plan)).as_slice());
        let request = request.header(CONTENT_TYPE, "application/jsonl").body(body);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let (status, path, bytes) = self.bytes(response).await?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match answer["errors"].as_array() {
            Some(errors) if status == StatusCode::UNPROCESSABLE_ENTITY => Ok(Imported::Invalid(errors.clone())),
            _ if !status.is_success() => Err(refusal(status, &path, &bytes)),
            _ if answer.is_object() => Ok(Imported::Done(answer)),
            _ => Err(Failure::new("the server's response is not JSON", NOT_MONSTRUM)),
        }
    }

    /// Sends a form by POST to the route with the segments `path`.
    pub(super) async fn upload(&self, path: &[&str], form: Form) -> Result<Value, Failure> {
        self.answer(self.request(Method::POST, path).multipart(form)).await
    }

    /// Sends POST to the route with the segments `path`. The caller reads the body of the response in chunks.
    pub(super) async fn open(&self, path: &[&str], body: &Value) -> Result<Response, Failure> {
        self.opened(self.request(Method::POST, path).json(body)).await
    }

    /// Sends GET to the route with the segments `path`. The caller reads the body of the response in chunks.
    pub(super) async fn stream(&self, path: &[&str], query: &[(&str, String)]) -> Result<Response, Failure> {
        self.opened(self.request(Method::GET, path).query(query)).await
    }

    async fn opened(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let answer = request.timeout(DOWNLOAD_MAX).send().await.map_err(|error| self.unreachable(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(match self.read(answer).await {
            Err(refusal) => refusal,
            Ok(_) => unreachable!("an unsuccessful response is an error"),
        })
    }

    /// Sends GET to a route that answers with server-sent events. The caller reads the body of the response in chunks. The
    /// events begin after the event `last`.
    pub(super) async fn follow(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        last: Option<&str>,
    ) -> Result<Response, NotFollowed> {
        let mut request = self.request(Method::GET, path).query(query).timeout(DOWNLOAD_MAX);
        request = request.header(ACCEPT, "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.map_err(|error| NotFollowed::Away(self.unreachable(&error)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (status, path, bytes) = self.bytes(answer).await.map_err(NotFollowed::Away)?;
        let failure = refusal(status, &path, &bytes);
        Err(if status.is_server_error() { NotFollowed::Away(failure) } else { NotFollowed::Refused(failure) })
    }

    /// Returns the failure for a response that ended early.
    pub(super) fn broken_off(&self, error: &reqwest::Error) -> Failure {
        let cause = std::error::Error::source(error).unwrap_or(error);
        let message = "the server closed the connection before the response was complete";
        Failure::of(message, cause, "try again; if the request fails again, check the server's log")
    }

    /// Reads all items of the list at `path`, page by page.
    pub(super) async fn items(&self, path: &[&str], query: &[(&str, String)]) -> Result<Vec<Value>, Failure> {
        Ok(self.list(path, query, usize::MAX).await?.0)
    }

    /// Reads up to `limit` items of the list at `path`, page by page. Returns them with the cursor of the next page.
    pub(super) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        limit: usize,
    ) -> Result<(Vec<Value>, Value), Failure> {
        let (mut items, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let page_limit = (limit - items.len()).min(PAGE_ITEMS_MAX).to_string();
            let mut query = [query, &[("limit", page_limit)]].concat();
            query.extend(cursor.as_str().map(|cursor| ("cursor", cursor.to_owned())));
            let mut page = self.get(path, &query).await?;
            let Value::Array(rows) = page["items"].take() else {
                return Err(Failure::new("the server's response is not a list", NOT_MONSTRUM));
            };
            let is_last = rows.is_empty();
            items.extend(rows);
            cursor = page["next_cursor"].take();
            if is_last || !cursor.is_string() || items.len() >= limit {
                return Ok((items, cursor));
            }
        }
    }

    /// Sends PUT to the route with the segments `path`.
    pub(super) async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(Method::PUT, path, &[], Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut request = self.request(method, path).query(query);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.answer(request).await
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().extend(path);
        let request = self.http.request(method, url).header(AUTHORIZATION, self.authorization.clone());
        match &self.workspace {
            Some(workspace) => request.header("Monstrum-Workspace", workspace),
            None => request,
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value, Failure> {
        self.read(request.send().await.map_err(|error| self.unreachable(&error))?).await
    }

    async fn read(&self, response: Response) -> Result<Value, Failure> {
        let (status, path, bytes) = self.bytes(response).await?;
        if !status.is_success() {
            return Err(refusal(status, &path, &bytes));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::of("the server's response is not JSON", &error, NOT_MONSTRUM))
    }

    /// Reads a response. Returns its status, the path of the route, and the body.
    async fn bytes(&self, mut response: Response) -> Result<(StatusCode, String, Vec<u8>), Failure> {
        let (status, path) = (response.status(), response.url().path().to_owned());
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                let message = format!("the server's response exceeds the limit of {} MiB", ANSWER_BYTES_MAX >> 20);
                return Err(Failure::new(message, "request fewer items with --limit"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((status, path, bytes))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let server = self.base.as_str().trim_end_matches('/');
        let message = if error.is_timeout() {
            format!("the request to {server} timed out")
        } else {
            format!("cannot reach a server at {server}")
        };
        let hint = "start a server with `monstrum serve`, or set --url or MONSTRUM_URL; \
                    to verify the audit of a stopped server, run `monstrum audit verify --data-dir DIR`";
        let cause = std::error::Error::source(error).unwrap_or(error);
        Failure::of(message, cause, hint)
    }
}

fn server_url(text: &str) -> Result<Url, Failure> {
    let hint = "set --url or MONSTRUM_URL to a URL such as http://127.0.0.1:8080";
    // The message does not repeat the URL, because it may contain a password.
    let url = Url::parse(text).map_err(|error| Failure::of("the server's URL is invalid", &error, hint))?;
    let fault = match url.scheme() {
        "http" | "https" if !url.username().is_empty() || url.password().is_some() => "it contains a user or password",
        "http" | "https" if url.query().is_some() || url.fragment().is_some() => "it contains a query or fragment",
        "http" | "https" => return Ok(url),
        _ => "its scheme is neither http nor https",
    };
    Err(Failure::new("the server's URL is invalid", hint).because(fault))
}

fn is_local(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    }
}

/// Reads the root key that the server wrote to the data folder when it first started.
fn key_of_server(data_dir: &Path) -> Result<Secret, Failure> {
    let path = data_dir.join(ADMIN_KEY_FILE);
    let hint = "start a server with `monstrum serve`, or set --key, MONSTRUM_KEY, or --data-dir to its folder";
    let fail = |error: &std::io::Error| {
        Failure::of(format!("no API key is set, and cannot read {}", path.display()), error, hint)
    };
    let file = std::fs::File::open(&path).map_err(|error| fail(&error))?;
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| fail(&error))?;
    Ok(Secret::new(text.trim().to_owned()))
}

/// Turns an error response (RFC 9457) of the route at `path` into a failure with a hint.
/// Returns the version of an object that the server has sent, as in its header `ETag`.
fn version(object: &Value) -> String {
    format!("\"{}\"", output::cell(&object["updated_at"]))
}

fn refusal(status: StatusCode, path: &str, body: &[u8]) -> Failure {
    let hint = hint(status, path);
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(title) = problem["title"].as_str() else {
        return Failure::new(format!("the server responded with {status}"), NOT_MONSTRUM);
    };
    let mut failure = Failure::new(format!("{title} ({})", status.as_u16()), hint);
    if let Some(detail) = problem["detail"].as_str() {
        failure = failure.because(detail);
    }
    let faults = problem["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    for fault in faults {
        failure = failure.because(&format!("{}: {}", output::cell(&fault["path"]), output::cell(&fault["message"])));
    }
    if let Some(request) = problem["request_id"].as_str() {
        failure = failure.because(&format!("request {request}"));
    }
    failure
}

fn hint(status: StatusCode, path: &str) -> &'static str {
    match status.as_u16() {
        401 => "check that the key in --key, MONSTRUM_KEY or DATA/admin.key belongs to this server",
        403 => "use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds",
        404 if path.contains("/api/keys/") => "run `monstrum key list` to see the keys; also check --workspace",
        404 if path.ends_with("/api/audit") => "run `monstrum audit list` to see the calls; also check --workspace",
        404 if path.contains("/api/approvals/") => {
            "run `monstrum approval list` to see the approvals; also check --workspace"
        }
        404 if path.contains("/api/runs/") => "run `monstrum workflow runs` to see the runs; also check --workspace",
        404 if path.contains("/api/bots/") => "check the id or name of the bot; also check --workspace",
        404 if path.contains("/api/platform/") => "run `monstrum plugin info NAME` to see the functions of a plugin",
        404 if path.contains("/api/registry") => {
            "start the server with `--registry DIR`, or with the URL of a registry"
        }
        404 => "check the name or id with `list`; also check --workspace",
        412 => "run the command again",
        409 if path.ends_with("/api/import") => "run the command again",
        409 => "resolve the conflict that the message names",
        413 | 422 => "correct the input that the message names; run the command with `--help` to see valid input",
        429 | 503 => "try again in a moment",
        _ => "search the server's log for the request id to find the cause",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_would_leak_or_mislead_are_refused() {
        for text in ["http://127.0.0.1:8080", "https://monstrum.example/prefix/"] {
            assert!(server_url(text).is_ok(), "{text}");
        }
        for text in ["127.0.0.1:8080", "ftp://h", "https://user:secret@h", "https://h/?key=1", "https://h/#x", ""] {
            assert!(server_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_this_machine_counts_as_local() {
        let local = |text| is_local(&Url::parse(text).unwrap());
        assert!(local("http://127.0.0.1:1") && local("http://localhost") && local("http://[::1]:8080"));
        assert!(!local("http://10.0.0.1") && !local("http://127.0.0.1.example") && !local("http://localhost.example"));
    }
}
