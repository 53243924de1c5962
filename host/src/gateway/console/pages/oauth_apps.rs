//! The OAuth apps: the clients of this server at OAuth providers, by which resources are authorized. A manifest only
//! proposes the addresses of a provider; an admin confirms them here. A saved secret is never shown.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::{ConfirmPage, delete_named};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Provider {
    id: String,
    resource_type: Text,
    #[serde(default)]
    resource_id: Option<String>,
    client_id: Text,
    has_client_secret: bool,
    #[serde(default)]
    authorization_url: Option<Text>,
    token_url: Text,
    #[serde(default)]
    device_authorization_url: Option<Text>,
    #[serde(default)]
    scopes: Vec<Text>,
    /// The issuer whose metadata were confirmed. The addresses of such a provider are not edited.
    #[serde(default)]
    issuer: Option<Text>,
    updated_at: UtcMillis,
}

#[derive(Deserialize)]
struct Providers {
    items: Vec<Provider>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// A resource type, with what its methods propose.
#[derive(Deserialize)]
struct Type {
    id: Text,
    name: Text,
    description: Text,
    auth_methods: Vec<AuthMethod>,
}

#[derive(Deserialize)]
struct AuthMethod {
    #[serde(default)]
    oauth_config: Option<Proposal>,
}

#[derive(Clone, Default, Deserialize)]
struct Proposal {
    #[serde(default)]
    authorization_url: Option<Text>,
    #[serde(default)]
    token_url: Option<Text>,
    #[serde(default)]
    device_authorization_url: Option<Text>,
    #[serde(default)]
    scopes: Vec<Text>,
}

#[derive(Deserialize)]
struct Types {
    items: Vec<Type>,
}

impl Type {
    fn is_oauth(&self) -> bool {
        self.auth_methods.iter().any(|method| method.oauth_config.is_some())
    }

    /// Returns what the methods of the type propose together, the first value of each field.
    fn proposal(&self) -> Proposal {
        let mut whole = Proposal::default();
        for config in self.auth_methods.iter().filter_map(|method| method.oauth_config.clone()) {
            whole.authorization_url = whole.authorization_url.or(config.authorization_url);
            whole.token_url = whole.token_url.or(config.token_url);
            whole.device_authorization_url = whole.device_authorization_url.or(config.device_authorization_url);
            if whole.scopes.is_empty() {
                whole.scopes = config.scopes;
            }
        }
        whole
    }
}

/// Returns a URL as requests use it: a host with letters of other scripts, which can look like a well-known one, becomes
/// its ASCII form.
fn as_sent(url: Option<Text>) -> Text {
    let url = url.unwrap_or_default();
    Url::parse(url.raw()).map_or(url, |parsed| Text::from(parsed.to_string()))
}

#[derive(Template)]
#[template(path = "console/oauth_apps.html")]
struct ListPage {
    frame: Frame,
    providers: Vec<Provider>,
    resources: Vec<Named>,
    callback: Option<Text>,
    next: Option<String>,
    may_change: bool,
}

impl ListPage {
    fn resource_name(&self, id: &str) -> Text {
        let found = self.resources.iter().find(|resource| resource.id == id);
        found.map_or_else(|| id.into(), |resource| resource.name.clone())
    }
}

/// Returns the address that an app at a provider names as its callback, if the server knows it.
fn callback(visit: &Visit) -> Option<Text> {
    visit.console.callback_url.as_deref().map(Text::from)
}

/// Shows the OAuth apps.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    #[derive(Deserialize)]
    struct Resources {
        items: Vec<Named>,
    }
    let path = with_query("/api/oauth/providers", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list, resources) = tokio::join!(
        visit.frame("oauth-apps", visit.words().text("nav.oauth-apps")),
        visit.client.get::<Providers>(&path),
        visit.client.get::<Resources>("/api/resources?limit=200"),
    );
    let Providers { items: providers, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("oauth-apps"), &[("cursor", &cursor)]));
    let resources = resources.map(|list| list.items).unwrap_or_default();
    let may_change = visit.may("oauth_create");
    Ok(page::render(&ListPage { frame, providers, resources, callback: callback(&visit), next, may_change }))
}

