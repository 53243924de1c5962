//! Callers with an access token in place of an API key.

use std::sync::Arc;

use monstrum_store::KeyKind;
use monstrum_types::{BotId, KeyId, RequestId};
use sha2::{Digest as _, Sha256};
use uuid::Builder;

use super::{Caller, OperationError};
use crate::access_tokens::{AccessTokens, TokenError};
use crate::app::App;
use crate::call_types::incoming::TokenUser;

/// The reason why an access token authenticates no caller.
#[derive(Debug)]
pub enum TokenRefusal {
    Token(TokenError),
    Operation(OperationError),
}

/// Returns the caller with this access token for the bot. A bot that does not exist and a bot that does not admit the
/// user get the same answer.
pub async fn caller(
    app: &App,
    tokens: &AccessTokens,
    request: RequestId,
    token: &str,
    bot: BotId,
) -> Result<Caller, TokenRefusal> {
    let user = Arc::new(tokens.verify(token, bot).await.map_err(TokenRefusal::Token)?);
    // If the policy is stale, the subjects may already have changed.
    if app.policy.is_stale() {
        let unavailable = OperationError::unavailable("the permissions could not be read; try again");
        return Err(TokenRefusal::Operation(unavailable));
    }
    let snapshot = app.policy.load();
    let workspace = snapshot.bot_of_any_workspace(bot).map(|bot| bot.row.workspace_id);
    let workspace = workspace.filter(|workspace| snapshot.admits(*workspace, &user, app.clock.now()));
    let Some(workspace) = workspace else {
        let forbidden = OperationError::forbidden("the user of this access token may not use this bot");
        return Err(TokenRefusal::Operation(forbidden));
    };
    // A workspace whose row failed verification is missing from the snapshot.
    if snapshot.workspace(&workspace.to_string()).is_none() {
        return Err(TokenRefusal::Operation(OperationError::unverified(&workspace.to_string())));
    }
    if let Some(found) = snapshot.verification.unverified_for(workspace) {
        return Err(TokenRefusal::Operation(OperationError::unverified(&found.scope.to_string())));
    }
    let (kind, bot, key) = (KeyKind::Bot, Some(bot), id_of(&user));
    Ok(Caller { request, key, key_hash: [0; 32], kind, workspace, bot, resource: None, token_user: Some(user) })
}

/// Returns the id that stands for the user where other callers have the id of their key.
fn id_of(user: &TokenUser) -> KeyId {
    let mut hash = Sha256::new();
    for text in ["user of an access token", &*user.issuer, &*user.subject] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let bytes = digest.first_chunk().expect("a SHA-256 has 32 bytes");
    let id = Builder::from_custom_bytes(*bytes).into_uuid().to_string();
    id.parse().expect("an id is a UUID")
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;

    use super::*;

    #[test]
    fn users_of_different_issuers_have_different_ids() {
        let id = |issuer: &str, subject: &str| {
            let (issuer, subject) = (issuer.into(), subject.into());
            id_of(&TokenUser { issuer, subject, bot: BotId::new(), expires_at: UtcMillis(0) })
        };
        assert_eq!(id("a", "7"), id("a", "7"));
        assert!(id("a", "7") != id("b", "7") && id("ab", "c") != id("a", "bc"));
    }
}
