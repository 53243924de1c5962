//! The resources: what bots reach through plugins, with their configuration and their credentials.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, Failure, Versioned, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::{ConfirmPage, delete_named};
use crate::gateway::console::schema::{self, Declared, Input};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Resource {
    id: String,
    name: Text,
    resource_type: Text,
    config: Map<String, Value>,
    #[serde(default)]
    labels: Vec<Text>,
    #[serde(default)]
    network: Network,
    #[serde(default)]
    credential: Option<Credential>,
    #[serde(default)]
    discovery: Option<Discovery>,
}

#[derive(Default, Deserialize)]
struct Network {
    #[serde(default)]
    allow_addresses: Vec<Text>,
    #[serde(default)]
    allow_http: bool,
}

impl Network {
    fn lines(&self) -> String {
        self.allow_addresses.iter().map(Text::raw).collect::<Vec<_>>().join("\n")
    }
}

#[derive(Deserialize)]
struct Credential {
    status: String,
    method: Text,
    #[serde(default)]
    audience: Vec<Text>,
    #[serde(default)]
    requested_audience: Option<Vec<Text>>,
    #[serde(default)]
    missing_scopes: Option<Vec<Text>>,
    #[serde(default)]
    expires_at: Option<UtcMillis>,
    updated_at: UtcMillis,
}

impl Credential {
    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "ready" => "success",
            "needs-authorization" => "waiting",
            _ => "error",
        }
    }
}

#[derive(Deserialize)]
struct Discovery {
    status: String,
    #[serde(default)]
    error: Option<Text>,
    #[serde(default)]
    last_discovery_at: Option<UtcMillis>,
}

impl Discovery {
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "ok" => "success",
            "failed" => "error",
            _ => "hidden",
        }
    }
}

#[derive(Deserialize)]
struct Resources {
    items: Vec<Resource>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// What a resource type declares.
#[derive(Deserialize)]
struct Type {
    id: Text,
    name: Text,
    description: Text,
    tool_discovery: String,
    tools: Vec<TypeTool>,
    auth_methods: Vec<AuthMethod>,
    config_schema: Vec<Declared>,
    #[serde(default)]
    credential_check: Option<Value>,
}

#[derive(Deserialize)]
struct TypeTool {
    name: Text,
    description: Text,
}

/// A method of authentication.
#[derive(Deserialize)]
struct AuthMethod {
    method: Text,
    label: Text,
    description: Text,
    credential_schema: Vec<Declared>,
    #[serde(default)]
    oauth_config: Option<Value>,
}

impl AuthMethod {
    fn is_oauth(&self) -> bool {
        self.oauth_config.is_some()
    }
}

#[derive(Deserialize)]
struct Types {
    items: Vec<Type>,
}

#[derive(Template)]
#[template(path = "console/resources.html")]
struct ListPage {
    frame: Frame,
    resources: Vec<Resource>,
    next: Option<String>,
    may_create: bool,
}

/// Shows the resources.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/resources", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) = tokio::join!(
        visit.frame("resources", visit.words().text("resources.title")),
        visit.client.get::<Resources>(&path),
    );
    let Resources { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("resources"), &[("cursor", &cursor)]));
    let may_create = visit.may("resources_create");
    Ok(page::render(&ListPage { frame, resources: items, next, may_create }))
}

/// The type that was chosen for a new resource.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Chosen {
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Template)]
#[template(path = "console/resource_types.html")]
struct TypesPage {
    frame: Frame,
    types: Vec<Type>,
}

#[derive(Template)]
#[template(path = "console/resource_form.html")]
struct FormPage {
    frame: Frame,
    kind: Type,
    name: Text,
    inputs: Vec<Input>,
    allow_addresses: Text,
    allow_http: bool,
    labels: Text,
    errors: Vec<(Text, Text)>,
    action: String,
    version: String,
    is_new: bool,
    back: String,
}

/// Shows the catalogue of types and, after one is chosen, the form of a new resource.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(chosen): Query<Chosen>) -> Page {
    if chosen.kind.is_empty() {
        let (frame, types) = tokio::join!(
            visit.frame("resources", visit.words().text("resources.new")),
            visit.client.get::<Types>("/api/resource-types?limit=200"),
        );
        return Ok(page::render(&TypesPage { frame, types: types?.items }));
    }
    let page = blank(&visit, &chosen.kind).await?;
    Ok(page::render(&page))
}