/// The type that was chosen for a new app.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Chosen {
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Template)]
#[template(path = "console/oauth_app_types.html")]
struct TypesPage {
    frame: Frame,
    types: Vec<Type>,
}

/// The form of a new app, or of an existing one.
#[derive(Template)]
#[template(path = "console/oauth_app.html")]
struct FormPage {
    frame: Frame,
    kind: Text,
    client_id: Text,
    authorization_url: Text,
    token_url: Text,
    device_authorization_url: Text,
    scopes: Text,
    issuer: Option<Text>,
    has_secret: bool,
    /// What happens with a saved secret: `keep`, `replace` or `remove`.
    secret_mode: String,
    updated_at: Option<UtcMillis>,
    callback: Option<Text>,
    errors: Vec<(Text, Text)>,
    action: String,
    is_new: bool,
}

fn lines(list: &[Text]) -> Text {
    list.iter().map(Text::raw).collect::<Vec<_>>().join("\n").into()
}

/// Shows the types that can be authorized by OAuth and, after one is chosen, the form with what its manifest proposes.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(chosen): Query<Chosen>) -> Page {
    if !chosen.kind.is_empty() {
        return Ok(page::render(&blank(&visit, &chosen.kind).await?));
    }
    let (frame, types) = tokio::join!(
        visit.frame("oauth-apps", visit.words().text("oauth.new")),
        visit.client.get::<Types>("/api/resource-types?limit=200"),
    );
    let types = types?.items.into_iter().filter(Type::is_oauth).collect();
    Ok(page::render(&TypesPage { frame, types }))
}

async fn blank(visit: &Visit, kind: &str) -> Result<FormPage, Failure> {
    if !visit.may("oauth_create") {
        return Err(Failure::forbidden());
    }
    let path = format!("/api/resource-types/{}", segment(kind));
    let kind = visit.client.get::<Type>(&path).await?;
    let title = visit.words().filled("oauth.new_of", &[&kind.id]);
    let proposal = kind.proposal();
    Ok(FormPage {
        frame: visit.frame("oauth-apps", &title).await,
        client_id: Text::default(),
        authorization_url: as_sent(proposal.authorization_url),
        token_url: as_sent(proposal.token_url),
        device_authorization_url: as_sent(proposal.device_authorization_url),
        scopes: lines(&proposal.scopes),
        issuer: None,
        has_secret: false,
        secret_mode: String::new(),
        updated_at: None,
        callback: callback(visit),
        errors: Vec::new(),
        action: with_query(&visit.to("oauth-apps/new"), &[("type", kind.id.raw())]),
        is_new: true,
        kind: kind.id,
    })
}

async fn found(visit: &Visit, id: &str) -> Result<Provider, Failure> {
    let mut cursor = String::new();
    // The API has no route for one provider. A workspace has few of them, so few pages are read.
    loop {
        let path = with_query("/api/oauth/providers", &[("limit", "1000"), ("cursor", &cursor)]);
        let Providers { items, next_cursor } = visit.client.get::<Providers>(&path).await?;
        if let Some(provider) = items.into_iter().find(|provider| provider.id == id) {
            return Ok(provider);
        }
        cursor = next_cursor.ok_or_else(Failure::not_found)?;
    }
}

async fn existing(visit: &Visit, id: &str) -> Result<FormPage, Failure> {
    if !visit.may("oauth_update") {
        return Err(Failure::forbidden());
    }
    let provider = found(visit, id).await?;
    Ok(FormPage {
        frame: visit.frame("oauth-apps", &provider.resource_type.to_string()).await,
        client_id: provider.client_id,
        authorization_url: provider.authorization_url.unwrap_or_default(),
        token_url: provider.token_url,
        device_authorization_url: provider.device_authorization_url.unwrap_or_default(),
        scopes: lines(&provider.scopes),
        issuer: provider.issuer,
        has_secret: provider.has_client_secret,
        secret_mode: "keep".to_owned(),
        updated_at: Some(provider.updated_at),
        callback: callback(visit),
        errors: Vec::new(),
        action: visit.to(&format!("oauth-apps/{}", segment(&provider.id))),
        is_new: false,
        kind: provider.resource_type,
    })
}

