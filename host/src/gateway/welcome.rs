//! `GET /`: names the server and its documentation, as a page for browsers and as JSON for programs. The route requires
//! no key, so it reveals nothing else.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::gateway::http::state::{ConsoleOptions, Options};

/// The Content-Security-Policy of the page, which runs no scripts, loads nothing and cannot be framed.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The name of the server and the paths of its documentation.
#[derive(Serialize, ToSchema)]
pub(super) struct Welcome {
    pub name: &'static str,
    pub about: &'static str,
    /// The path of the API documentation page.
    pub docs: &'static str,
    /// The path of the OpenAPI description.
    pub openapi: &'static str,
    /// Whether the documentation page and the OpenAPI description require an API key.
    pub docs_need_key: bool,
}

/// Shows the name of the server and the paths of its documentation
#[utoipa::path(get, path = "/", tag = "description", security(()),
    responses((status = 200, body = Welcome, description = "A page for browsers, JSON for other clients"),
        (status = 303, description = "Redirects browsers to the console, unless it is switched off")))]
pub(super) async fn welcome(
    State(options): State<Options>,
    State(console): State<Arc<ConsoleOptions>>,
    headers: HeaderMap,
) -> Response {
    if console.enabled && is_browser(&headers) {
        let headers = [(header::LOCATION, "/console"), (header::VARY, "accept")];
        return (http::StatusCode::SEE_OTHER, headers).into_response();
    }
    let welcome = Welcome {
        name: "monstrum",
        about: "Governed tool calls for bots. Every route except this one and the health checks requires an API key",
        docs: "/docs",
        openapi: "/api/openapi.json",
        docs_need_key: !options.public_docs,
    };
    let mut response =
        if is_browser(&headers) { Html(page(&welcome)).into_response() } else { Json(welcome).into_response() };
    let policy = HeaderValue::from_static(POLICY);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// Returns whether the client is a browser. Browsers list HTML in the Accept header; programs accept JSON or anything.
fn is_browser(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .any(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html")))
}

fn page(welcome: &Welcome) -> String {
    let Welcome { docs, openapi, .. } = welcome;
    let read_on = if welcome.docs_need_key {
        format!(
            "<p>The API documentation is at {docs} and {openapi}. Both require an API key in a header, which browsers do \
             not send:</p>\n<pre>curl -H 'Authorization: Bearer mk_…' …{openapi}</pre>\n<p>To open the documentation \
             in a browser, start the server with <code>--public-docs</code>.</p>"
        )
    } else {
        format!("<p>The API documentation: <a href='{docs}'>{docs}</a>, <a href='{openapi}'>{openapi}</a></p>")
    };
    format!(
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>Monstrum</title>\n<h1>Monstrum</h1>\n\
         <p>{}.</p>\n{read_on}\n<p>On the server's machine: <code>monstrum --help</code>, <code>monstrum doctor</code>.</p>\n",
        welcome.about
    )
}
