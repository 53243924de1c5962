//! Credentials of resources. Secrets can be written but not read. No error repeats any part of the input, because a
//! field may hold the secret by mistake.

use std::collections::BTreeMap;
use std::sync::Arc;

use monstrum_api::credentials::{CredentialMetadata, CredentialTest};
use monstrum_api::tools::CallResult;
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_manifest::{AuthKind, AuthMethod, Field, ResourceType, check_secret_fields};
use monstrum_store::{CredentialRow, ResourceRow};
use monstrum_types::{AppUser, ResourceId, Secret};
use serde_json::{Map, Value, json};

use super::calls;
use super::change::Change;
use super::resources::resource;
use super::{Admin, Caller, InputErrors, OperationError, Replacing, user_credentials};
use crate::app::App;
use crate::call_types::incoming::IncomingCall;
use crate::credentials::{ConfirmError, GivenFor, Subject, missing_scopes, new_row};
use crate::language::Language;
use crate::policy::{Resource, Snapshot};

/// A credential as the caller sends it. `fields` follow the `credential_schema` of the auth method.
pub struct NewCredential {
    auth_method: String,
    fields: BTreeMap<String, Secret>,
    /// The user whose credential this is, or `None` for the credential of the resource.
    user: Option<AppUser>,
}

impl NewCredential {
    /// Returns a credential of the resource.
    pub(super) fn new(auth_method: &str, fields: BTreeMap<String, Secret>) -> NewCredential {
        NewCredential { auth_method: auth_method.to_owned(), fields, user: None }
    }

    /// Parses a request body field by field, because the error messages of a derived parser would repeat parts of the
    /// input.
    pub fn parse(bytes: &[u8]) -> Result<NewCredential, OperationError> {
        let mut body: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            OperationError::invalid_at(
                "",
                format!("expected a JSON object with `auth_method` and `fields`; parsing failed at {place}"),
            )
        })?;
        let mut errors = InputErrors::default();
        let auth_method = match body.remove("auth_method") {
            Some(Value::String(method)) => method,
            Some(_) => fault(&mut errors, "/auth_method", "expected a string"),
            None => fault(&mut errors, "/auth_method", "required field is missing"),
        };
        let given = match body.remove("fields") {
            Some(Value::Object(given)) => given,
            Some(_) => fault(&mut errors, "/fields", "expected an object"),
            None => fault(&mut errors, "/fields", "required field is missing"),
        };
        let user = body.remove("user").map(|user| user_credentials::parse_user(&mut errors, user));
        if !body.is_empty() {
            errors.add("", "unknown field; expected only `auth_method`, `fields` and `user`");
        }
        let mut fields = BTreeMap::new();
        for (name, value) in given {
            match value {
                Value::String(text) => {
                    fields.insert(name, Secret::new(text));
                }
                _ => errors.add("/fields", "every field must be a string"),
            }
        }
        errors.check()?;
        Ok(NewCredential { auth_method, fields, user })
    }

    /// Returns whether the platform must obtain the credential with the client that an admin has confirmed.
    fn is_left_to_oauth(&self) -> bool {
        self.auth_method == AuthKind::Oauth2ClientCreds.as_str() && self.fields.is_empty()
    }

    /// Returns the auth method of this credential in `resource_type`, and the fields to seal.
    pub(super) fn check(
        self,
        resource_type: &ResourceType,
    ) -> Result<(&AuthMethod, BTreeMap<String, Secret>), OperationError> {
        let usable = || resource_type.auth_methods.iter().filter(|method| method.method != AuthKind::None);
        let Some(method) = usable().find(|method| method.method.as_str() == self.auth_method) else {
            let known: Vec<&str> = usable().map(|method| method.method.as_str()).collect();
            let message = match known.as_slice() {
                [] => "this resource type does not use credentials".to_owned(),
                known => format!("expected one of {}", known.join(", ")),
            };
            return Err(OperationError::invalid_at("/auth_method", message));
        };
        let declared = method.credential_fields(resource_type);
        let known: Vec<&str> = declared.iter().map(|field| field.field.as_str()).collect();
        if self.fields.keys().any(|name| !known.contains(&name.as_str())) {
            let message = format!("unknown field; the fields of this method are {}", known.join(", "));
            return Err(OperationError::invalid_at("/fields", message));
        }
        let mut errors = InputErrors::default();
        if let Err(found) = check_secret_fields(declared, &self.fields) {
            errors.add_under("/fields", found);
        }
        errors.check()?;
        Ok((method, completed(declared, self.fields)))
    }
}

