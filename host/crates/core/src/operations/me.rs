//! The key of the request, and links that log a browser in to the console with that key.

use std::time::Duration;

use monstrum_api::me::{Me, NewTicket, Ticket};
use monstrum_types::KeyKind;

use super::{InputErrors, KeyHolder, OperationError, Person};
use crate::app::App;
use crate::console_sessions::LoginError;

/// The number of seconds for which a link is valid, unless the caller names another one.
const TTL_S: u32 = 60;
const TTL_MAX_S: u32 = 600;

/// Shows the key of the caller. `may` is the ids of the operations that the interface offers to keys of this kind.
pub async fn show(app: &App, caller: &KeyHolder, may: Vec<String>) -> Result<Me, OperationError> {
    let owner = (caller.kind != KeyKind::Root).then_some(caller.workspace);
    let key = app.store.key(owner, caller.key).await?.ok_or_else(|| OperationError::not_found("key"))?;
    let workspace = app.store.workspace(caller.workspace).await?;
    let workspace = workspace.ok_or_else(|| OperationError::not_found("workspace"))?;
    Ok(Me {
        key_id: key.id,
        name: key.name,
        kind: key.kind,
        workspace: workspace.name,
        workspace_id: workspace.id,
        bot_id: key.bot_id,
        resource_id: key.resource_id,
        may,
    })
}

/// Makes a link that logs a browser in with the key of the caller. `console_url` is the address of the console.
pub async fn ticket(
    app: &App,
    caller: &Person,
    input: &NewTicket,
    console_url: &str,
) -> Result<Ticket, OperationError> {
    let ttl = input.ttl_s.unwrap_or(TTL_S);
    let mut errors = InputErrors::default();
    if !(1..=TTL_MAX_S).contains(&ttl) {
        errors.add("/ttl_s", format!("expected 1 to {TTL_MAX_S} seconds"));
    }
    errors.check()?;
    let ttl = Duration::from_secs(u64::from(ttl));
    match app.console_sessions.make_ticket(caller.key, caller.key_hash, ttl).await {
        Ok(made) => {
            Ok(Ticket { url: format!("{console_url}/enter/{}", made.token.expose()), expires_at: made.expires_at })
        }
        Err(LoginError::KindRefused) => Err(OperationError::forbidden("keys of bots and agents cannot log in")),
        Err(LoginError::UnknownKey) => {
            Err(OperationError::Unauthenticated("the API key was deleted or rotated".to_owned()))
        }
        Err(LoginError::Store(error)) => Err(error.into()),
        Err(error) => Err(OperationError::internal(error)),
    }
}
