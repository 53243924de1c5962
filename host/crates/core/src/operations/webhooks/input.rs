//! The checks of new and changed webhooks.

use monstrum_api::webhooks::{NewWebhook, WebhookChange, WebhookVerify, WebhookVerifyKind};
use monstrum_store::{WebhookKind, WebhookRow};
use monstrum_types::{UtcMillis, WebhookId, WorkspaceId};
use serde_json::json;

use super::super::{InputErrors, OperationError, rules};
use super::header_names;
use crate::app::App;
use crate::events::CustomName;
use crate::webhooks::{SIGNATURE_HEADER, SIGNATURE_PREFIX};

/// The maximum number of headers that become part of an event. Together with the largest body, they fit into an event.
const HEADERS_MAX: usize = 8;
/// The maximum length of the name of a header.
const HEADER_NAME_BYTES_MAX: usize = 64;
/// The maximum length of the text before a signature.
const PREFIX_BYTES_MAX: usize = 32;
/// The headers that may hold a secret of the sender, so they never become part of an event.
const SECRET_HEADERS: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "set-cookie"];

/// Returns the row of a new webhook, without its secret.
pub(super) fn row(new: NewWebhook, workspace_id: WorkspaceId, now: UtcMillis) -> WebhookRow {
    let NewWebhook { name, event, bot_id, verify, headers, dedupe_header } = new;
    let (kind, signature_header, signature_prefix) = stored(verify);
    WebhookRow {
        id: WebhookId::new(),
        workspace_id,
        name,
        event,
        bot_id,
        kind,
        signature_header,
        signature_prefix,
        headers: json!(headers),
        dedupe_header,
        created_at: now,
        updated_at: now,
        secret_created_at: now,
        sealed: String::new(),
    }
}

/// Changes a row as the input says.
pub(super) fn change(row: &mut WebhookRow, change: WebhookChange) {
    let WebhookChange { name, event, bot_id, verify, headers, dedupe_header } = change;
    row.name = name.unwrap_or_else(|| std::mem::take(&mut row.name));
    row.event = event.unwrap_or_else(|| std::mem::take(&mut row.event));
    row.bot_id = bot_id.unwrap_or(row.bot_id);
    if let Some(verify) = verify {
        (row.kind, row.signature_header, row.signature_prefix) = stored(verify);
    }
    if let Some(headers) = headers {
        row.headers = json!(headers.unwrap_or_default());
    }
    if let Some(dedupe_header) = dedupe_header {
        row.dedupe_header = dedupe_header;
    }
}

/// Returns the columns of a check, with the defaults of signatures.
fn stored(verify: WebhookVerify) -> (WebhookKind, Option<String>, Option<String>) {
    let WebhookVerify { kind, header, prefix } = verify;
    match kind {
        WebhookVerifyKind::HmacSha256 => {
            let header = header.unwrap_or_else(|| SIGNATURE_HEADER.to_owned());
            let prefix = prefix.unwrap_or_else(|| SIGNATURE_PREFIX.to_owned());
            (WebhookKind::HmacSha256, Some(header), Some(prefix))
        }
        WebhookVerifyKind::Token => (WebhookKind::Token, header, prefix),
    }
}

/// Checks a webhook as it would be stored.
pub(super) async fn check(app: &App, row: &WebhookRow, before: Option<&WebhookRow>) -> Result<(), OperationError> {
    let mut errors = faults(row);
    if let Some(bot) = row.bot_id.filter(|bot| before.is_none_or(|before| before.bot_id != Some(*bot)))
        && app.store.bot(row.workspace_id, bot).await?.is_none()
    {
        errors.add("/bot_id", "no such bot in this workspace");
    }
    errors.check()
}

fn faults(row: &WebhookRow) -> InputErrors {
    let mut errors = InputErrors::default();
    rules::name(&mut errors, "/name", &row.name);
    if let Err(error) = CustomName::new(&row.event) {
        errors.add("/event", error.to_string());
    }
    match row.kind {
        WebhookKind::HmacSha256 => check_signature(&mut errors, row),
        WebhookKind::Token => {
            for (path, value) in [("/verify/header", &row.signature_header), ("/verify/prefix", &row.signature_prefix)]
            {
                if value.is_some() {
                    errors.add(path, "allowed only when `kind` is `hmac_sha256`");
                }
            }
        }
    }
    check_headers(&mut errors, row);
    if let Some(header) = &row.dedupe_header {
        check_name(&mut errors, "/dedupe_header", header);
    }
    errors
}

fn check_signature(errors: &mut InputErrors, row: &WebhookRow) {
    if let Some(header) = &row.signature_header {
        check_name(errors, "/verify/header", header);
    }
    let prefix = row.signature_prefix.as_deref().unwrap_or_default();
    if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("must have at most {PREFIX_BYTES_MAX} visible ASCII characters and no spaces");
        errors.add("/verify/prefix", message);
    }
}