/// Adds an error and returns the default value, so that the check can continue.
fn fault<T: Default>(errors: &mut InputErrors, path: &str, message: &str) -> T {
    errors.add(path, message);
    T::default()
}

/// Removes empty fields, and sets missing fields to the defaults that the credential schema declares.
fn completed(declared: &[Field], mut fields: BTreeMap<String, Secret>) -> BTreeMap<String, Secret> {
    fields.retain(|_, value| !value.expose().is_empty());
    for field in declared {
        let default = match &field.default {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => continue,
        };
        fields.entry(field.field.clone()).or_insert_with(|| Secret::new(default));
    }
    fields
}

/// Saves the credential of a resource, or of one of its users. Replaces the previous credential, if any. The caller must
/// have been checked with [`user_credentials::may_act`].
pub async fn save(
    app: &App,
    caller: &Caller,
    id: ResourceId,
    replacing: Replacing,
    mut given: NewCredential,
) -> Result<CredentialMetadata, OperationError> {
    match given.user.take() {
        // A precondition must not be ignored.
        Some(_) if replacing != Replacing::default() => {
            Err(OperationError::invalid_at("/user", "the headers If-Match and If-None-Match do not apply to users"))
        }
        Some(user) => user_credentials::save(app, caller, id, user, given).await,
        None => save_shared(app, &caller.clone().try_into()?, id, replacing, given).await,
    }
}

/// Saves the credential of a resource.
///
/// If the method is `oauth2_client_creds` and `fields` is empty, the platform fetches a token with the client of the
/// OAuth provider.
async fn save_shared(
    app: &App,
    caller: &Admin,
    id: ResourceId,
    replacing: Replacing,
    given: NewCredential,
) -> Result<CredentialMetadata, OperationError> {
    let row = resource(app, caller, id).await?;
    let stored = app.store.credential(row.workspace_id, row.id).await?;
    if !replacing.allows(stored.map(|stored| stored.updated_at)) {
        return Err(OperationError::PreconditionFailed);
    }
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let manifest = &serving.plugin.manifest;
    let change = Change::new("credential.save", &id).of_resource(id).from(&credential_of(app, &row).await?);
    if given.is_left_to_oauth() {
        let change = change.to(&json!({ "method": given.auth_method }));
        change.record(app, caller, async { Ok(app.oauth.obtain(serving).await?) }).await?;
        return as_it_stands(app, &row).await;
    }
    let (method, fields) = given.check(&manifest.resource_type)?;
    let given_for = GivenFor::now(manifest, method, &serving.config);
    let saved = new_row(&app.vault, &row, &Subject::Shared, &given_for, &fields, app.clock.now());
    let saved = saved.map_err(OperationError::internal)?;
    let put = async {
        // Another request may have saved a credential since the check above.
        let is_put = app.store.put_credential_if(&saved, |stored| replacing.allows(stored.map(|row| row.updated_at)));
        if is_put.await? { Ok(()) } else { Err(OperationError::PreconditionFailed) }
    };
    change.to(&metadata(&saved, &saved.status)).apply(app, caller, put).await?;
    as_it_stands(app, &row).await
}

/// Confirms the stored credential for the audience and the inject rules that the manifest and the configuration
/// request.
///
/// A credential needs authorization if a plugin version or a configuration requests an audience or inject rules that
/// were not confirmed, or if another plugin has taken over the type. `requested_audience` names the origins that would
/// receive the credential.
pub async fn confirm(app: &App, caller: &Admin, id: ResourceId) -> Result<CredentialMetadata, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let manifest = &serving.plugin.manifest;
    let held = serving.credential.as_ref().ok_or_else(|| OperationError::not_found("credential"))?;
    let confirmed = held.confirmed(manifest, &serving.config).map_err(|error| match error {
        ConfirmError::Vault(error) => OperationError::internal(error),
        refused => OperationError::conflict(refused.to_string()),
    })?;
    let confirmed = CredentialRow { updated_at: app.clock.now(), ..confirmed };
    let confirm = async {
        if !app.store.update_credential(&confirmed, &held.row.sealed, confirmed.updated_at).await? {
            return Err(OperationError::conflict(
                "the credential was replaced, refreshed or deleted at the same time; try again",
            ));
        }
        Ok(())
    };
    let change = Change::new("credential.confirm", &id).of_resource(id).from(&credential_of(app, &row).await?);
    change.to(&metadata(&confirmed, &confirmed.status)).apply(app, caller, confirm).await?;
    as_it_stands(app, &row).await
}

