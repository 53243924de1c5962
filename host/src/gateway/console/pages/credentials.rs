//! The credential of a resource: saving it, testing it, and starting an authorization.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::resources::{AuthMethod, Read, Resource, read};
use crate::gateway::console::schema::{self, Input};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Template)]
#[template(path = "console/credential.html")]
struct CredentialPage {
    frame: Frame,
    resource: Resource,
    methods: Vec<AuthMethod>,
    chosen: Text,
    description: Text,
    is_oauth: bool,
    is_device: bool,
    /// The path of the form of an OAuth app, if the method needs an app and none is confirmed.
    new_app: Option<String>,
    inputs: Vec<Input>,
    errors: Vec<(Text, Text)>,
    base: String,
    action: String,
}

/// The method of authentication that was chosen.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct ChosenMethod {
    #[serde(default)]
    method: String,
}

/// Returns the path of the form of an OAuth app if no app is confirmed by which the resource can be authorized.
async fn new_app(visit: &Visit, resource: &Resource) -> Option<String> {
    #[derive(Deserialize)]
    struct App {
        #[serde(default)]
        resource_id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Apps {
        items: Vec<App>,
    }
    if !visit.may("oauth_create") {
        return None;
    }
    let kind = resource.resource_type.raw();
    let path = with_query("/api/oauth/providers", &[("limit", "200"), ("resource_type", kind)]);
    // If the API does not answer, the authorization itself says what is missing.
    let Apps { items } = visit.client.get(&path).await.ok()?;
    let has_app = items.iter().any(|app| app.resource_id.as_ref().is_none_or(|own| *own == resource.id));
    (!has_app).then(|| with_query(&visit.to("oauth-apps/new"), &[("type", kind)]))
}

async fn form(visit: &Visit, id: &str, method: &str) -> Result<CredentialPage, Failure> {
    let Read { resource, kind, base, .. } = read(visit, id).await?;
    let kind = kind.ok_or_else(Failure::not_found)?;
    let methods = kind.auth_methods;
    let chosen = methods.iter().find(|known| known.method.raw() == method).or(methods.first());
    let mut chosen = chosen.ok_or_else(Failure::not_found)?;
    let is_by_app = |known: &AuthMethod| known.is_oauth() || known.is_device();
    let mut new_app = if is_by_app(chosen) { new_app(visit, &resource).await } else { None };
    // The page opens on a method that can be used, unless a person has chosen another one.
    if method.is_empty()
        && new_app.is_some()
        && let Some(usable) = methods.iter().find(|known| !is_by_app(known))
    {
        (chosen, new_app) = (usable, None);
    }
    let (inputs, name) = (schema::of_fields(&chosen.credential_schema, None), chosen.method.clone());
    let (description, is_oauth, is_device) = (chosen.description.clone(), chosen.is_oauth(), chosen.is_device());
    let frame = visit.frame("resources", visit.words().text("credential.title")).await;
    let action = with_query(&format!("{base}/credential"), &[("method", name.raw())]);
    Ok(CredentialPage {
        frame,
        resource,
        methods,
        chosen: name,
        description,
        is_oauth,
        is_device,
        new_app,
        inputs,
        errors: Vec::new(),
        base,
        action,
    })
}

/// Shows the form of a credential. A secret is never filled in.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<ChosenMethod>,
) -> Page {
    Ok(page::render(&form(&visit, &id, &chosen.method).await?))
}

/// Saves a credential and, where the type declares a check, tests it.
pub(in crate::gateway::console) async fn save(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<ChosenMethod>,
) -> Page {
    let mut page = form(&visit, &id, &chosen.method).await?;
    let Ok(values) = schema::read(&mut page.inputs, visit.fields()) else {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    };
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let fields: BTreeMap<String, String> = values.into_iter().map(|(name, value)| (name, text(value))).collect();
    let body = json!({"auth_method": page.chosen.raw(), "fields": fields});
    let path = format!("/api/resources/{}/credential", segment(&id));
    match visit.client.act(Method::PUT, &path, Some(&body), Conditions::default()).await {
        Ok(()) => match tested(&visit, &id).await {
            Some(Err(why)) => Ok(visit.refused(visit.words().filled("credential.fails", &[&why]), &page.base).await),
            Some(Ok(())) => Ok(visit.done(visit.words().text("credential.works").to_owned(), &page.base).await),
            None => Ok(visit.done(visit.words().text("credential.saved").to_owned(), &page.base).await),
        },
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            page.errors = refusal.told();
            schema::place_errors(&mut page.inputs, &page.errors, "/fields/");
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &page))
        }
        Err(failure) => Err(failure),
    }
}

/// Tests a credential. Returns why the test failed, or `None` if the type declares no check.
async fn tested(visit: &Visit, id: &str) -> Option<Result<(), Text>> {
    #[derive(Deserialize)]
    struct Tested {
        status: String,
        #[serde(default)]
        message: Option<Text>,
    }
    if !visit.may("credentials_test") {
        return None;
    }
    let path = format!("/api/resources/{}/credential/test", segment(id));
    match visit.client.send::<Tested>(Method::POST, &path, &json!({}), Conditions::default()).await {
        Ok(tested) if tested.status == "success" => Some(Ok(())),
        Ok(tested) => Some(Err(tested.message.unwrap_or_default())),
        Err(_) => None,
    }
}

/// Tests the credential of a resource.
pub(in crate::gateway::console) async fn test(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let back = visit.to(&format!("resources/{}", segment(&id)));
    match tested(&visit, &id).await {
        Some(Ok(())) => Ok(visit.done(visit.words().text("credential.test_works").to_owned(), &back).await),
        Some(Err(why)) => Ok(visit.refused(visit.words().filled("credential.test_fails", &[&why]), &back).await),
        None => Ok(visit.refused(visit.words().text("credential.no_test").to_owned(), &back).await),
    }
}

#[derive(Template)]
#[template(path = "console/oauth_link.html")]
struct OauthPage {
    frame: Frame,
    name: Text,
    link: String,
    base: String,
}

/// Starts an authorization. The page has a plain link, because the policy of the console permits no form that leads to
/// another site.
pub(in crate::gateway::console) async fn authorize(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Started {
        authorization_url: String,
    }
    let Read { resource, base, .. } = read(&visit, &id).await?;
    let path = format!("/api/resources/{}/oauth/start", segment(&id));
    let body = json!({"return_to": base});
    match visit.client.send::<Started>(Method::POST, &path, &body, Conditions::default()).await {
        Ok(started) => {
            let frame = visit.frame("resources", visit.words().text("credential.authorize")).await;
            // The link leads to this server, which sets a cookie and redirects to the provider.
            Ok(page::render(&OauthPage { frame, name: resource.name, link: started.authorization_url, base }))
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            Ok(visit.refused(refusal.detail, &base).await)
        }
        Err(failure) => Err(failure),
    }
}
