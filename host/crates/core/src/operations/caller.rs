//! The caller of an operation. An interface creates the caller from verified data. Operations only read the caller.

use std::ops::Deref;
use std::sync::Arc;

use monstrum_store::KeyKind;
use monstrum_types::{BotId, Clock, KeyId, RequestId, ResourceId, UtcMillis, WorkspaceId};

use super::OperationError;
use crate::call_types::incoming::{CallerKey, TokenUser};
use crate::console_sessions::may_log_in;
use crate::policy::Snapshot;

/// The caller of an operation.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The id of this request in the log and in the audit.
    pub request: RequestId,
    /// The id of the key. For a user with an access token, an id that is derived from the user and that no key has.
    pub key: KeyId,
    /// The hash of the key's text. A rotated key keeps its id but not its hash.
    pub key_hash: [u8; 32],
    pub kind: KeyKind,
    /// The workspace in which the caller acts.
    pub workspace: WorkspaceId,
    /// The bot of a bot key or of an access token.
    pub bot: Option<BotId>,
    /// The resource of an agent key.
    pub resource: Option<ResourceId>,
    /// The user, if the caller has an access token in place of a key. Such a caller has the rights of a bot key.
    pub token_user: Option<Arc<TokenUser>>,
}

impl Caller {
    /// Returns the key of the caller. A call with this key ends when the key is revoked.
    pub fn caller_key(&self) -> CallerKey {
        CallerKey { id: self.key, hash: self.key_hash }
    }

    /// Returns whether the key of the caller still exists and is unchanged. For a caller with an access token, returns
    /// whether the bot still admits the user and the token has not expired.
    pub fn is_known(&self, snapshot: &Snapshot, now: UtcMillis) -> bool {
        match &self.token_user {
            Some(user) => snapshot.admits(self.workspace, user, now),
            None => snapshot.key_hash(self.key) == Some(&self.key_hash),
        }
    }

    /// Waits until the access token of the caller expires. The function never returns for a caller with a key.
    pub async fn expired(&self, clock: &dyn Clock) {
        match &self.token_user {
            Some(user) => user.expired(clock).await,
            None => std::future::pending().await,
        }
    }

    /// Accepts root keys only. An operation that always needs a root key accepts a [`Root`] instead.
    pub fn root(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Root], "a root key is required")
    }

    /// Accepts root and admin keys only. An operation that always needs such a key accepts an [`Admin`] instead.
    pub fn admin(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Root, KeyKind::Admin], "an admin key is required")
    }

    /// Accepts root, admin and operator keys only. An operation that always needs such a key accepts an [`Operator`]
    /// instead.
    pub fn operator(&self) -> Result<(), OperationError> {
        self.one_of(
            &[KeyKind::Root, KeyKind::Admin, KeyKind::Operator],
            "this operation requires an operator, admin or root key",
        )
    }

    /// Accepts all keys except approver and agent keys. An operation that accepts every other key accepts a [`Caller`]
    /// that an interface has checked with this function.
    pub fn general(&self) -> Result<(), OperationError> {
        self.not_agent()?;
        self.one_of(
            &[KeyKind::Root, KeyKind::Admin, KeyKind::Operator, KeyKind::Bot],
            "an approver key only reads and decides approvals",
        )
    }

    /// Accepts every key except agent keys. An operation on approvals accepts a [`Reviewer`], so that the operations that
    /// accept a [`Caller`] are not reached with approver keys.
    pub fn reviewer(&self) -> Result<(), OperationError> {
        self.not_agent()
    }

    /// Accepts the keys that people hold: every key except bot and agent keys. An operation that always needs such a key
    /// accepts a [`Person`] instead.
    pub fn person(&self) -> Result<(), OperationError> {
        if may_log_in(self.kind) && self.token_user.is_none() {
            return Ok(());
        }
        Err(OperationError::forbidden("this operation requires an approver, operator, admin or root key"))
    }

    /// Accepts every key. An operation about the key itself accepts a [`KeyHolder`], so that the operations that accept a
    /// [`Caller`] are not reached with approver and agent keys.
    pub fn key_holder(&self) -> Result<(), OperationError> {
        self.one_of(KeyKind::ALL, "an API key is required")
    }

    /// Accepts agent keys only. An operation of an agent accepts an [`AgentCaller`].
    pub fn agent(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Agent], "an agent key is required")
    }

    fn not_agent(&self) -> Result<(), OperationError> {
        match self.kind {
            KeyKind::Agent => Err(OperationError::forbidden("an agent key only connects agents")),
            KeyKind::Root | KeyKind::Admin | KeyKind::Operator | KeyKind::Approver | KeyKind::Bot => Ok(()),
        }
    }

    /// Accepts any key except approver and agent keys and the bot keys of other bots. For another bot, returns the error for a bot
    /// that does not exist.
    pub fn may_use(&self, bot: BotId) -> Result<(), OperationError> {
        self.general()?;
        if self.kind == KeyKind::Bot && self.bot != Some(bot) { Err(OperationError::not_found("bot")) } else { Ok(()) }
    }

    fn one_of(&self, kinds: &[KeyKind], why_not: &str) -> Result<(), OperationError> {
        if kinds.contains(&self.kind) { Ok(()) } else { Err(OperationError::forbidden(why_not)) }
    }
}

/// Defines types of callers that have a right. Only the check of the right can create a value of such a type.
macro_rules! rights {
    ($($(#[$doc:meta])* $name:ident by $check:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Caller);

        impl TryFrom<Caller> for $name {
            type Error = OperationError;

            fn try_from(caller: Caller) -> Result<Self, OperationError> {
                caller.$check()?;
                Ok($name(caller))
            }
        }

        impl Deref for $name {
            type Target = Caller;

            fn deref(&self) -> &Caller {
                &self.0
            }
        }
    )+};
}

rights! {
    /// A caller with a root key.
    Root by root;
    /// A caller with a root or admin key.
    Admin by admin;
    /// A caller with a root, admin or operator key.
    Operator by operator;
    /// A caller with any key except an agent key, who reads or decides approvals.
    Reviewer by reviewer;
    /// A caller with a root, admin, operator or approver key, which a person holds.
    Person by person;
    /// A caller with any key.
    KeyHolder by key_holder;
    /// An agent, which connects with an agent key.
    AgentCaller by agent;
}