async fn blank(visit: &Visit, kind: &str) -> Result<FormPage, Failure> {
    let path = format!("/api/resource-types/{}", segment(kind));
    let title = visit.words().filled("resources.new_of", &[&kind]);
    let (frame, kind) = tokio::join!(visit.frame("resources", &title), visit.client.get::<Type>(&path));
    let kind = kind?;
    let action = with_query(&visit.to("resources/new"), &[("type", kind.id.raw())]);
    Ok(FormPage {
        frame,
        name: Text::default(),
        inputs: schema::of_fields(&kind.config_schema, None),
        allow_addresses: Text::default(),
        allow_http: false,
        labels: Text::default(),
        errors: Vec::new(),
        action,
        version: String::new(),
        is_new: true,
        back: visit.to("resources"),
        kind,
    })
}

impl FormPage {
    /// Returns the path of the form's action, without its query.
    fn action_path(&self) -> &str {
        self.action.split('?').next().unwrap_or_default()
    }

    /// Reads the form. What was typed stays on the page.
    fn read(&mut self, visit: &Visit) -> Option<Value> {
        let fields = visit.fields();
        self.name = fields.value("name").into();
        self.allow_addresses = fields.value("allow_addresses").into();
        self.allow_http = fields.has("allow_http");
        self.labels = fields.value("labels").into();
        let config = schema::read(&mut self.inputs, fields).ok()?;
        let network = json!({"allow_addresses": fields.lines("allow_addresses"), "allow_http": self.allow_http});
        let labels = fields.lines("labels");
        Some(json!({"name": self.name.raw(), "config": config, "network": network, "labels": labels}))
    }

    fn refused(mut self, failure: Failure, visit: &Visit) -> Page {
        match failure {
            Failure::Refused(refusal) if matches!(refusal.status, 409 | 412 | 422) => {
                self.errors = match refusal.status {
                    412 => vec![(Text::default(), visit.words().text("form.version_changed").into())],
                    _ => refusal.told(),
                };
                schema::place_errors(&mut self.inputs, &self.errors, "/config/");
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
                Ok(page::render_as(status, &self))
            }
            failure => Err(failure),
        }
    }
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

/// Creates a resource.
pub(in crate::gateway::console) async fn create(visit: Visit, Query(chosen): Query<Chosen>) -> Page {
    let mut page = blank(&visit, &chosen.kind).await?;
    let Some(mut body) = page.read(&visit) else {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    };
    body["resource_type"] = page.kind.id.raw().into();
    match visit.client.send::<Created>(Method::POST, "/api/resources", &body, visit.conditions()).await {
        Ok(created) => {
            let text = visit.words().filled("resources.created", &[&page.name]);
            Ok(visit.done(text, &visit.to(&format!("resources/{}", segment(&created.id)))).await)
        }
        Err(failure) => page.refused(failure, &visit),
    }
}

struct Read {
    resource: Resource,
    version: String,
    kind: Option<Type>,
    base: String,
}

async fn read(visit: &Visit, id: &str) -> Result<Read, Failure> {
    let Versioned { value: resource, version } =
        visit.client.get_versioned::<Resource>(&format!("/api/resources/{}", segment(id))).await?;
    // A type whose plugin is not loaded has no description at this moment.
    let kind = format!("/api/resource-types/{}", segment(resource.resource_type.raw()));
    let kind = visit.client.get::<Type>(&kind).await.ok();
    let base = visit.to(&format!("resources/{}", segment(&resource.id)));
    Ok(Read { resource, version, kind, base })
}

#[derive(Template)]
#[template(path = "console/resource.html")]
struct ShowPage {
    frame: Frame,
    resource: Resource,
    kind: Option<Type>,
    base: String,
    pins: Vec<Pin>,
    may_change: bool,
    may_credential: bool,
    may_pins: bool,
    may_discover: bool,
}

impl ShowPage {
    fn config(&self) -> Vec<(Text, Text)> {
        let shown = |value: &Value| match value {
            Value::String(text) => text.as_str().into(),
            other => pretty(other),
        };
        self.resource.config.iter().map(|(name, value)| (name.as_str().into(), shown(value))).collect()
    }

