//! Credentials of users. An app manages the credentials of its users with the key of a bot that is bound to the resource;
//! an admin manages those of all users.

use std::sync::Arc;

use monstrum_api::credentials::{CredentialMetadata, UserCredential, UserCredentialList};
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_manifest::AuthKind;
use monstrum_store::{CredentialRow, KeyKind, Page, ResourceRow};
use monstrum_types::{AppUser, CredentialId, ResourceId};
use serde_json::{Map, Value};

use super::change::Change;
use super::credentials::{NewCredential, metadata, served};
use super::resources::resource;
use super::sandbox_files::check_part;
use super::{Caller, InputErrors, OperationError, list};
use crate::app::App;
use crate::credentials::{GivenFor, Subject, new_row};
use crate::policy::Resource;

/// The maximum number of users who have a credential for one resource. Each host keeps these credentials in memory, about
/// 1 KiB each.
const USERS_MAX: usize = 100_000;

/// Returns an error unless the caller may manage credentials of users for this resource. An interface calls this function
/// before it reads an input. For a bot that is not bound to the resource, the error is that of an absent resource.
pub fn may_act(app: &App, caller: &Caller, id: ResourceId) -> Result<(), OperationError> {
    if caller.kind != KeyKind::Bot {
        return caller.admin();
    }
    let snapshot = app.policy.load();
    let bot = caller.bot.and_then(|bot| snapshot.bot(caller.workspace, bot));
    match bot.is_some_and(|bot| bot.is_bound_to(id, app.clock.now())) {
        true => Ok(()),
        false => Err(OperationError::not_found("resource")),
    }
}

/// Reads the user of a credential. The errors repeat no part of the input, because a field may hold a secret by mistake.
pub(super) fn parse_user(errors: &mut InputErrors, given: Value) -> AppUser {
    let mut members = match given {
        Value::Object(members) => members,
        _ => {
            errors.add("/user", "expected an object with `app_id` and `user_id`");
            Map::new()
        }
    };
    let mut text = |name: &str| match members.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let user = AppUser { app_id: text("app_id"), user_id: text("user_id") };
    if !members.is_empty() {
        errors.add("/user", "unknown field; expected only `app_id` and `user_id`");
    }
    check_user(errors, "/user", &user);
    user
}

/// Checks the ids of a user.
pub(super) fn check_user(errors: &mut InputErrors, path: &str, user: &AppUser) {
    for (name, id) in [("app_id", &user.app_id), ("user_id", &user.user_id)] {
        check_part(errors, &format!("{path}/{name}"), id);
    }
}

/// Returns an error unless the resource uses the credentials of users, and another user can have one.
pub(super) fn check_resource(app: &App, serving: &Resource, user: &AppUser) -> Result<(), OperationError> {
    if !serving.has_user_credentials() {
        let message = "the resource uses one credential for all calls; its configuration must have `credential: user`";
        return Err(OperationError::invalid_at("/user", message));
    }
    let snapshot = app.policy.load();
    let id = serving.row.id;
    if snapshot.user_credential(id, user).is_none() && snapshot.user_credential_count(id) >= USERS_MAX {
        return Err(OperationError::conflict(format!("the resource has the credentials of {USERS_MAX} users")));
    }
    Ok(())
}

/// Saves the credential of a user, which an app or an admin has. Tokens of OAuth are obtained by the platform only.
pub(super) async fn save(
    app: &App,
    caller: &Caller,
    id: ResourceId,
    user: AppUser,
    given: NewCredential,
) -> Result<CredentialMetadata, OperationError> {
    may_act(app, caller, id)?;
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    check_resource(app, serving, &user)?;
    let manifest = &serving.plugin.manifest;
    let (method, fields) = given.check(&manifest.resource_type)?;
    if !matches!(method.method, AuthKind::Token | AuthKind::ApiKey) {
        let message = "the credential of a user is a `token` or an `api_key`, or is obtained by OAuth";
        return Err(OperationError::invalid_at("/auth_method", message));
    }
    let given_for = GivenFor::now(manifest, method, &serving.config);
    let subject = Subject::of_user(&user);
    let saved = new_row(&app.vault, &row, &subject, &given_for, &fields, app.clock.now());
    let saved = saved.map_err(OperationError::internal)?;
    let before = stored(app, &row, &subject).await?;
    Change::new("credential.save", &id)
        .of_bot(caller.bot)
        .of_resource(id)
        .from(&before.as_ref().map(|row| shown(app, Some(serving), row)))
        .to(&UserCredential { user, credential: metadata(&saved, &saved.status) })
        .create(app, caller, app.store.put_credential(&saved))
        .await?;
    let now = stored(app, &row, &subject).await?;
    let now = now.ok_or_else(|| OperationError::conflict("the credential was deleted at the same time"))?;
    Ok(shown(app, app.policy.load().resource(row.workspace_id, id), &now).credential)
}

