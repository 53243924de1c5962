//! An authorization with a user code (RFC 8628): the code, the page on which a person enters it, and how it ends.

use askama::Template;
use axum::extract::Path;
use axum::response::IntoResponse;
use http::{Method, header};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;
use url::Url;

use crate::gateway::console::client::{Conditions, Failure, segment};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::resources::{Read, Resource, read};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;
use crate::gateway::http::headers::is_loopback;

/// The number of characters of a group of a code that has no separators.
const GROUP_CHARS: usize = 4;

/// Returns whether a path is the state of an authorization. The script of the page asks for it again and again, so it
/// does not keep the session alive.
pub(in crate::gateway::console) fn is_state(path: &str) -> bool {
    path.contains("/device/") && path.ends_with("/state")
}

/// What the API says of the authorization.
#[derive(Deserialize)]
struct Progress {
    status: String,
    #[serde(default)]
    user_code: Option<Text>,
    #[serde(default)]
    verification_uri: Option<Text>,
    #[serde(default)]
    verification_uri_complete: Option<Text>,
    #[serde(default)]
    interval: Option<i64>,
    #[serde(default)]
    slow_down: bool,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<Text>,
    expires_at: UtcMillis,
}

/// An address of the provider that a browser may open.
struct Link {
    href: String,
    /// The host with its port, so that a person sees where the link leads.
    host: Text,
}

impl Progress {
    fn is_pending(&self) -> bool {
        self.status == "pending"
    }

    /// Returns the state as one word.
    fn state(&self) -> &'static str {
        match (self.status.as_str(), self.reason.as_deref()) {
            ("done", _) => "authorized",
            ("pending", _) if self.slow_down => "slow_down",
            ("pending", _) => "pending",
            (_, Some("denied")) => "denied",
            (_, Some("expired")) => "expired",
            (_, Some("superseded")) => "superseded",
            _ => "error",
        }
    }

    /// Returns the class of the state in the style sheet.
    fn class(&self) -> &'static str {
        match self.state() {
            "authorized" => "success",
            "pending" | "slow_down" => "waiting",
            "denied" => "denied",
            "superseded" => "stopped",
            _ => "error",
        }
    }

    /// Returns the groups in which the code is easy to read. Copied together, they are the code.
    fn groups(&self) -> Vec<Text> {
        let Some(code) = &self.user_code else { return Vec::new() };
        if !code.raw().chars().all(|character| character.is_ascii_alphanumeric()) {
            return vec![code.clone()];
        }
        let characters: Vec<char> = code.raw().chars().collect();
        let is_of_threes = characters.len().is_multiple_of(3) && !characters.len().is_multiple_of(GROUP_CHARS);
        let size = if is_of_threes { 3 } else { GROUP_CHARS };
        characters.chunks(size).map(|group| Text::from(group.iter().collect::<String>())).collect()
    }

    fn link(&self) -> Option<Link> {
        self.verification_uri.as_ref().and_then(link)
    }

    /// Returns the page with the code filled in, if it is a page of the same host.
    fn filled_link(&self) -> Option<Link> {
        let (plain, filled) = (self.link()?, self.verification_uri_complete.as_ref().and_then(link)?);
        (filled.host == plain.host).then_some(filled)
    }
}

/// Returns the link to an address of the provider, or `None` for an address that is neither https nor on this machine.
fn link(address: &Text) -> Option<Link> {
    let url = Url::parse(address.raw()).ok()?;
    let name = url.host_str()?;
    let is_web = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(name));
    let host = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    is_web.then(|| Link { href: url.to_string(), host: host.into() })
}

#[derive(Template)]
#[template(path = "console/device.html")]
struct DevicePage {
    frame: Frame,
    resource: Resource,
    progress: Progress,
    base: String,
    /// The path of this page.
    this: String,
    has_check: bool,
}

/// Starts an authorization, and redirects to its page.
pub(in crate::gateway::console) async fn start(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Started {
        id: String,
    }
    let base = visit.to(&format!("resources/{}", segment(&id)));
    let path = format!("/api/resources/{}/oauth/device", segment(&id));
    match visit.client.send::<Started>(Method::POST, &path, &json!({}), Conditions::default()).await {
        Ok(started) => Ok(page::see_other(&format!("{base}/device/{}", segment(&started.id)))),
        // The provider is not confirmed, cannot be reached, or its answer cannot be used.
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 502) => {
            Ok(visit.refused(Text::from(refusal.detail).to_string(), &base).await)
        }
        Err(failure) => Err(failure),
    }
}

