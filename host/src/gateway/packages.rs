//! `POST` and `DELETE` of `/api/plugins`: packages in, plugins out, and the picture of one. Changes are a root key's.

use std::sync::Arc;

use axum::Json;
use axum::extract::multipart::{Field, Multipart};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use monstrum_package::{PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX, digest};
use monstrum_types::PluginName;
use semver::Version;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::gateway::changes::Change;
use crate::gateway::extract::{Id, Operator, Root, read_body, whole_body};
use crate::gateway::plugins::Plugin;
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;
use monstrum_core::plugins::folder::staging::StageError;
use monstrum_core::plugins::packages::{PackageError, Upload};
use monstrum_core::plugins::{InstallError, Installed, LoadError, UninstallError, with_causes};

/// A package, its signature, and what stands around them in a form.
const FORM_BYTES_MAX: usize = PACKAGE_BYTES_MAX + (64 << 10);
/// A picture does nothing but be shown.
const ICON_POLICY: &str = "default-src 'none'; sandbox";

/// A plugin of the registry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    name: PluginName,
    /// Absent, the newest version that is no pre-release.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    version: Option<Version>,
    /// Whether an older version than the one on record may be installed.
    #[serde(default)]
    allow_downgrade: bool,
}

/// A package in a form.
#[derive(ToSchema)]
#[schema(as = PackageForm)]
#[expect(dead_code, reason = "it describes a form that is read part by part")]
pub struct Form {
    /// `NAME-VERSION.mst`
    #[schema(value_type = String, format = Binary)]
    package: Vec<u8>,
    /// `NAME-VERSION.mst.sig`
    #[schema(value_type = String, format = Binary)]
    signature: Vec<u8>,
    /// `true` or `false`
    allow_downgrade: Option<bool>,
}

/// What was asked for, in either of the two ways.
enum Wanted {
    Named(Named),
    Upload(Upload, bool),
}

impl Wanted {
    /// The plugin, as far as its name is known before the package is opened: by the file's.
    fn name(&self) -> &str {
        match self {
            Wanted::Named(named) => named.name.as_str(),
            Wanted::Upload(upload, _) => upload.file_name.as_deref().unwrap_or("package"),
        }
    }

    /// What the audit says of it.
    fn shown(&self) -> Value {
        match self {
            Wanted::Named(Named { version, allow_downgrade, .. }) => {
                json!({ "version": version.as_ref().map(ToString::to_string), "allow_downgrade": allow_downgrade })
            }
            Wanted::Upload(upload, allow_downgrade) => {
                json!({ "package_sha256": digest(&upload.package), "allow_downgrade": allow_downgrade })
            }
        }
    }
}

/// Installs a plugin: a signed package, or one of the registry by its name
#[utoipa::path(post, path = "/api/plugins", tag = "plugins",
    request_body(content((Named = "application/json"), (Form = "multipart/form-data"))),
    responses((status = 201, body = Plugin, description = "A plugin that was not there"),
        (status = 200, body = Plugin, description = "Another version of a plugin"),
        (status = "4XX", body = ProblemBody)))]
pub async fn install(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    request: Request,
) -> Result<(StatusCode, Json<Plugin>), Problem> {
    let wanted = wanted(request, &app).await?;
    let before = app.plugins.entry(wanted.name()).map(Plugin::from);
    let change = Change::new("plugin.install", wanted.name()).from(&before).to(&wanted.shown());
    // A caller who leaves must not leave a plugin half in force: on disk, but not in what serves.
    let installing = tokio::spawn(async move {
        let made = install_wanted(&app, wanted);
        change.made(&app, &caller, made).await
    });
    let Installed { entry, replaced } = installing.await.map_err(|error| Problem::internal(&error))??;
    let status = if replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(entry.into())))
}

async fn install_wanted(app: &App, wanted: Wanted) -> Result<Installed, Problem> {
    let installed = match wanted {
        Wanted::Upload(upload, allow_downgrade) => app.packages.install(upload, allow_downgrade).await,
        Wanted::Named(Named { name, version, allow_downgrade }) => {
            app.packages.install_named(&name, version.as_ref(), allow_downgrade).await
        }
    };
    let installed = installed.map_err(|error| {
        tracing::warn!(error = ?with_causes(&error), "a package was not installed");
        problem(error)
    })?;
    app.changed().await?;
    Ok(installed)
}

