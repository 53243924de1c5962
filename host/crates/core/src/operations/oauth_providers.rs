//! OAuth providers: the endpoints and the client with which a workspace obtains tokens for a resource type. An admin
//! confirms each provider. The manifest only proposes values, which are copied when the provider is created. A client
//! secret can be written but not read.

use monstrum_api::list::List;
use monstrum_api::oauth_providers::{NewOauthProvider, OauthProvider, OauthProviderChange, OauthProviderList};
use monstrum_egress::SECRET_BYTES_MIN;
use monstrum_store::{OauthProviderRow, Page};
use monstrum_types::{OauthProviderId, Secret};
use serde_json::json;

use super::change::{Change, changed_at};
use super::list;
use super::{Admin, Caller, Expected, InputErrors, OperationError, Operator, rules};
use crate::app::App;
use crate::credentials::provider::{ConfirmedServer, parse_url, proposed, seal_secret};
use crate::oauth::challenge::{SCOPES_MAX, is_scope};

const URL_CHARS_MAX: usize = 2048;
const CLIENT_ID_CHARS_MAX: usize = 512;
const SECRET_BYTES_MAX: usize = 4096;

pub(super) fn view(row: OauthProviderRow) -> OauthProvider {
    // Metadata that cannot be read are not shown. The provider is not used then.
    let server = ConfirmedServer::of(&row).ok().flatten();
    OauthProvider {
        id: row.id,
        resource_type: row.resource_type,
        resource_id: row.resource_id,
        client_id: row.client_id,
        has_client_secret: row.client_secret.is_some(),
        authorization_url: row.authorization_url,
        token_url: row.token_url,
        device_authorization_url: row.device_authorization_url,
        scopes: row.scopes,
        token_auth: server.as_ref().map(|server| server.token_auth),
        issuer: server.map(|server| server.issuer),
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

/// Lists OAuth providers.
pub async fn list(
    app: &App,
    caller: &Operator,
    resource_type: Option<&str>,
    page: &Page<OauthProviderId>,
) -> Result<OauthProviderList, OperationError> {
    if let Some(resource_type) = resource_type {
        // A text that is not a valid type matches no provider.
        let Ok(resource_type) = resource_type.parse() else {
            return Ok(List { items: Vec::new(), next_cursor: None });
        };
        return Ok(list::page(app.store.oauth_providers_of_type(caller.workspace, &resource_type, page).await?, view));
    }
    Ok(list::page(app.store.oauth_providers(caller.workspace, page).await?, view))
}

/// Creates an OAuth provider. By creating it, an admin approves the endpoints from which tokens of a resource type are
/// obtained.
pub async fn create(app: &App, caller: &Admin, new: NewOauthProvider) -> Result<OauthProvider, OperationError> {
    let snapshot = app.policy.load();
    let Some(plugin) = snapshot.resource_type(&new.resource_type) else {
        return Err(OperationError::invalid_at("/resource_type", "no loaded plugin has this resource type"));
    };
    let proposed = proposed(&plugin.manifest.resource_type);
    let Some(token_url) = new.token_url.or(proposed.token_url) else {
        return Err(OperationError::invalid_at(
            "/token_url",
            "required, because the manifest of this type proposes no value",
        ));
    };
    let now = app.clock.now();
    let mut row = OauthProviderRow {
        id: OauthProviderId::new(),
        workspace_id: caller.workspace,
        resource_type: new.resource_type,
        resource_id: None,
        client_id: new.client_id,
        client_secret: None,
        authorization_url: new.authorization_url.or(proposed.authorization_url),
        token_url,
        device_authorization_url: new.device_authorization_url.or(proposed.device_authorization_url),
        scopes: json!(new.scopes.unwrap_or(proposed.scopes)),
        server: None,
        created_at: now,
        updated_at: now,
    };
    check(&row, new.client_secret.as_ref())?;
    row.client_secret = sealed(app, &row, new.client_secret.as_ref())?;
    let change = Change::new("oauth_provider.create", &row.id).to(&view(row.clone()));
    change.create(app, caller, app.store.insert_oauth_provider(&row)).await?;
    Ok(view(row))
}

/// Changes an OAuth provider.
pub async fn update(
    app: &App,
    caller: &Admin,
    id: OauthProviderId,
    expected: Expected,
    change: OauthProviderChange,
) -> Result<OauthProvider, OperationError> {
    let before = provider(app, caller, id).await?;
    expected.check(before.updated_at)?;
    let mut row = OauthProviderRow { updated_at: changed_at(app, before.updated_at), ..before.clone() };
    if before.server.is_some() {
        let urls = [
            ("/authorization_url", change.authorization_url.is_some()),
            ("/token_url", change.token_url.is_some()),
            ("/device_authorization_url", change.device_authorization_url.is_some()),
        ];
        if let Some((path, _)) = urls.into_iter().find(|(_, is_changed)| *is_changed) {
            let message =
                "the URLs are those of the confirmed issuer; discover and confirm the authorization server again";
            return Err(OperationError::invalid_at(path, message));
        }
    }
    row.client_id = change.client_id.unwrap_or(row.client_id);
    row.authorization_url = change.authorization_url.unwrap_or(row.authorization_url);
    row.token_url = change.token_url.unwrap_or(row.token_url);
    row.device_authorization_url = change.device_authorization_url.unwrap_or(row.device_authorization_url);
    row.scopes = change.scopes.map_or(row.scopes, |scopes| json!(scopes));
    let secret = change.client_secret.as_ref().and_then(Option::as_ref);
    check(&row, secret)?;
    // The stored secret belongs to the client and these endpoints. If the client or an endpoint changes, the caller
    // must send the secret again.
    let goes_elsewhere = row.client_id != before.client_id
        || row.token_url != before.token_url
        || row.device_authorization_url != before.device_authorization_url;
    match &change.client_secret {
        Some(_) => row.client_secret = sealed(app, &row, secret)?,
        None if goes_elsewhere && row.client_secret.is_some() => {
            let message = "required when `client_id`, `token_url` or `device_authorization_url` changes; send null for \
                           a client without a secret";
            return Err(OperationError::invalid_at("/client_secret", message));
        }
        None => {}
    }
    let change = Change::new("oauth_provider.update", &id).at(expected).from(&view(before.clone()));
    change.to(&view(row.clone())).update(app, caller, app.store.update_oauth_provider(&row, before.updated_at)).await?;
    Ok(view(row))
}

/// Deletes an OAuth provider. Tokens that the provider issued are no longer refreshed.
pub async fn delete(app: &App, caller: &Admin, id: OauthProviderId, expected: Expected) -> Result<(), OperationError> {
    let before = provider(app, caller, id).await?;
    expected.check(before.updated_at)?;
    let read_at = before.updated_at;
    let change = Change::new("oauth_provider.delete", &id).at(expected).from(&view(before));
    change.update(app, caller, app.store.delete_oauth_provider(caller.workspace, id, read_at)).await
}

async fn provider(app: &App, caller: &Caller, id: OauthProviderId) -> Result<OauthProviderRow, OperationError> {
    let found = app.store.oauth_provider(caller.workspace, id).await?;
    found.ok_or_else(|| OperationError::not_found("OAuth provider"))
}

pub(super) fn check(row: &OauthProviderRow, secret: Option<&Secret>) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    rules::length(&mut errors, "/client_id", &row.client_id, CLIENT_ID_CHARS_MAX);
    if row.client_id.is_empty() || row.client_id.chars().any(char::is_control) {
        errors.add("/client_id", "must not be empty or contain control characters");
    }
    let urls = [
        ("/authorization_url", row.authorization_url.as_ref()),
        ("/token_url", Some(&row.token_url)),
        ("/device_authorization_url", row.device_authorization_url.as_ref()),
    ];
    for (path, url) in urls {
        let Some(url) = url else { continue };
        rules::length(&mut errors, path, url, URL_CHARS_MAX);
        if let Err(why) = parse_url(url) {
            errors.add(path, why);
        }
    }
    // The query of the authorization URL may contain parameters of the provider, but not the parameters that the server
    // sets.
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
    if url.as_ref().is_some_and(|url| url.query_pairs().any(|(name, _)| OURS.contains(&name.as_ref()))) {
        errors.add("/authorization_url", format!("the query must not contain any of {}", OURS.join(", ")));
    }
    // The server names the resource only to providers of MCP servers. Other providers may need it in the query.
    if row.resource_id.is_some() && url.is_some_and(|url| url.query_pairs().any(|(name, _)| name == "resource")) {
        errors.add("/authorization_url", "the query must not contain `resource`");
    }
    let scopes: Vec<&str> = row.scopes.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    if scopes.len() > SCOPES_MAX {
        errors.add("/scopes", format!("must have at most {SCOPES_MAX} entries"));
    }
    for (index, scope) in scopes.iter().enumerate() {
        if !is_scope(scope) {
            errors.add(
                format!("/scopes/{index}"),
                "expected visible ASCII characters without spaces, quotes or backslashes",
            );
        }
    }
    let fits = |secret: &&Secret| {
        let text = secret.expose();
        (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    if secret.is_some_and(|secret| !fits(&secret)) {
        errors.add(
            "/client_secret",
            format!("must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes and no control characters"),
        );
    }
    errors.check()
}

pub(super) fn sealed(
    app: &App,
    row: &OauthProviderRow,
    secret: Option<&Secret>,
) -> Result<Option<String>, OperationError> {
    let sealed = secret.map(|secret| seal_secret(&app.vault, row, secret)).transpose();
    Ok(sealed.map_err(OperationError::internal)?.map(|sealed| sealed.to_string()))
}
