//! Who asks for an operation. An interface makes the caller from what it has verified; operations only read it.

use std::ops::Deref;

use monstrum_store::KeyKind;
use monstrum_types::{BotId, KeyId, RequestId, WorkspaceId};

use super::OperationError;
use crate::call_types::incoming::CallerKey;

/// Who is asking.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Names this request in the log and in the audit.
    pub request: RequestId,
    pub key: KeyId,
    /// Of its text: a rotated key keeps its id.
    pub key_hash: [u8; 32],
    pub kind: KeyKind,
    /// The workspace in which the caller acts.
    pub workspace: WorkspaceId,
    /// The bot of a bot key.
    pub bot: Option<BotId>,
}

impl Caller {
    /// The key, for calls that end when it is revoked.
    pub fn caller_key(&self) -> CallerKey {
        CallerKey { id: self.key, hash: self.key_hash }
    }

    /// Only a root key passes. An operation that always needs one takes a [`Root`].
    pub fn root(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Root], "a root key is needed")
    }

    /// Only root and admin keys pass. An operation that always needs one takes an [`Admin`].
    pub fn admin(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Root, KeyKind::Admin], "an admin key is needed")
    }

    /// All but bot keys pass. An operation that always needs this takes an [`Operator`].
    pub fn operator(&self) -> Result<(), OperationError> {
        self.one_of(&[KeyKind::Root, KeyKind::Admin, KeyKind::Operator], "a bot key may only use its own bot's tools")
    }

    /// A bot key passes for its own bot only; any other bot does not exist for it.
    pub fn may_use(&self, bot: BotId) -> Result<(), OperationError> {
        if self.kind == KeyKind::Bot && self.bot != Some(bot) { Err(OperationError::not_found("bot")) } else { Ok(()) }
    }

    fn one_of(&self, kinds: &[KeyKind], why_not: &str) -> Result<(), OperationError> {
        if kinds.contains(&self.kind) { Ok(()) } else { Err(OperationError::forbidden(why_not)) }
    }
}

/// Types of callers that have a right. Only the check of the right makes one.
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
    /// A caller with any key but that of a bot.
    Operator by operator;
}
