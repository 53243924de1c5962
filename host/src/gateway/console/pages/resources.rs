//! The resources: what bots reach through plugins, with their configuration and their credentials.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use ipnet::IpNet;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Failure, Versioned, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::{ConfirmPage, delete_named};
use crate::gateway::console::pages::pins::{self, Pin, Pins};
use crate::gateway::console::reach::{self, Closed};
use crate::gateway::console::schema::{self, Declared, Input};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
pub(in crate::gateway::console) struct Resource {
    pub id: String,
    pub name: Text,
    pub resource_type: Text,
    pub config: Map<String, Value>,
    #[serde(default)]
    pub labels: Vec<Text>,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub credential: Option<Credential>,
    #[serde(default)]
    pub discovery: Option<Discovery>,
}

#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Network {
    #[serde(default)]
    allow_addresses: Vec<Text>,
    #[serde(default)]
    allow_http: bool,
}

impl Network {
    fn lines(&self) -> String {
        self.allow_addresses.iter().map(Text::raw).collect::<Vec<_>>().join("\n")
    }

    fn opened(&self) -> Vec<IpNet> {
        self.allow_addresses.iter().filter_map(|net| net.raw().parse().ok()).collect()
    }
}

#[derive(Deserialize)]
pub(in crate::gateway::console) struct Credential {
    pub status: String,
    pub method: Text,
    #[serde(default)]
    pub audience: Vec<Text>,
    #[serde(default)]
    pub requested_audience: Option<Vec<Text>>,
    #[serde(default)]
    pub missing_scopes: Option<Vec<Text>>,
    #[serde(default)]
    pub expires_at: Option<UtcMillis>,
    pub updated_at: UtcMillis,
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

/// The calls of the last hour and the last failure.
#[derive(Deserialize)]
struct Health {
    last_hour: RecentCalls,
    #[serde(default)]
    last_failure: Option<LastFailure>,
}

#[derive(Deserialize)]
struct RecentCalls {
    calls: u64,
    succeeded: u64,
    p50_ms: Option<i64>,
}

impl RecentCalls {
    fn percent(&self) -> u64 {
        self.succeeded * 100 / self.calls.max(1)
    }
}

#[derive(Deserialize)]
struct LastFailure {
    request_id: String,
    at: UtcMillis,
    #[serde(default)]
    code: Option<Text>,
    #[serde(default)]
    message: Option<Text>,
}

impl LastFailure {
    /// Returns the message of the call, or its code.
    fn reason(&self) -> Text {
        self.message.clone().or_else(|| self.code.clone()).unwrap_or_default()
    }
}

#[derive(Deserialize)]
pub(in crate::gateway::console) struct Discovery {
    pub status: String,
    #[serde(default)]
    pub error: Option<Text>,
    #[serde(default)]
    pub last_discovery_at: Option<UtcMillis>,
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
pub(in crate::gateway::console) struct Type {
    id: Text,
    name: Text,
    description: Text,
    tool_discovery: String,
    tools: Vec<TypeTool>,
    pub auth_methods: Vec<AuthMethod>,
    config_schema: Vec<Declared>,
    #[serde(default)]
    credential_check: Option<Value>,
}

#[derive(Deserialize)]
pub(in crate::gateway::console) struct TypeTool {
    name: Text,
    description: Text,
}

impl Type {
    /// Returns whether a credential of the type can be tested.
    pub(in crate::gateway::console) fn has_check(&self) -> bool {
        self.credential_check.is_some()
    }
}

/// The method of an authorization with a code.
const DEVICE_METHOD: &str = "oauth2_device_code";

/// A method of authentication.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct AuthMethod {
    pub method: Text,
    pub label: Text,
    pub description: Text,
    pub credential_schema: Vec<Declared>,
}

impl AuthMethod {
    /// Returns the label, or the name of a method without one.
    pub(in crate::gateway::console) fn title(&self) -> &Text {
        if self.label.is_empty() { &self.method } else { &self.label }
    }

    /// Returns whether a person authorizes the resource in this browser.
    pub(in crate::gateway::console) fn is_oauth(&self) -> bool {
        self.method.raw() == "oauth2_auth_code"
    }

    /// Returns whether a person authorizes the resource with a code, in this or another browser.
    pub(in crate::gateway::console) fn is_device(&self) -> bool {
        self.method.raw() == DEVICE_METHOD
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
    /// Whether the key may set more than the name.
    may_configure: bool,
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
        // An operator may create a resource without a configuration. The API decides about the rest.
        may_configure: true,
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
        if !self.may_configure {
            return Some(json!({"name": self.name.raw()}));
        }
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

pub(in crate::gateway::console) struct Read {
    pub resource: Resource,
    pub version: String,
    pub kind: Option<Type>,
    pub base: String,
}

pub(in crate::gateway::console) async fn read(visit: &Visit, id: &str) -> Result<Read, Failure> {
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
    /// `None` if the API did not answer.
    health: Option<Health>,
    pins: Vec<Pin>,
    may_change: bool,
    may_credential: bool,
    may_pins: bool,
    may_discover: bool,
    may_bind: bool,
}

impl ShowPage {
    /// Returns what the addresses in the configuration lack.
    fn closed(&self) -> Vec<Closed> {
        let network = &self.resource.network;
        reach::closed(&self.resource.config, network.allow_http, &network.opened())
    }

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

    /// Returns whether the type needs a credential and none is saved.
    fn lacks_credential(&self) -> bool {
        let needs = self.kind.as_ref().is_some_and(|kind| !kind.auth_methods.is_empty());
        needs && self.resource.credential.is_none()
    }

    fn has_check(&self) -> bool {
        self.kind.as_ref().is_some_and(Type::has_check)
    }

    /// Returns the path of the page from which an authorization with a code is started, if the type has this method.
    fn device_page(&self) -> Option<String> {
        let kind = self.kind.as_ref()?;
        let has_method = kind.auth_methods.iter().any(AuthMethod::is_device);
        has_method.then(|| with_query(&format!("{}/credential", self.base), &[("method", DEVICE_METHOD)]))
    }
}

/// Shows a resource.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let path = format!("/api/resources/{}", segment(&id));
    let (pins, health) = (format!("{path}/tools"), format!("{path}/health"));
    let (found, pins, health) =
        tokio::join!(read(&visit, &id), visit.client.get::<Pins>(&pins), visit.client.get::<Health>(&health),);
    let Read { resource, kind, base, .. } = found?;
    let mut pins = pins.map(|pins| pins.items).unwrap_or_default();
    pins::fit(&mut pins);
    let frame = visit.frame("resources", &resource.name.to_string()).await;
    let page = ShowPage {
        frame,
        resource,
        kind,
        base,
        health: health.ok(),
        pins,
        may_change: visit.may("resources_update"),
        may_credential: visit.may("credentials_save"),
        may_pins: visit.may("resources_approve"),
        may_discover: visit.may("resources_discover"),
        may_bind: visit.may("bindings_create"),
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
        may_configure: visit.may("bindings_update"),
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
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut page.version, visit.shown_version());
    let Some(body) = page.read(&visit) else {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    };
    let path = format!("/api/resources/{}", segment(&id));
    match visit.client.act(Method::PATCH, &path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(failure) => {
            if failure.status() == StatusCode::PRECONDITION_FAILED {
                page.version = current;
            }
            page.refused(failure, &visit)
        }
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
