//! The key of the request.

use monstrum_api::me::Me;
use monstrum_types::KeyKind;

use super::{KeyHolder, OperationError};
use crate::app::App;

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
