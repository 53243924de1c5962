//! The workspaces, which separate tenants.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

#[derive(Deserialize)]
struct Workspace {
    id: String,
    name: Text,
    #[serde(default)]
    sandbox: Value,
    created_at: UtcMillis,
}

#[derive(Deserialize)]
struct Workspaces {
    items: Vec<Workspace>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "console/workspaces.html")]
struct ListPage {
    frame: Frame,
    workspaces: Vec<Workspace>,
    next: Option<String>,
}

/// Shows the workspaces.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let path = with_query("/api/workspaces", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list) = tokio::join!(
        visit.frame("workspaces", visit.words().text("nav.workspaces")),
        visit.client.get::<Workspaces>(&path),
    );
    let Workspaces { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("workspaces"), &[("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, workspaces: items, next }))
}

#[derive(Template)]
#[template(path = "console/workspace.html")]
struct FormPage {
    frame: Frame,
    /// The id of the workspace. A new workspace has none.
    id: Option<String>,
    name: Text,
    /// The settings of the sandboxes as JSON.
    sandbox: Text,
    created_at: Option<UtcMillis>,
    errors: Vec<(Text, Text)>,
    action: String,
}

async fn blank(visit: &Visit) -> Result<FormPage, Failure> {
    if !visit.may("workspaces_create") {
        return Err(Failure::forbidden());
    }
    Ok(FormPage {
        frame: visit.frame("workspaces", visit.words().text("workspaces.new")).await,
        id: None,
        name: Text::default(),
        sandbox: Text::default(),
        created_at: None,
        errors: Vec::new(),
        action: visit.to("workspaces/new"),
    })
}

async fn existing(visit: &Visit, id: &str) -> Result<FormPage, Failure> {
    let workspace = visit.client.get::<Workspace>(&format!("/api/workspaces/{}", segment(id))).await?;
    Ok(FormPage {
        frame: visit.frame("workspaces", &workspace.name.to_string()).await,
        action: visit.to(&format!("workspaces/{}", segment(&workspace.id))),
        id: Some(workspace.id),
        name: workspace.name,
        sandbox: if workspace.sandbox.is_null() { Text::default() } else { pretty(&workspace.sandbox) },
        created_at: Some(workspace.created_at),
        errors: Vec::new(),
    })
}

impl FormPage {
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

/// Shows the form of a new workspace.
pub(in crate::gateway::console) async fn new(visit: Visit) -> Page {
    Ok(page::render(&blank(&visit).await?))
}

/// Creates a workspace.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    let mut page = blank(&visit).await?;
    page.name = visit.fields().value("name").into();
    let body = json!({"name": page.name.raw()});
    match visit.client.act(Method::POST, "/api/workspaces", Some(&body), visit.conditions()).await {
        Ok(()) => {
            let text = visit.words().filled("workspaces.created", &[&page.name]);
            Ok(visit.done(text, &visit.to("workspaces")).await)
        }
        Err(failure) => page.refused(failure),
    }
}

/// Shows a workspace, with the form that changes it.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?))
}

/// Saves a workspace.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let mut page = existing(&visit, &id).await?;
    page.name = visit.fields().value("name").into();
    page.sandbox = visit.fields().value("sandbox").into();
    let sandbox = match page.sandbox.raw().trim() {
        "" => Ok(Value::Null),
        text => serde_json::from_str::<Value>(text),
    };
    let Ok(sandbox) = sandbox else {
        page.errors.push(("sandbox".into(), visit.words().text("form.not_json").into()));
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    };
    let body = json!({"name": page.name.raw(), "sandbox": sandbox});
    let path = format!("/api/workspaces/{}", segment(&id));
    match visit.client.act(Method::PATCH, &path, Some(&body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.action).await),
        Err(failure) => page.refused(failure),
    }
}

/// Asks before a workspace is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let FormPage { frame, name, action, .. } = existing(&visit, &id).await?;
    let text = visit.words().text("workspaces.delete_text").to_owned();
    let (back, action) = (action.clone(), format!("{action}/delete"));
    Ok(page::render(&ConfirmPage { frame, name, text, action, version: String::new(), back }))
}

/// Deletes a workspace whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let FormPage { name, action, id, .. } = existing(&visit, &id).await?;
    let (id, back) = (id.unwrap_or_default(), format!("{action}/delete"));
    if visit.fields().value("name") != name.raw() {
        return Ok(visit.refused(visit.words().filled("confirm.name_differs", &[&name]), &back).await);
    }
    // The pages of a deleted workspace do not exist.
    let next = if id == visit.me.workspace_id { "/console".to_owned() } else { visit.to("workspaces") };
    match visit.client.act(Method::DELETE, &format!("/api/workspaces/{}", segment(&id)), None, visit.conditions()).await
    {
        Ok(()) => Ok(visit.done(visit.words().filled("frame.deleted", &[&name]), &next).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(visit.refused(refusal.detail, &back).await),
        Err(failure) => Err(failure),
    }
}