/// Runs the credential check of the resource's type, and returns the outcome.
///
/// The check calls one tool with fixed parameters. The audit records the call, but no bot.
pub async fn test(
    app: &App,
    caller: &Admin,
    language: &Language,
    id: ResourceId,
) -> Result<CredentialTest, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let declared = served(&snapshot, &row)?.plugin.manifest.resource_type.credential_check.as_ref();
    let declared =
        declared.ok_or_else(|| OperationError::conflict("the type of this resource declares no credential check"))?;
    let (tool, params) = (declared.tool.to_string(), declared.params.clone());
    let call = IncomingCall::credential_check(caller.request, row.workspace_id, id, tool, params)
        .with_language(language.clone())
        .with_key(caller.caller_key());
    let CallResult { request_id, status, code, message, duration_ms, data: _, approval: _, authorization: _ } =
        calls::run(app, call).await?;
    Ok(CredentialTest { request_id, status, code, message, duration_ms })
}

/// Deletes the credential of a resource.
pub async fn delete(app: &App, caller: &Admin, id: ResourceId) -> Result<(), OperationError> {
    let row = resource(app, caller, id).await?;
    let before = credential_of(app, &row).await?.ok_or_else(|| OperationError::not_found("credential"))?;
    Change::new("credential.delete", &id)
        .of_resource(id)
        .from(&before)
        .delete(app, caller, "credential", app.store.delete_credential(caller.workspace, id))
        .await
}

/// Returns the resource from the policy, because a credential is checked against the manifest of the plugin. Returns an
/// error if no loaded plugin accepts the configuration of the resource.
pub fn served<'a>(snapshot: &'a Snapshot, row: &ResourceRow) -> Result<&'a Arc<Resource>, OperationError> {
    let detail = "no loaded plugin accepts this resource's configuration, so the credential cannot be checked";
    snapshot.resource(row.workspace_id, row.id).ok_or_else(|| OperationError::conflict(detail))
}

/// Returns the answer to a change of a credential.
pub async fn as_it_stands(app: &App, row: &ResourceRow) -> Result<CredentialMetadata, OperationError> {
    let metadata = credential_of(app, row).await?;
    metadata.ok_or_else(|| OperationError::conflict("the credential was deleted at the same time"))
}

/// Returns the metadata of a resource's credential: its state in the policy in force or, if no loaded plugin serves the
/// resource, its stored state.
pub async fn credential_of(app: &App, row: &ResourceRow) -> Result<Option<CredentialMetadata>, OperationError> {
    let stored = app.store.credential(row.workspace_id, row.id).await?;
    let snapshot = app.policy.load();
    if let Some(resource) = snapshot.resource(row.workspace_id, row.id) {
        let source = resource.credential_source();
        let Some(held) = &resource.credential else { return Ok(None) };
        // A refresh changes the stored row, but does not change the policy.
        let newest = stored.filter(|stored| stored.id == held.row.id);
        let mut state = source.status();
        let missing_scopes = missing_scopes(&app.store, &held.row).await?;
        let can_go_on = || held.can_go_on(snapshot.issuer(row)) && missing_scopes.is_none();
        if state == CredentialState::Ready && !can_go_on() {
            state = CredentialState::NeedsAuthorization;
        }
        return Ok(Some(CredentialMetadata {
            missing_scopes,
            requested_audience: source.requested_audience().map(<[_]>::to_vec),
            ..metadata(newest.as_ref().unwrap_or(&held.row), state.as_str())
        }));
    }
    Ok(stored.map(|stored| metadata(&stored, &stored.status)))
}

