//! The forms of a new and of an existing webhook. A new one is shown with its secret, once.

use askama::Template;
use axum::extract::Path;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, Failure, Versioned};
use crate::gateway::console::form::Fields;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::tasks::bots;
use crate::gateway::console::pages::webhooks::{self, Secret, Webhook};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

const HMAC: &str = "hmac_sha256";
const TOKEN: &str = "token";
/// The header and the prefix in a new form, which are those of GitHub.
const HEADER: &str = "X-Hub-Signature-256";
const PREFIX: &str = "sha256=";

/// The fields of the form, as they were typed.
struct Typed {
    name: Text,
    event: Text,
    bot_id: String,
    /// `hmac_sha256` or `token`.
    kind: String,
    header: Text,
    prefix: Text,
    headers: Text,
    dedupe_header: Text,
}

impl Typed {
    /// Returns the fields of an empty form.
    fn blank() -> Typed {
        Typed {
            name: Text::default(),
            event: Text::default(),
            bot_id: String::new(),
            kind: HMAC.to_owned(),
            header: HEADER.into(),
            prefix: PREFIX.into(),
            headers: Text::default(),
            dedupe_header: Text::default(),
        }
    }

    /// Returns the fields of a form that was sent.
    fn of(fields: &Fields) -> Typed {
        let text = |name: &str| Text::from(fields.value(name).trim());
        Typed {
            name: text("name"),
            event: text("event"),
            bot_id: fields.value("bot_id").to_owned(),
            kind: if fields.value("kind") == TOKEN { TOKEN } else { HMAC }.to_owned(),
            header: text("header"),
            prefix: text("prefix"),
            headers: fields.lines("headers").join("\n").into(),
            dedupe_header: text("dedupe_header"),
        }
    }

    /// Returns the fields of a saved webhook.
    fn saved(webhook: &Webhook) -> Typed {
        let lines = webhook.headers.iter().map(Text::raw).collect::<Vec<_>>().join("\n");
        let is_hmac = webhook.verify.kind == HMAC;
        let or_default = |value: &Option<Text>, default: &str| match value {
            Some(value) => value.clone(),
            // A webhook with a token keeps what a person would choose for an HMAC.
            None => default.into(),
        };
        Typed {
            name: webhook.name.clone(),
            event: webhook.event.clone(),
            bot_id: webhook.bot_id.clone().unwrap_or_default(),
            kind: if is_hmac { HMAC } else { TOKEN }.to_owned(),
            header: or_default(&webhook.verify.header, HEADER),
            prefix: or_default(&webhook.verify.prefix, if is_hmac { "" } else { PREFIX }),
            headers: lines.into(),
            dedupe_header: webhook.dedupe_header.clone().unwrap_or_default(),
        }
    }

