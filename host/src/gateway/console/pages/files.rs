//! A file of a sandbox: its text on a page, and its download. Nothing of a sandbox is rendered: a text is escaped, and
//! everything else is an attachment.

use askama::Template;
use axum::extract::{Path, Query};
use http::{HeaderMap, HeaderValue, Method, Version, header};
use serde::Deserialize;

use crate::gateway::console::client::{Conditions, Failure, with_query};
use crate::gateway::console::hosts::is_from_other_site;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::conversations::{
    FILES, Sandbox, Shown, WORKSPACE, check_path, crumbs, list_folder, read, size, within,
};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The maximum size of a text that a page shows.
const TEXT_BYTES_MAX: u64 = 256 << 10;
/// The maximum size of a text as it is written in a page.
const PAGE_TEXT_MAX: usize = 448 << 10;

/// The policy of a download: a browser that opens it runs nothing of it.
const SANDBOXED: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

#[derive(Template)]
#[template(path = "console/file.html")]
struct FilePage {
    frame: Frame,
    conversation: Text,
    base: String,
    crumbs: Vec<(Text, String)>,
    size: String,
    /// Absent if the file is too large, or is not text.
    text: Option<Text>,
    is_whole: bool,
    is_too_large: bool,
    download: String,
}

/// Returns the page of the conversation, for a request that would start a stopped sandbox or that another site made. That
/// page asks the sandbox for nothing.
fn stopped(visit: &Visit, sandbox: &Sandbox, path: &str) -> axum::response::Response {
    page::see_other(&with_query(&sandbox.base(visit), &[("path", path)]))
}

/// Shows a text file.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Shown { path, .. }): Query<Shown>,
    headers: HeaderMap,
) -> Page {
    #[derive(Deserialize)]
    struct Content {
        content: String,
    }
    check_path(&path)?;
    let sandbox = read(&visit, &id).await?;
    let (folder, name) = path.rsplit_once('/').unwrap_or((WORKSPACE, &path));
    if !sandbox.is_running() || is_from_other_site(&headers) {
        return Ok(stopped(&visit, &sandbox, folder));
    }
    let file = list_folder(&visit, &sandbox, folder).await?.into_iter().find(|file| file.name.raw() == name);
    let file = file.filter(|file| file.kind == "file").ok_or_else(Failure::not_found)?;
    let mut is_too_large = file.size > TEXT_BYTES_MAX;
    let mut content = None;
    if !is_too_large {
        let body = sandbox.about("read", &file.path);
        match visit.client.send::<Content>(Method::POST, FILES, &body, Conditions::default()).await {
            // The file may have grown after the folder was listed.
            Ok(Content { content: text }) if text.len() as u64 > TEXT_BYTES_MAX => is_too_large = true,
            Ok(Content { content: text }) => content = Some(text),
            Err(Failure::Refused(refusal)) if refusal.status == 413 => is_too_large = true,
            // The file is not text.
            Err(Failure::Refused(refusal)) if refusal.status == 422 => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut room = PAGE_TEXT_MAX;
    let (text, is_whole) = content.map(|content| within(&content, &mut room)).unzip();
    let base = sandbox.base(&visit);
    let page = FilePage {
        frame: visit.frame("conversations", &file.name.to_string()).await,
        conversation: sandbox.name(),
        crumbs: crumbs(&base, folder),
        size: size(file.size),
        text,
        is_whole: is_whole.unwrap_or(true),
        is_too_large,
        download: with_query(&format!("{base}/download"), &[("path", &file.path)]),
        base,
    };
    Ok(page::render(&page))
}

/// Downloads a file, or a folder as a ZIP archive.
pub(in crate::gateway::console) async fn download(
    visit: Visit,
    version: Version,
    Path((_, id)): Path<(String, String)>,
    Query(Shown { path, .. }): Query<Shown>,
    headers: HeaderMap,
) -> Page {
    check_path(&path)?;
    let sandbox = read(&visit, &id).await?;
    let path = if path.is_empty() { WORKSPACE } else { &path };
    if !sandbox.is_running() || is_from_other_site(&headers) {
        let folder = path.rsplit_once('/').map_or(WORKSPACE, |(folder, _)| folder);
        return Ok(stopped(&visit, &sandbox, folder));
    }
    let body = sandbox.about("download", path);
    let mut response = visit.client.download("/api/core/ai/sandbox/download", &body, version).await?;
    let headers = response.headers_mut();
    let is_archive = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/zip");
    let kind = if is_archive { "application/zip" } else { "application/octet-stream" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOXED));
    headers.entry(header::CONTENT_DISPOSITION).or_insert(HeaderValue::from_static("attachment"));
    Ok(response)
}