async fn progress(visit: &Visit, id: &str, flow: &str) -> Result<Progress, Failure> {
    visit.client.get(&format!("/api/resources/{}/oauth/device/{}", segment(id), segment(flow))).await
}

/// Shows an authorization. Without a script, the page has a link that reads it again.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id, flow)): Path<(String, String, String)>,
) -> Page {
    let (found, progress) = tokio::join!(read(&visit, &id), progress(&visit, &id, &flow));
    let (Read { resource, kind, base, .. }, progress) = (found?, progress?);
    let frame = visit.frame("resources", visit.words().text("device.title")).await;
    let this = format!("{base}/device/{}", segment(&flow));
    let has_check = visit.may("credentials_test") && kind.is_some_and(|kind| kind.has_check());
    Ok(page::render(&DevicePage { frame, resource, progress, base, this, has_check }))
}

/// Returns the state of an authorization as one word, for the script of its page.
pub(in crate::gateway::console) async fn state(
    visit: Visit,
    Path((_, id, flow)): Path<(String, String, String)>,
) -> Page {
    let progress = progress(&visit, &id, &flow).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], progress.state()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(changes: &serde_json::Value) -> Progress {
        let mut progress = json!({ "status": "pending", "expires_at": "2026-01-02T03:04:05.678Z" });
        for (name, value) in changes.as_object().unwrap() {
            progress[name] = value.clone();
        }
        serde_json::from_value(progress).unwrap()
    }

    #[test]
    fn a_code_is_shown_in_groups_that_are_the_code_together() {
        for (code, groups) in [
            ("WDJB-MJHT", &["WDJB-MJHT"][..]),
            ("WDJBMJHT", &["WDJB", "MJHT"][..]),
            ("123456789", &["123", "456", "789"][..]),
            ("ABCDE", &["ABCD", "E"][..]),
            ("<b>12345678", &["<b>12345678"][..]),
        ] {
            let shown = pending(&json!({ "user_code": code })).groups();
            assert_eq!(shown.iter().map(Text::raw).collect::<Vec<_>>(), groups, "{code}");
            assert_eq!(shown.iter().map(Text::raw).collect::<String>(), code);
        }
        assert!(pending(&json!({})).groups().is_empty());
    }

    #[test]
    fn only_addresses_of_the_web_are_links() {
        for (address, host) in [
            ("https://id.example/device", Some("id.example")),
            ("https://id.example:8443/device", Some("id.example:8443")),
            ("http://127.0.0.1:9/device", Some("127.0.0.1:9")),
            ("http://id.example/device", None),
            ("javascript:alert(1)", None),
            ("data:text/html,x", None),
            ("/console/logout", None),
        ] {
            let link = pending(&json!({ "verification_uri": address })).link();
            assert_eq!(link.as_ref().map(|link| link.host.raw()), host, "{address}");
        }
        let link_of = |complete: &str| {
            let uri = "https://id.example/device";
            pending(&json!({ "verification_uri": uri, "verification_uri_complete": complete })).filled_link()
        };
        assert!(link_of("https://id.example/device?user_code=A").is_some());
        assert!(link_of("https://evil.example/device?user_code=A").is_none(), "another host");
        assert!(link_of("javascript:alert(1)").is_none());
    }

    #[test]
    fn each_progress_has_one_state() {
        for (progress, state) in [
            (json!({}), "pending"),
            (json!({ "slow_down": true }), "slow_down"),
            (json!({ "status": "done" }), "authorized"),
            (json!({ "status": "failed", "reason": "denied" }), "denied"),
            (json!({ "status": "failed", "reason": "expired" }), "expired"),
            (json!({ "status": "failed", "reason": "superseded" }), "superseded"),
            (json!({ "status": "failed", "reason": "error" }), "error"),
            (json!({ "status": "failed", "reason": "unknown" }), "error"),
        ] {
            assert_eq!(pending(&progress).state(), state, "{progress}");
        }
        assert!(is_state("/console/w/a/resources/b/device/c/state"));
        assert!(!is_state("/console/w/a/resources/b/device/c") && !is_state("/console/w/a/plugins/state"));
    }
}