    /// Returns the webhook as the API reads it.
    fn body(&self) -> Map<String, Value> {
        let verify = match self.kind.as_str() {
            TOKEN => json!({ "kind": TOKEN }),
            _ => json!({ "kind": HMAC, "header": self.header.raw(), "prefix": self.prefix.raw() }),
        };
        let or_null = |value: &str| if value.is_empty() { Value::Null } else { value.into() };
        let members = [
            ("name", self.name.raw().into()),
            ("event", self.event.raw().into()),
            ("bot_id", or_null(&self.bot_id)),
            ("verify", verify),
            ("headers", self.headers.raw().lines().collect::<Vec<_>>().into()),
            ("dedupe_header", or_null(self.dedupe_header.raw())),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[derive(Template)]
#[template(path = "console/webhook_form.html")]
struct FormPage {
    frame: Frame,
    bots: Vec<Named>,
    typed: Typed,
    errors: Vec<(Text, Text)>,
    action: String,
    version: String,
    is_new: bool,
    is_public: bool,
    back: String,
}

impl FormPage {
    /// Shows the form that the API has refused.
    fn refused(mut self, failure: Failure) -> Page {
        match failure {
            Failure::Refused(refusal) if matches!(refusal.status, 409 | 422) => {
                self.errors = refusal.told();
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
                Ok(page::render_as(status, &self))
            }
            failure => Err(failure),
        }
    }
}

async fn blank(visit: &Visit, typed: Typed) -> Result<FormPage, Failure> {
    if !visit.may("webhooks_create") {
        return Err(Failure::forbidden());
    }
    let (frame, bots) = tokio::join!(visit.frame("events", visit.words().text("webhooks.new")), bots(visit));
    let (action, version, back) = (visit.to("webhooks/new"), String::new(), visit.to("webhooks"));
    let is_public = visit.console.is_public;
    Ok(FormPage { frame, bots, typed, errors: Vec::new(), action, version, is_new: true, is_public, back })
}

/// Reads a webhook, and returns it with its form.
async fn existing(visit: &Visit, id: &str) -> Result<(Webhook, FormPage), Failure> {
    if !visit.may("webhooks_update") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: webhook, version } = webhooks::read(visit, id).await?;
    let (back, title) = (webhook.base(visit), webhook.name.to_string());
    let (frame, bots) = tokio::join!(visit.frame("events", &title), bots(visit));
    let (typed, action, is_public) = (Typed::saved(&webhook), format!("{back}/edit"), visit.console.is_public);
    Ok((webhook, FormPage { frame, bots, typed, errors: Vec::new(), action, version, is_new: false, is_public, back }))
}

/// Shows the form of a new webhook.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    Ok(page::render(&blank(&visit, Typed::blank()).await?))
}

/// Shows the form of a webhook.
pub(in crate::gateway::console) async fn edit(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?.1))
}

/// Creates a webhook, and shows it with its secret. A form that is sent twice finds the webhook that the first one made.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    let page = blank(&visit, Typed::of(visit.fields())).await?;
    let body = page.typed.body().into();
    match visit.client.send::<Secret>(Method::POST, "/api/webhooks", &body, Conditions::default()).await {
        Ok(made) => webhooks::shown(&visit, made).await,
        Err(failure) => page.refused(failure),
    }
}

/// Saves what differs of a webhook.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let (webhook, mut page) = existing(&visit, &id).await?;
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut page.version, visit.shown_version());
    let was = Typed::saved(&webhook).body();
    page.typed = Typed::of(visit.fields());
    let body = page.typed.body();
    let change: Map<String, Value> = body.into_iter().filter(|(name, value)| was.get(name) != Some(value)).collect();
    let path = webhooks::path_of(&id);
    match visit.client.act(Method::PATCH, &path, Some(&change.into()), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(Failure::Refused(refusal)) if refusal.status == 412 => {
            page.version = current;
            page.errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            Ok(page::render_as(StatusCode::PRECONDITION_FAILED, &page))
        }
        Err(failure) => page.refused(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(verify: &Value) -> Webhook {
        serde_json::from_value(json!({
            "id": "w", "url": "https://m.example/hooks/w", "name": "n", "event": "push", "verify": verify,
            "headers": ["X-A", "X-B"], "secret_created_at": "2026-01-01T00:00:00.000Z",
            "created_at": "2026-01-01T00:00:00.000Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_saved_webhook_fills_its_form_and_is_no_change() {
        for verify in [json!({ "kind": "token" }), json!({ "kind": "hmac_sha256", "header": "X-S", "prefix": "v1=" })] {
            let body = Typed::saved(&webhook(&verify)).body();
            let expected = json!({
                "name": "n", "event": "push", "bot_id": null, "verify": verify, "headers": ["X-A", "X-B"],
                "dedupe_header": null,
            });
            assert_eq!(Value::from(body), expected);
        }
    }

    #[test]
    fn a_token_has_neither_a_header_nor_a_prefix() {
        let sent = [("kind", "token"), ("header", "X-S"), ("prefix", "v1=")];
        let fields = sent.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(Typed::of(&fields).body()["verify"], json!({ "kind": "token" }));
    }
}
