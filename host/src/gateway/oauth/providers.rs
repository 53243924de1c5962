//! `/api/oauth/providers`: where the tokens of a type come from, as an admin confirms it. A manifest only proposes: what it
//! says is taken over when the provider is created, and never again. The client's secret goes in and never comes out.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_egress::SECRET_BYTES_MIN;
use monstrum_store::{OauthProviderRow, Page};
use monstrum_types::{OauthProviderId, ResourceTypeId, Secret, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::extract::{Admin, Faults, Id, Input, Operator, PageQuery, Params, given, named};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;
use monstrum_core::credentials::provider::{parse_url, proposed, seal_secret};

const URL_CHARS_MAX: usize = 2048;
const SCOPES_MAX: usize = 100;
const SCOPE_CHARS_MAX: usize = 256;
const CLIENT_ID_CHARS_MAX: usize = 512;
const SECRET_BYTES_MAX: usize = 4096;

/// A provider of tokens.
#[derive(Serialize, ToSchema)]
pub struct OauthProvider {
    pub id: OauthProviderId,
    pub resource_type: ResourceTypeId,
    pub client_id: String,
    /// Whether a client secret is stored; it is never shown.
    pub has_client_secret: bool,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    #[schema(value_type = Vec<String>)]
    pub scopes: serde_json::Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A page of providers.
#[derive(Serialize, ToSchema)]
pub struct OauthProviderList {
    pub items: Vec<OauthProvider>,
    pub next_cursor: Option<String>,
}

/// What is absent of the URLs and scopes is taken from what the type's manifest proposes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOauthProvider {
    resource_type: ResourceTypeId,
    client_id: String,
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    client_secret: Option<Secret>,
    authorization_url: Option<String>,
    token_url: Option<String>,
    device_authorization_url: Option<String>,
    scopes: Option<Vec<String>>,
}

/// Each field that is named is replaced whole; null clears it. Another token_url, device_authorization_url or client_id
/// asks for the client_secret again, and for the credentials' authorization.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthProviderChange {
    #[serde(default, deserialize_with = "given")]
    client_id: Option<String>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>, write_only)]
    client_secret: Option<Option<Secret>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    authorization_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    token_url: Option<String>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    device_authorization_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    scopes: Option<Vec<String>>,
}