    fn discovers(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind.tool_discovery != "static") || self.resource.discovery.is_some()
    }

    fn has_check(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind.credential_check.is_some())
    }
}

/// A tool that a server has declared.
#[derive(Deserialize)]
struct Pin {
    name: Text,
    original_name: Text,
    digest: String,
    effect: String,
    status: String,
    #[serde(default)]
    reason: Option<Text>,
    definition: Value,
    #[serde(default)]
    approved: Option<Approved>,
}

#[derive(Deserialize)]
struct Approved {
    definition: Value,
}

impl Pin {
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "approved" => "success",
            "pending" | "changed" => "waiting",
            "invalid" => "error",
            "rejected" => "denied",
            _ => "stopped",
        }
    }

    fn waits(&self) -> bool {
        matches!(self.status.as_str(), "pending" | "changed" | "rejected")
    }

    fn definition_text(&self) -> Text {
        pretty(&self.definition)
    }

    fn approved_text(&self) -> Text {
        self.approved.as_ref().map(|approved| pretty(&approved.definition)).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Pins {
    items: Vec<Pin>,
}

/// Shows a resource.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let pins = format!("/api/resources/{}/tools", segment(&id));
    let (found, pins) = tokio::join!(read(&visit, &id), visit.client.get::<Pins>(&pins));
    let Read { resource, kind, base, .. } = found?;
    let frame = visit.frame("resources", &resource.name.to_string()).await;
    let page = ShowPage {
        frame,
        resource,
        kind,
        base,
        pins: pins.map(|pins| pins.items).unwrap_or_default(),
        may_change: visit.may("resources_update"),
        may_credential: visit.may("credentials_save"),
        may_pins: visit.may("resources_approve"),
        may_discover: visit.may("resources_discover"),
    };
    Ok(page::render(&page))
}

async fn edit_page(visit: &Visit, id: &str) -> Result<FormPage, Failure> {
    let Read { resource, version, kind, base } = read(visit, id).await?;
    let kind = kind.ok_or_else(Failure::not_found)?;
    let frame = visit.frame("resources", &resource.name.to_string()).await;
    Ok(FormPage {
        frame,
        inputs: schema::of_fields(&kind.config_schema, Some(&resource.config)),
        allow_addresses: resource.network.lines().into(),
        allow_http: resource.network.allow_http,
        labels: resource.labels.iter().map(Text::raw).collect::<Vec<_>>().join("\n").into(),
        name: resource.name,
        errors: Vec::new(),
        action: format!("{base}/edit"),
        version,
        is_new: false,
        back: base,
        kind,
    })
}

/// Shows the form of a resource.
pub(in crate::gateway::console) async fn edit(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&edit_page(&visit, &id).await?))
}

/// Saves a resource.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let mut page = edit_page(&visit, &id).await?;
    let Some(body) = page.read(&visit) else {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    };
    let path = format!("/api/resources/{}", segment(&id));
    match visit.client.act(Method::PATCH, &path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(failure) => page.refused(failure, &visit),
    }
}

