//! Trusted keys, which may sign the packages of some plugins. These operations require a root key.

use monstrum_api::trust::{NewTrust, Trust, TrustList};
use monstrum_package::PublicKey;
use monstrum_store::{Page, TrustRow};
use monstrum_types::TrustId;

use super::change::Change;
use super::list;
use super::{InputErrors, OperationError, Root, rules};
use crate::app::App;

fn view(row: TrustRow) -> Trust {
    let TrustRow { id, public_key, name_glob, type_glob, created_at } = row;
    Trust { id, public_key, name_glob, type_glob, created_at }
}

/// Lists trusted keys.
pub async fn list(app: &App, _: &Root, page: &Page<TrustId>) -> Result<TrustList, OperationError> {
    Ok(list::page(app.store.trust(page).await?, view))
}

/// Adds a trusted key that may sign packages of some plugins.
pub async fn create(app: &App, caller: &Root, new: NewTrust) -> Result<Trust, OperationError> {
    let mut errors = InputErrors::default();
    if let Err(error) = new.public_key.parse::<PublicKey>() {
        errors.add("/public_key", error.to_string());
    }
    rules::name(&mut errors, "/name_glob", &new.name_glob);
    if let Some(type_glob) = &new.type_glob {
        rules::name(&mut errors, "/type_glob", type_glob);
    }
    errors.check()?;
    let NewTrust { public_key, name_glob, type_glob } = new;
    let type_glob = type_glob.unwrap_or_else(|| name_glob.clone());
    let row = TrustRow { id: TrustId::new(), public_key, name_glob, type_glob, created_at: app.clock.now() };
    let insert = async { Ok(app.store.insert_trust(&row).await?) };
    Change::new("trust.create", &row.id).to(&view(row.clone())).record(app, caller, insert).await?;
    let TrustRow { id, public_key, name_glob, type_glob, .. } = &row;
    tracing::info!(trust.id = %id, public_key, name_glob, type_glob, "added a trusted key");
    Ok(view(row))
}

/// Removes a trusted key. Installed plugins with its signature stay installed.
pub async fn delete(app: &App, caller: &Root, id: TrustId) -> Result<(), OperationError> {
    let before = app.store.trust_of_id(id).await?.ok_or_else(|| OperationError::not_found("trusted key"))?;
    let delete = async {
        if app.store.delete_trust(id).await? { Ok(()) } else { Err(OperationError::not_found("trusted key")) }
    };
    Change::new("trust.delete", &id).from(&view(before)).record(app, caller, delete).await?;
    tracing::info!(trust.id = %id, "removed a trusted key");
    Ok(())
}