impl FormPage {
    /// Returns the path of the form's action, without its query.
    fn action_path(&self) -> &str {
        self.action.split('?').next().unwrap_or_default()
    }

    /// Reads the form. What was typed stays on the page, except the secret.
    fn read(&mut self, visit: &Visit) -> Value {
        let fields = visit.fields();
        self.client_id = fields.value("client_id").trim().into();
        self.scopes = fields.value("scopes").into();
        let mut body = json!({"client_id": self.client_id.raw(), "scopes": fields.lines("scopes")});
        if self.issuer.is_none() {
            let optional = |text: &Text| if text.is_empty() { Value::Null } else { text.raw().into() };
            self.authorization_url = fields.value("authorization_url").trim().into();
            self.token_url = fields.value("token_url").trim().into();
            self.device_authorization_url = fields.value("device_authorization_url").trim().into();
            body["authorization_url"] = optional(&self.authorization_url);
            // Only the manifest's proposal takes the place of an empty token URL.
            body["token_url"] = if self.is_new { optional(&self.token_url) } else { self.token_url.raw().into() };
            body["device_authorization_url"] = optional(&self.device_authorization_url);
        }
        let secret = fields.value("client_secret");
        if self.has_secret {
            self.secret_mode = fields.value("secret_mode").to_owned();
        }
        match self.secret_mode.as_str() {
            "remove" => body["client_secret"] = Value::Null,
            "replace" => body["client_secret"] = secret.into(),
            _ if !self.has_secret && !secret.is_empty() => body["client_secret"] = secret.into(),
            _ => {}
        }
        body
    }

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

/// Creates an app. By this, an admin confirms the addresses of the provider.
pub(in crate::gateway::console) async fn create(visit: Visit, Query(chosen): Query<Chosen>) -> Page {
    let mut page = blank(&visit, &chosen.kind).await?;
    let mut body = page.read(&visit);
    body["resource_type"] = page.kind.raw().into();
    match visit.client.act(Method::POST, "/api/oauth/providers", Some(&body), visit.conditions()).await {
        Ok(()) => {
            let text = visit.words().filled("oauth.created", &[&page.kind]);
            Ok(visit.done(text, &visit.to("oauth-apps")).await)
        }
        Err(failure) => page.refused(failure),
    }
}

/// Shows the form of an app.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?))
}

/// Saves an app.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let mut page = existing(&visit, &id).await?;
    let body = page.read(&visit);
    let path = format!("/api/oauth/providers/{}", segment(&id));
    match visit.client.act(Method::PATCH, &path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.action).await),
        Err(failure) => page.refused(failure),
    }
}

/// Asks before an app is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let FormPage { frame, kind, action, .. } = existing(&visit, &id).await?;
    let text = visit.words().text("oauth.delete_text").to_owned();
    let (back, action) = (action.clone(), format!("{action}/delete"));
    Ok(page::render(&ConfirmPage { frame, name: kind, text, action, version: String::new(), back }))
}

/// Deletes an app, after the name of its resource type was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let FormPage { kind, action, .. } = existing(&visit, &id).await?;
    let path = format!("/api/oauth/providers/{}", segment(&id));
    delete_named(&visit, &path, &kind, &format!("{action}/delete"), "oauth-apps").await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_as_requests_use_them() {
        let shown = |url: &str| as_sent(Some(url.into())).raw().to_owned();
        assert_eq!(shown("https://github.com/login/oauth/access_token"), "https://github.com/login/oauth/access_token");
        assert_eq!(shown("https://g\u{456}thub.com/login"), "https://xn--gthub-n2e.com/login");
        assert_eq!(shown("no URL"), "no URL");
        assert_eq!(as_sent(None).raw(), "");
    }
}