fn check_headers(errors: &mut InputErrors, row: &WebhookRow) {
    let names = header_names(row);
    if names.len() > HEADERS_MAX {
        errors.add("/headers", format!("must have at most {HEADERS_MAX} entries"));
        return;
    }
    for (index, name) in names.iter().enumerate() {
        let path = format!("/headers/{index}");
        if row.signature_header.as_ref().is_some_and(|signature| signature.eq_ignore_ascii_case(name)) {
            errors.add(path, "the header of the signature does not become part of the event");
        } else if names[..index].iter().any(|earlier| earlier.eq_ignore_ascii_case(name)) {
            errors.add(path, "the header is listed twice");
        } else {
            check_name(errors, &path, name);
        }
    }
}

fn check_name(errors: &mut InputErrors, path: &str, name: &str) {
    // The characters of a token (RFC 9110, section 5.6.2).
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX || !name.bytes().all(is_token) {
        errors.add(path, format!("expected the name of a header with at most {HEADER_NAME_BYTES_MAX} characters"));
    } else if SECRET_HEADERS.iter().any(|secret| secret.eq_ignore_ascii_case(name)) {
        errors.add(path, "this header may hold a secret of the sender, so it cannot be used");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn faults_of(changes: &Value) -> Vec<String> {
        let mut body = json!({ "name": "n", "event": "e", "verify": { "kind": "hmac_sha256" } });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let row = row(serde_json::from_value(body).unwrap(), WorkspaceId::new(), UtcMillis(0));
        faults(&row).paths().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn names_of_headers_and_events_are_checked() {
        let none: [&str; 0] = [];
        assert_eq!(faults_of(&json!({})), none);
        assert_eq!(faults_of(&json!({ "headers": ["X-GitHub-Event"], "dedupe_header": "X-GitHub-Delivery" })), none);
        assert_eq!(faults_of(&json!({ "dedupe_header": "x-hub-signature-256" })), none, "one event of each body");
        assert_eq!(faults_of(&json!({ "name": "", "event": "custom.x" })), ["/name", "/event"]);
        for event in ["", "a b", "a/b", &"x".repeat(129)] {
            assert_eq!(faults_of(&json!({ "event": event })), ["/event"], "{event}");
        }
        for header in ["", "a b", "a:", "ä", "Authorization", "COOKIE", "x-hub-SIGNATURE-256", &"x".repeat(65)] {
            assert_eq!(faults_of(&json!({ "headers": ["ok", header] })), ["/headers/1"], "{header}");
        }
        assert_eq!(faults_of(&json!({ "headers": ["a", "b", "A"] })), ["/headers/2"]);
        let nine: Vec<String> = (0..9).map(|number| format!("x-{number}")).collect();
        assert_eq!(faults_of(&json!({ "headers": nine })), ["/headers"]);
        for header in ["", "Authorization", "a b"] {
            assert_eq!(faults_of(&json!({ "dedupe_header": header })), ["/dedupe_header"], "{header}");
        }
    }

    #[test]
    fn a_token_has_no_signature() {
        assert!(faults_of(&json!({ "verify": { "kind": "token" } })).is_empty());
        let both = json!({ "kind": "token", "header": "x", "prefix": "y" });
        assert_eq!(faults_of(&json!({ "verify": both })), ["/verify/header", "/verify/prefix"]);
        let wrong = json!({ "kind": "hmac_sha256", "header": "a b", "prefix": "v1 =" });
        assert_eq!(faults_of(&json!({ "verify": wrong })), ["/verify/header", "/verify/prefix"]);
        assert!(faults_of(&json!({ "verify": { "kind": "hmac_sha256", "header": "x-sig", "prefix": "" } })).is_empty());
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let body = json!({
            "name": "n", "event": "e", "verify": { "kind": "token" }, "headers": ["a"], "dedupe_header": "b",
        });
        let before = row(serde_json::from_value(body).unwrap(), WorkspaceId::new(), UtcMillis(0));
        let changed = |body: Value| {
            let mut row = before.clone();
            change(&mut row, serde_json::from_value(body).unwrap());
            row
        };
        assert_eq!(changed(json!({})), before);
        let cleared = changed(json!({ "headers": null, "dedupe_header": null, "name": "m" }));
        let expected = WebhookRow { name: "m".to_owned(), headers: json!([]), dedupe_header: None, ..before.clone() };
        assert_eq!(cleared, expected);
        let signed = changed(json!({ "verify": { "kind": "hmac_sha256" } }));
        assert_eq!(signed.signature_header.as_deref(), Some(SIGNATURE_HEADER));
    }
}