/// Lists the credentials of the users of a resource, without their secrets. A bot key must name the user.
pub async fn list(
    app: &App,
    caller: &Caller,
    id: ResourceId,
    user: Option<AppUser>,
    page: &Page<CredentialId>,
) -> Result<UserCredentialList, OperationError> {
    may_act(app, caller, id)?;
    if caller.kind == KeyKind::Bot && user.is_none() {
        return Err(OperationError::forbidden(
            "a bot key lists the credential of one user; name `app_id` and `user_id`",
        ));
    }
    let row = resource(app, caller, id).await?;
    let subject = user.as_ref().map(Subject::of_user);
    let rows = app.store.user_credentials(row.workspace_id, id, subject.as_ref().map(Subject::id), page).await?;
    let snapshot = app.policy.load();
    let serving = snapshot.resource(row.workspace_id, id);
    Ok(list::page(rows, |row| shown(app, serving, &row)))
}

/// Deletes the credential of a user.
pub async fn delete(app: &App, caller: &Caller, id: ResourceId, user: &AppUser) -> Result<(), OperationError> {
    may_act(app, caller, id)?;
    let row = resource(app, caller, id).await?;
    let subject = Subject::of_user(user);
    let before = stored(app, &row, &subject).await?.ok_or_else(|| OperationError::not_found("credential"))?;
    let before = shown(app, app.policy.load().resource(row.workspace_id, id), &before);
    Change::new("credential.delete", &id)
        .of_bot(caller.bot)
        .of_resource(id)
        .from(&before)
        .delete(app, caller, "credential", app.store.delete_user_credential(row.workspace_id, id, subject.id()))
        .await
}

/// Returns whether any user has a credential for the resource.
pub(super) async fn exist(app: &App, row: &ResourceRow) -> Result<bool, OperationError> {
    let page = Page { limit: 1, cursor: None };
    Ok(!app.store.user_credentials(row.workspace_id, row.id, None, &page).await?.items.is_empty())
}

async fn stored(app: &App, row: &ResourceRow, subject: &Subject) -> Result<Option<CredentialRow>, OperationError> {
    Ok(app.store.user_credential(row.workspace_id, row.id, subject.id()).await?)
}

/// Returns the credential with its state in the policy in force or, if no loaded plugin serves the resource, its stored
/// state.
fn shown(app: &App, serving: Option<&Arc<Resource>>, row: &CredentialRow) -> UserCredential {
    let subject = Subject::of_row(row).and_then(|subject| subject.user());
    let user = subject.unwrap_or_else(|| AppUser { app_id: String::new(), user_id: row.subject_id.clone() });
    let snapshot = app.policy.load();
    let known = snapshot.user_credential(row.resource_id, &user).filter(|known| known.held.row.id == row.id);
    let credential = match serving.zip(known) {
        Some((serving, known)) => {
            let source = known.source(serving);
            let mut state = source.status();
            if state == CredentialState::Ready && !known.held.can_go_on(snapshot.issuer(&serving.row)) {
                state = CredentialState::NeedsAuthorization;
            }
            CredentialMetadata {
                requested_audience: source.requested_audience().map(<[_]>::to_vec),
                ..metadata(row, state.as_str())
            }
        }
        None => metadata(row, &row.status),
    };
    UserCredential { user, credential }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_error_about_a_user_repeats_the_input() {
        const CANARY: &str = "ghp_canary0123456789";
        let errors_of = |given: Value| {
            let mut errors = InputErrors::default();
            let user = parse_user(&mut errors, given);
            (user, errors.check().map_err(|error| format!("{error:?}")))
        };
        let (user, checked) = errors_of(json!({"app_id": "a", "user_id": "7"}));
        assert_eq!((user.app_id.as_str(), user.user_id.as_str(), checked), ("a", "7", Ok(())));
        for bad in [
            json!(CANARY),
            json!({"app_id": CANARY}),
            json!({"app_id": CANARY, "user_id": format!("{CANARY}\n")}),
            json!({"app_id": CANARY, "user_id": "7", CANARY: 1}),
            json!({"app_id": {CANARY: 1}, "user_id": "7"}),
            json!({"app_id": "a", "user_id": CANARY.repeat(20)}),
        ] {
            let error = errors_of(bad.clone()).1.expect_err(&bad.to_string());
            assert!(error.contains("/user") && !error.contains("canary"), "{bad}: {error}");
        }
    }
}