impl From<OauthProviderRow> for OauthProvider {
    fn from(row: OauthProviderRow) -> Self {
        OauthProvider {
            id: row.id,
            resource_type: row.resource_type,
            client_id: row.client_id,
            has_client_secret: row.client_secret.is_some(),
            authorization_url: row.authorization_url,
            token_url: row.token_url,
            device_authorization_url: row.device_authorization_url,
            scopes: row.scopes,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OauthProviderQuery {
    /// Only the provider of this resource type.
    resource_type: Option<String>,
    /// 1 to 1000; more is taken as 1000.
    #[param(value_type = Option<u32>, minimum = 1, default = 50)]
    limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists OAuth providers
#[utoipa::path(get, path = "/api/oauth/providers", tag = "oauth", params(OauthProviderQuery),
    responses((status = 200, body = OauthProviderList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(query): Params<OauthProviderQuery>,
) -> Result<Json<OauthProviderList>, Problem> {
    let OauthProviderQuery { resource_type, limit, cursor } = query;
    let page: Page<OauthProviderId> = PageQuery::of(limit, cursor).page()?;
    if let Some(resource_type) = resource_type {
        // A workspace has one provider for a type at most; a text that is no type names none.
        let found = match resource_type.parse() {
            Ok(resource_type) => app.store.oauth_provider_of_type(caller.workspace, &resource_type).await?,
            Err(_) => None,
        };
        let items = found.into_iter().filter(|row| page.cursor.is_none_or(|after| row.id > after));
        return Ok(Json(OauthProviderList { items: items.map(OauthProvider::from).collect(), next_cursor: None }));
    }
    let page = app.store.oauth_providers(caller.workspace, &page).await?;
    let items = page.items.into_iter().map(OauthProvider::from).collect();
    Ok(Json(OauthProviderList { items, next_cursor: page.next_cursor.map(|id| id.to_string()) }))
}

/// Confirms where the tokens of a resource type come from
#[utoipa::path(post, path = "/api/oauth/providers", tag = "oauth", request_body = NewOauthProvider,
    responses((status = 201, body = OauthProvider), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Input(new): Input<NewOauthProvider>,
) -> Result<(StatusCode, Json<OauthProvider>), Problem> {
    let snapshot = app.policy.load();
    let Some(plugin) = snapshot.resource_type(&new.resource_type) else {
        return Err(Problem::invalid_at("/resource_type", "no plugin that serves has this resource type"));
    };
    let proposed = proposed(&plugin.manifest.resource_type);
    let Some(token_url) = new.token_url.or(proposed.token_url) else {
        return Err(Problem::invalid_at("/token_url", "required: the manifest of this type proposes none"));
    };
    let now = app.clock.now();
    let mut row = OauthProviderRow {
        id: OauthProviderId::new(),
        workspace_id: caller.workspace,
        resource_type: new.resource_type,
        client_id: new.client_id,
        client_secret: None,
        authorization_url: new.authorization_url.or(proposed.authorization_url),
        token_url,
        device_authorization_url: new.device_authorization_url.or(proposed.device_authorization_url),
        scopes: json!(new.scopes.unwrap_or(proposed.scopes)),
        created_at: now,
        updated_at: now,
    };
    check(&row, new.client_secret.as_ref())?;
    row.client_secret = sealed(&app, &row, new.client_secret.as_ref())?;
    let made = async {
        app.store.insert_oauth_provider(&row).await?;
        Ok(app.changed().await?)
    };
    let change = Change::new("oauth_provider.create", &row.id).to(&OauthProvider::from(row.clone()));
    change.made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// Changes an OAuth provider
#[utoipa::path(patch, path = "/api/oauth/providers/{id}", tag = "oauth", params(("id" = OauthProviderId, Path)),
    request_body = OauthProviderChange,
    responses((status = 200, body = OauthProvider), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<OauthProviderId>,
    Input(change): Input<OauthProviderChange>,
) -> Result<Json<OauthProvider>, Problem> {
    let absent = || Problem::not_found("OAuth provider");
    let before = app.store.oauth_provider(caller.workspace, id).await?.ok_or_else(absent)?;
    let mut row = OauthProviderRow { updated_at: changed_at(&app, before.updated_at), ..before.clone() };
    row.client_id = change.client_id.unwrap_or(row.client_id);
    row.authorization_url = change.authorization_url.unwrap_or(row.authorization_url);
    row.token_url = change.token_url.unwrap_or(row.token_url);
    row.device_authorization_url = change.device_authorization_url.unwrap_or(row.device_authorization_url);
    row.scopes = change.scopes.map_or(row.scopes, |scopes| json!(scopes));
    let secret = change.client_secret.as_ref().and_then(Option::as_ref);
    check(&row, secret)?;
    // The secret was given for one client at these endpoints. Elsewhere it goes only from the hand of who knows it.
    let goes_elsewhere = row.client_id != before.client_id
        || row.token_url != before.token_url
        || row.device_authorization_url != before.device_authorization_url;
    match &change.client_secret {
        Some(_) => row.client_secret = sealed(&app, &row, secret)?,
        None if goes_elsewhere && row.client_secret.is_some() => {
            let message =
                "required with another client_id, token_url or device_authorization_url; null for a client without";
            return Err(Problem::invalid_at("/client_secret", message));
        }
        None => {}
    }
    let made = async {
        if !app.store.update_oauth_provider(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("oauth_provider.update", &id).from(&OauthProvider::from(before.clone()));
    change.to(&OauthProvider::from(row.clone())).made(&app, &caller, made).await?;
    Ok(Json(row.into()))
}

/// Deletes an OAuth provider; what it has issued is refreshed no more
#[utoipa::path(delete, path = "/api/oauth/providers/{id}", tag = "oauth", params(("id" = OauthProviderId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<OauthProviderId>,
) -> Result<StatusCode, Problem> {
    let absent = || Problem::not_found("OAuth provider");
    let before = app.store.oauth_provider(caller.workspace, id).await?.ok_or_else(absent)?;
    let made = async {
        if !app.store.delete_oauth_provider(caller.workspace, id).await? {
            return Err(absent());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("oauth_provider.delete", &id).from(&OauthProvider::from(before));
    change.made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(row: &OauthProviderRow, secret: Option<&Secret>) -> Result<(), Problem> {
    let mut faults = Faults::default();
    rules::length(&mut faults, "/client_id", &row.client_id, CLIENT_ID_CHARS_MAX);
    if row.client_id.is_empty() || row.client_id.chars().any(char::is_control) {
        faults.add("/client_id", "must not be empty or hold control characters");
    }
    let urls = [
        ("/authorization_url", row.authorization_url.as_ref()),
        ("/token_url", Some(&row.token_url)),
        ("/device_authorization_url", row.device_authorization_url.as_ref()),
    ];
    for (path, url) in urls {
        let Some(url) = url else { continue };
        rules::length(&mut faults, path, url, URL_CHARS_MAX);
        if let Err(why) = parse_url(url) {
            faults.add(path, why);
        }
    }
    // The query of the authorization endpoint is the provider's own; these are ours to say.
    const OURS: [&str; 8] = [
        "client_id",
        "code_challenge",
        "code_challenge_method",
        "redirect_uri",
        "response_mode",
        "response_type",
        "scope",
        "state",
    ];
    let url = row.authorization_url.as_deref().and_then(|url| parse_url(url).ok());
    if url.is_some_and(|url| url.query_pairs().any(|(name, _)| OURS.contains(&name.as_ref()))) {
        faults.add("/authorization_url", format!("its query must not hold any of {}", OURS.join(", ")));
    }
    let scopes: Vec<&str> = row.scopes.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    if scopes.len() > SCOPES_MAX {
        faults.add("/scopes", format!("at most {SCOPES_MAX}"));
    }
    for (index, scope) in scopes.iter().enumerate() {
        // RFC 6749, section 3.3.
        let is_token = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        if scope.is_empty() || scope.len() > SCOPE_CHARS_MAX || !scope.bytes().all(is_token) {
            faults.add(
                format!("/scopes/{index}"),
                "expected visible ASCII characters without blanks, quotes and backslashes",
            );
        }
    }
    let fits = |secret: &&Secret| {
        let text = secret.expose();
        (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    if secret.is_some_and(|secret| !fits(&secret)) {
        faults.add(
            "/client_secret",
            format!("must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes and no control characters"),
        );
    }
    faults.check()
}

fn sealed(app: &App, row: &OauthProviderRow, secret: Option<&Secret>) -> Result<Option<String>, Problem> {
    let sealed = secret.map(|secret| seal_secret(&app.vault, row, secret)).transpose();
    Ok(sealed.map_err(|error| Problem::internal(&error))?.map(|sealed| sealed.to_string()))
}