pub(super) fn metadata(row: &CredentialRow, status: &str) -> CredentialMetadata {
    // A row that this host cannot read is never used, so its audience is empty.
    let given_for = serde_json::from_value::<GivenFor>(row.given_for.clone()).ok();
    CredentialMetadata {
        status: status.to_owned(),
        method: row.auth_method.clone(),
        audience: given_for.map(|given_for| given_for.audience).unwrap_or_default(),
        requested_audience: None,
        missing_scopes: None,
        expires_at: row.expires_at,
        updated_at: row.updated_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "ghp_canary0123456789";

    fn resource_type() -> ResourceType {
        serde_json::from_value(json!({
            "id": "sample", "name": "Sample",
            "auth_methods": [
                {"method": "token", "credential_schema": [
                    {"field": "access_token", "type": "secret"},
                    {"field": "prefix", "required": false, "default": "v1"},
                    {"field": "page", "type": "integer", "required": false},
                    {"field": "kind", "type": "enum", "enum_values": ["a"], "required": false},
                    {"field": "base", "type": "url", "required": false},
                ]},
                {"method": "none"},
            ],
        }))
        .unwrap()
    }

    fn check(body: &str) -> Result<BTreeMap<String, String>, String> {
        let text = |error: OperationError| format!("{error:?}");
        let given = NewCredential::parse(body.as_bytes()).map_err(text)?;
        let resource_type = resource_type();
        let (method, fields) = given.check(&resource_type).map_err(text)?;
        assert_eq!(method.method, AuthKind::Token);
        Ok(fields.into_iter().map(|(name, secret)| (name, secret.expose().to_owned())).collect())
    }

    #[test]
    fn fields_are_checked_and_completed() {
        let body = json!({"auth_method": "token", "fields": {"access_token": CANARY, "page": ""}});
        let expected = [("access_token".to_owned(), CANARY.to_owned()), ("prefix".to_owned(), "v1".to_owned())];
        assert_eq!(check(&body.to_string()), Ok(expected.into()));
    }

    #[test]
    fn no_error_repeats_any_part_of_the_body() {
        let token = json!({"access_token": "x".repeat(40)});
        let bodies = [
            json!(CANARY),
            json!([CANARY]),
            json!({"auth_method": CANARY, "fields": token}),
            json!({"auth_method": {CANARY: 1}, "fields": token}),
            json!({"auth_method": "none", "fields": {"access_token": CANARY}}),
            json!({"auth_method": "token", "fields": CANARY}),
            json!({"auth_method": "token", "fields": {CANARY: CANARY}}),
            json!({"auth_method": "token", "fields": {"access_token": [CANARY]}}),
            json!({"auth_method": "token", "fields": {"access_token": {CANARY: CANARY}}}),
            json!({"auth_method": "token", "fields": {"access_token": format!("{CANARY}\n")}}),
            json!({"auth_method": "token", "fields": {"access_token": "x".repeat(40), "page": CANARY}}),
            json!({"auth_method": "token", "fields": {"access_token": "x".repeat(40), "kind": CANARY}}),
            json!({"auth_method": "token", "fields": {"access_token": "x".repeat(40), "base": CANARY}}),
            json!({"auth_method": "token", "fields": {"access_token": "x".repeat(40), CANARY: "y"}}),
            json!({"auth_method": "token", "fields": {"access_token": CANARY}, CANARY: CANARY}),
            json!({"auth_method": "token", CANARY: CANARY}),
        ];
        let broken = [
            format!("{{\"auth_method\": \"token\", \"fields\": {{\"access_token\": \"{CANARY}\""),
            format!("{{\"auth_method\": \"token\", \"fields\": {{\"access_token\": {CANARY}}}}}"),
            CANARY.to_owned(),
        ];
        for body in bodies.iter().map(Value::to_string).chain(broken) {
            let error = check(&body).expect_err(&body);
            assert!(!error.contains("canary"), "{body} gave {error}");
        }
    }

    #[test]
    fn a_short_secret_is_refused_by_its_field() {
        let error = check(r#"{"auth_method": "token", "fields": {"access_token": "short12"}}"#).unwrap_err();
        assert!(error.contains("/fields/access_token") && error.contains("at least 8 bytes"), "{error}");
        assert!(!error.contains("short12"));
    }
}
