//! The roles: permissions with a name, which many bindings share.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Failure, Versioned, segment, with_query};
use crate::gateway::console::fields::of_one_field;
use crate::gateway::console::form::Fields;
use crate::gateway::console::gates::{self, GateForm};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::{ConfirmPage, delete_named};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Role {
    id: String,
    name: Text,
    #[serde(default)]
    allowed_operations: Option<Vec<Text>>,
    #[serde(default)]
    allowed_tools: Option<Vec<Text>>,
    #[serde(default)]
    scope_constraints: Value,
    #[serde(default)]
    gates: Value,
}

impl Role {
    fn operations(&self) -> Option<String> {
        self.allowed_operations.as_deref().map(listed)
    }

    fn tools(&self) -> Option<String> {
        self.allowed_tools.as_deref().map(listed)
    }
}

fn listed(entries: &[Text]) -> String {
    entries.iter().map(Text::to_string).collect::<Vec<_>>().join(", ")
}

#[derive(Deserialize)]
struct Roles {
    items: Vec<Role>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "console/roles.html")]
struct ListPage {
    frame: Frame,
    roles: Vec<Role>,
    next: Option<String>,
    may_create: bool,
}

/// Shows the roles.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/roles", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) =
        tokio::join!(visit.frame("roles", visit.words().text("nav.roles")), visit.client.get::<Roles>(&path));
    let Roles { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("roles"), &[("cursor", &cursor)]));
    let may_create = visit.may("roles_create");
    Ok(page::render(&ListPage { frame, roles: items, next, may_create }))
}

#[derive(Template)]
#[template(path = "console/role.html")]
struct FormPage {
    frame: Frame,
    name: Text,
    operations: Option<Text>,
    tools: Option<Text>,
    scopes: Text,
    gates: GateForm,
    errors: Vec<(Text, Text)>,
    action: String,
    version: String,
    is_new: bool,
    may_change: bool,
    back: String,
}

impl FormPage {
    fn lines(list: &Option<Text>) -> &str {
        list.as_ref().map(Text::raw).unwrap_or_default()
    }
}

async fn blank(visit: &Visit) -> FormPage {
    FormPage {
        frame: visit.frame("roles", visit.words().text("roles.new")).await,
        name: Text::default(),
        operations: Some(Text::default()),
        tools: None,
        scopes: Text::default(),
        gates: GateForm::of(&Value::Null),
        errors: Vec::new(),
        action: visit.to("roles/new"),
        version: String::new(),
        is_new: true,
        may_change: true,
        back: visit.to("roles"),
    }
}

async fn existing(visit: &Visit, id: &str) -> Result<FormPage, Failure> {
    let path = format!("/api/roles/{}", segment(id));
    let Versioned { value: role, version } = visit.client.get_versioned::<Role>(&path).await?;
    let lines = |list: Option<Vec<Text>>| {
        list.map(|list| Text::from(list.iter().map(Text::raw).collect::<Vec<_>>().join("\n")))
    };
    let json = |value: &Value| match value {
        Value::Object(map) if map.is_empty() => Text::default(),
        Value::Array(list) if list.is_empty() => Text::default(),
        Value::Null => Text::default(),
        value => pretty(value),
    };
    Ok(FormPage {
        frame: visit.frame("roles", &role.name.to_string()).await,
        scopes: json(&role.scope_constraints),
        gates: GateForm::of(&role.gates),
        name: role.name,
        operations: lines(role.allowed_operations),
        tools: lines(role.allowed_tools),
        errors: Vec::new(),
        action: visit.to(&format!("roles/{}", segment(&role.id))),
        version,
        is_new: false,
        may_change: visit.may("roles_update"),
        back: visit.to("roles"),
    })
}

/// Shows the form of a new role.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    Ok(page::render(&blank(&visit).await))
}

/// Shows a role.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?))
}

/// Creates a role.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    let page = blank(&visit).await;
    submit(&visit, page, Method::POST, "/api/roles").await
}

/// Saves a role.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let page = existing(&visit, &id).await?;
    submit(&visit, page, Method::PATCH, &format!("/api/roles/{}", segment(&id))).await
}

async fn submit(visit: &Visit, mut page: FormPage, method: Method, path: &str) -> Page {
    let fields = visit.fields();
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut page.version, visit.shown_version());
    let mut list = |name: &'static str| {
        let (is_restricted, entries) = (fields.value(&format!("{name}.mode")) == "only", fields.lines(name));
        if !is_restricted && !entries.is_empty() {
            page.errors.push((name.into(), visit.words().text("form.contradiction").into()));
        }
        (is_restricted || !entries.is_empty()).then_some(entries)
    };
    let (operations, tools) = (list("operations"), list("tools"));
    page.name = fields.value("name").into();
    page.operations = operations.as_ref().map(|list| list.join("\n").into());
    page.tools = tools.as_ref().map(|list| list.join("\n").into());
    page.scopes = fields.value("scopes").into();
    let scopes = read_json(fields, "scopes", json!({})).unwrap_or_else(|| {
        page.errors.push(("scopes".into(), visit.words().text("form.not_json").into()));
        Value::Null
    });
    let mut unread = Vec::new();
    let gates = gates::read(fields, &mut unread);
    page.errors.extend(unread.into_iter().map(|(place, key)| (place, visit.words().text(key.raw()).into())));
    if !page.errors.is_empty() {
        page.gates = GateForm::typed(fields).opened(&page.errors);
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let mut body = json!({
        "name": page.name.raw(), "allowed_operations": operations, "allowed_tools": tools, "scope_constraints": scopes,
    });
    if let Some(gates) = gates {
        body["gates"] = gates.into();
    }
    match visit.client.act(method, path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 412 | 422) => {
            page.errors = of_one_field(refusal.told(), "/scope_constraints");
            if refusal.status == 412 {
                page.version = current;
                page.errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            }
            if let Some(gates) = body.get("gates") {
                page.gates = GateForm::of(gates).opened(&page.errors);
            }
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &page))
        }
        Err(failure) => Err(failure),
    }
}

fn read_json(fields: &Fields, name: &str, empty: Value) -> Option<Value> {
    match fields.value(name).trim() {
        "" => Some(empty),
        text => serde_json::from_str(text).ok(),
    }
}

/// Asks before a role is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let role = existing(&visit, &id).await?;
    let text = visit.words().text("roles.delete_text").to_owned();
    let action = format!("{}/delete", role.action);
    let back = role.action;
    Ok(page::render(&ConfirmPage { frame: role.frame, name: role.name, text, action, version: role.version, back }))
}

/// Deletes a role whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let role = existing(&visit, &id).await?;
    let path = format!("/api/roles/{}", segment(&id));
    delete_named(&visit, &path, &role.name, &format!("{}/delete", role.action), "roles").await
}