#[derive(Template)]
#[template(path = "console/credential.html")]
struct CredentialPage {
    frame: Frame,
    resource: Resource,
    methods: Vec<AuthMethod>,
    chosen: Text,
    description: Text,
    is_oauth: bool,
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

async fn credential_page(visit: &Visit, id: &str, method: &str) -> Result<CredentialPage, Failure> {
    let Read { resource, kind, base, .. } = read(visit, id).await?;
    let kind = kind.ok_or_else(Failure::not_found)?;
    let methods = kind.auth_methods;
    let chosen = methods.iter().find(|known| known.method.raw() == method).or(methods.first());
    let chosen = chosen.ok_or_else(Failure::not_found)?;
    let (inputs, name) = (schema::of_fields(&chosen.credential_schema, None), chosen.method.clone());
    let (description, is_oauth) = (chosen.description.clone(), chosen.is_oauth());
    let frame = visit.frame("resources", visit.words().text("credential.title")).await;
    let action = with_query(&format!("{base}/credential"), &[("method", name.raw())]);
    Ok(CredentialPage {
        frame,
        resource,
        methods,
        chosen: name,
        description,
        is_oauth,
        inputs,
        errors: Vec::new(),
        base,
        action,
    })
}

/// Shows the form of a credential. A secret is never filled in.
pub(in crate::gateway::console) async fn credential(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<ChosenMethod>,
) -> Page {
    Ok(page::render(&credential_page(&visit, &id, &chosen.method).await?))
}

/// Saves a credential and, where the type declares a check, tests it.
pub(in crate::gateway::console) async fn save_credential(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<ChosenMethod>,
) -> Page {
    let mut page = credential_page(&visit, &id, &chosen.method).await?;
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
            Some(Err(told)) => Ok(visit.refused(told, &page.base).await),
            Some(Ok(told)) => Ok(visit.done(told, &page.base).await),
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

/// Tests a credential. Returns `None` if the type declares no check.
async fn tested(visit: &Visit, id: &str) -> Option<Result<String, String>> {
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
        Ok(tested) if tested.status == "success" => Some(Ok(visit.words().text("credential.works").to_owned())),
        Ok(tested) => {
            let message = tested.message.unwrap_or_default();
            Some(Err(visit.words().filled("credential.fails", &[&message])))
        }
        Err(_) => None,
    }
}

/// Tests the credential of a resource.
pub(in crate::gateway::console) async fn test(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let back = visit.to(&format!("resources/{}", segment(&id)));
    match tested(&visit, &id).await {
        Some(Ok(told)) => Ok(visit.done(told, &back).await),
        Some(Err(told)) => Ok(visit.refused(told, &back).await),
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
    match visit.client.send::<Started>(Method::POST, &path, &json!({}), Conditions::default()).await {
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

/// Asks the server of a resource for its tools.
pub(in crate::gateway::console) async fn discover(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Found {
        discovery: Discovery,
    }
    let base = visit.to(&format!("resources/{}", segment(&id)));
    let path = format!("/api/resources/{}/tools/discover", segment(&id));
    match visit.client.send::<Found>(Method::POST, &path, &json!({}), Conditions::default()).await {
        Ok(found) if found.discovery.status == "ok" => {
            Ok(visit.done(visit.words().text("resources.discovered").to_owned(), &base).await)
        }
        Ok(found) => Ok(visit.refused(found.discovery.error.unwrap_or_default().to_string(), &base).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 429) => {
            Ok(visit.refused(refusal.detail, &base).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Approves or rejects a tool that a server has declared, with the digest of the definition that the page showed.
pub(in crate::gateway::console) async fn pin(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let fields = visit.fields();
    let base = visit.to(&format!("resources/{}", segment(&id)));
    let verb = if fields.has("approve") { "approve" } else { "reject" };
    let mut decision = json!({"original_name": fields.value("original_name"), "digest": fields.value("digest")});
    if verb == "approve" && !fields.value("effect").is_empty() {
        decision["effect"] = fields.value("effect").into();
    }
    let path = format!("/api/resources/{}/tools/{verb}", segment(&id));
    match visit.client.act(Method::POST, &path, Some(&json!({"tools": [decision]})), Conditions::default()).await {
        Ok(()) => {
            let key = if verb == "approve" { "pins.approved_now" } else { "pins.rejected_now" };
            Ok(visit.done(visit.words().filled(key, &[&Text::from(fields.value("original_name"))]), &base).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let told = refusal.told().into_iter().map(|(_, message)| message.to_string());
            Ok(visit.refused(told.collect::<Vec<_>>().join("; "), &base).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Asks before a resource is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let Read { resource, version, base, .. } = read(&visit, &id).await?;
    let frame = visit.frame("resources", visit.words().text("resources.delete")).await;
    let text = visit.words().text("resources.delete_text").to_owned();
    Ok(page::render(&ConfirmPage {
        frame,
        name: resource.name,
        text,
        action: format!("{base}/delete"),
        version,
        back: base,
    }))
}

/// Deletes a resource whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let Read { resource, base, .. } = read(&visit, &id).await?;
    let path = format!("/api/resources/{}", segment(&id));
    delete_named(&visit, &path, &resource.name, &format!("{base}/delete"), "resources").await
}