/// Removes a plugin that nothing is bound to
#[utoipa::path(delete, path = "/api/plugins/{name}", tag = "plugins", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn uninstall(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(name): Id<String>,
) -> Result<StatusCode, Problem> {
    let before = app.plugins.entry(&name).ok_or_else(|| Problem::not_found("plugin"))?;
    let change = Change::new("plugin.uninstall", &name).from(&Plugin::from(before));
    // As for an install.
    let removing = tokio::spawn(async move {
        let made = async {
            app.plugins.uninstall(&name).await.map_err(|error| match error {
                UninstallError::Absent => Problem::not_found("plugin"),
                UninstallError::Bound { .. } => Problem::conflict(error.to_string()),
                UninstallError::Store(error) => error.into(),
                UninstallError::Stage(_) | UninstallError::Interrupted => Problem::internal(&with_causes(&error)),
            })?;
            Ok(app.changed().await?)
        };
        change.made(&app, &caller, made).await
    });
    removing.await.map_err(|error| Problem::internal(&error))??;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the picture of a plugin that has one
#[utoipa::path(get, path = "/api/plugins/{name}/icon", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, content((Vec<u8> = "image/png"), (Vec<u8> = "image/webp"))),
        (status = "4XX", body = ProblemBody)))]
pub async fn icon(State(app): State<Arc<App>>, _: Operator, Id(name): Id<String>) -> Result<Response, Problem> {
    let entry = app.plugins.entry(&name).ok_or_else(|| Problem::not_found("plugin"))?;
    let serving = entry.serving.as_ref().and_then(|plugin| plugin.icon.as_ref());
    let icon = serving.ok_or_else(|| Problem::not_found("icon"))?;
    let mut response = icon.bytes.clone().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(icon.media_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(ICON_POLICY));
    Ok(response)
}

async fn wanted(mut request: Request, app: &Arc<App>) -> Result<Wanted, Problem> {
    if !is_form(request.headers()) {
        return read_body(whole_body(request.into_body()).await?).await.map(Wanted::Named);
    }
    DefaultBodyLimit::max(FORM_BYTES_MAX).apply(&mut request);
    let form = Multipart::from_request(request, app).await;
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
            return Err(Problem::invalid_at(format!("/{name}"), "the field is there twice"));
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
                _ => Err(Problem::invalid_at(path, format!("at most {bytes_max} bytes are allowed"))),
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

/// What a caller is told of a package that was not installed.
pub fn problem(error: PackageError) -> Problem {
    match error {
        PackageError::Unsigned
        | PackageError::Signature(_)
        | PackageError::UntrustedKey { .. }
        | PackageError::UntrustedName { .. }
        | PackageError::Install(InstallError::UntrustedType { .. }) => {
            Problem::invalid_at("/signature", error.to_string())
        }
        PackageError::Archive(_) | PackageError::NotText | PackageError::Manifest(_) | PackageError::Renamed { .. } => {
            Problem::invalid_at("/package", error.to_string())
        }
        PackageError::NoRegistry | PackageError::Resolve(_) => Problem::invalid_at("/name", error.to_string()),
        PackageError::Registry(_) => Problem::bad_gateway(with_causes(&error)),
        PackageError::Store(error) | PackageError::Install(InstallError::Load(LoadError::Store(error))) => error.into(),
        PackageError::Install(InstallError::Older { .. }) => Problem::conflict(error.to_string()),
        PackageError::Install(InstallError::Load(_)) => Problem::invalid_at("/package", error.to_string()),
        // What an operator can mend, as far as it is safe to tell.
        PackageError::Install(InstallError::Stage(
            StageError::InTheWay { .. } | StageError::NoExchange { .. } | StageError::Changing { .. },
        )) => Problem::conflict(error.to_string()),
        PackageError::Install(InstallError::Stage(_) | InstallError::Interrupted) | PackageError::Interrupted => {
            Problem::internal(&with_causes(&error))
        }
    }
}
