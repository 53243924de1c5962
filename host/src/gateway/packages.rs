//! `POST` and `DELETE` of `/api/plugins`, and the icon of a plugin. Installing and uninstalling require a root key.

use axum::Json;
use axum::extract::multipart::{Field, Multipart};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use monstrum_api::packages::{Form, Named};
use monstrum_api::plugins::Plugin;
use monstrum_core::operations::packages::Wanted;
use monstrum_core::operations::{Operator, Root, packages, plugins};
use monstrum_core::plugins::packages::Upload;
use monstrum_package::{PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX};

use crate::gateway::http::answer::Done;
use crate::gateway::http::extract::{Id, read_body, whole_body};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{Host, HttpState};

/// The maximum size of the form: a package, its signature, and the overhead of the multipart format.
const FORM_BYTES_MAX: usize = PACKAGE_BYTES_MAX + (64 << 10);

/// The Content-Security-Policy of an icon. An icon must not run scripts or load anything.
const ICON_POLICY: &str = "default-src 'none'; sandbox";

/// Installs a plugin from a signed package, or from the registry by name
#[utoipa::path(post, path = "/api/plugins", tag = "plugins",
    request_body(content((Named = "application/json"), (Form = "multipart/form-data"))),
    responses((status = 201, body = Plugin, description = "The plugin was installed"),
        (status = 200, body = Plugin, description = "The plugin was replaced by another version")))]
pub(super) async fn install(
    State(state): State<HttpState>,
    caller: Root,
    request: Request,
) -> Result<(StatusCode, Json<Plugin>), Problem> {
    let wanted = wanted(request, &state).await?;
    let (plugin, replaced) = packages::install(&state.app, &caller, wanted).await?;
    Ok((if replaced { StatusCode::OK } else { StatusCode::CREATED }, Json(plugin)))
}

/// Uninstalls a plugin; fails if a binding uses a resource of the plugin
#[utoipa::path(delete, path = "/api/plugins/{name}", tag = "plugins", params(("name" = String, Path)),
    responses((status = 204)))]
pub(super) async fn uninstall(app: Host, caller: Root, Id(name): Id<String>) -> Done {
    packages::uninstall(&app, &caller, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the icon of a plugin
#[utoipa::path(get, path = "/api/plugins/{name}/icon", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, content((Vec<u8> = "image/png"), (Vec<u8> = "image/webp")))))]
pub(super) async fn icon(app: Host, caller: Operator, Id(name): Id<String>) -> Result<Response, Problem> {
    let icon = plugins::icon(&app, &caller, &name)?;
    let mut response = icon.bytes.clone().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(icon.media_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(ICON_POLICY));
    Ok(response)
}

async fn wanted(mut request: Request, state: &HttpState) -> Result<Wanted, Problem> {
    if !is_form(request.headers()) {
        return read_body(whole_body(request.into_body()).await?).await.map(Wanted::Named);
    }
    DefaultBodyLimit::max(FORM_BYTES_MAX).apply(&mut request);
    let form = Multipart::from_request(request, state).await;
    let mut form = form.map_err(|error| Problem::invalid_at("", error.body_text()))?;
    let (mut package, mut file_name, mut signature, mut allow_downgrade) = (None, None, None, None);
    while let Some(field) = form.next_field().await.map_err(|error| unreadable(&error))? {
        let name = field.name().unwrap_or_default().to_owned();
        let is_twice = match name.as_str() {
            "package" => {
                file_name = field.file_name().map(str::to_owned);
                package.replace(bytes(field, "/package", PACKAGE_BYTES_MAX).await?).is_some()
            }
            "signature" => signature.replace(bytes(field, "/signature", SIGNATURE_BYTES_MAX).await?).is_some(),
            "allow_downgrade" => {
                let value = match bytes(field, "/allow_downgrade", "false".len()).await?.as_slice() {
                    b"true" => true,
                    b"false" => false,
                    _ => return Err(Problem::invalid_at("/allow_downgrade", "expected `true` or `false`")),
                };
                allow_downgrade.replace(value).is_some()
            }
            other => {
                let known = "expected `package`, `signature` or `allow_downgrade`";
                return Err(Problem::invalid_at(format!("/{other}"), format!("unknown field, {known}")));
            }
        };
        if is_twice {
            return Err(Problem::invalid_at(format!("/{name}"), "duplicate field"));
        }
    }
    let package = package.ok_or_else(|| Problem::invalid_at("/package", "required field is missing"))?;
    Ok(Wanted::Upload(Upload { package, file_name, signature }, allow_downgrade.unwrap_or(false)))
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("multipart/form-data")
}

async fn bytes(mut field: Field<'_>, path: &str, bytes_max: usize) -> Result<Vec<u8>, Problem> {
    let mut content = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(|error| unreadable(&error))? {
        if content.len() + chunk.len() > bytes_max {
            return match path {
                "/package" => Err(Problem::too_large(bytes_max)),
                _ => Err(Problem::invalid_at(path, format!("exceeds the limit of {bytes_max} bytes"))),
            };
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

fn unreadable(error: &axum::extract::multipart::MultipartError) -> Problem {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::too_large(FORM_BYTES_MAX);
    }
    Problem::invalid_at("", format!("the form could not be read: {}", error.body_text()))
}
