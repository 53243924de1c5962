//! Deleting an object: a page of its own asks, and wants the name typed.

use askama::Template;
use axum::response::Response;
use http::Method;

use crate::gateway::console::client::Failure;
use crate::gateway::console::page::Frame;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

#[derive(Template)]
#[template(path = "console/confirm.html")]
pub(in crate::gateway::console) struct ConfirmPage {
    pub frame: Frame,
    pub name: Text,
    pub text: String,
    pub action: String,
    pub version: String,
    pub back: String,
}

/// Deletes an object whose name was typed, and returns to the list `section`.
pub(in crate::gateway::console) async fn delete_named(
    visit: &Visit,
    path: &str,
    name: &Text,
    back: &str,
    section: &str,
) -> Result<Response, Failure> {
    if visit.fields().value("name") != name.raw() {
        return Ok(visit.refused(visit.words().filled("confirm.name_differs", &[name]), back).await);
    }
    match visit.client.act(Method::DELETE, path, None, visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().filled("frame.deleted", &[name]), &visit.to(section)).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(visit.refused(refusal.detail, back).await),
        Err(failure) => Err(failure),
    }
}
