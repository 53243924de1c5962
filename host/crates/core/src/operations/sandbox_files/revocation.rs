//! Revocation while a request waits or its answer is sent: the key of the request is deleted or rotated, or the sandbox
//! switch of its bot is turned off.

use std::future::Future;

use super::has_switch;
use crate::app::App;
use crate::operations::{Caller, OperationError};

/// The revoked permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    Key,
    Switch,
}

impl Revoked {
    /// Returns the reason for the log.
    pub fn reason(self) -> &'static str {
        match self {
            Revoked::Key => "the key of the request was deleted or rotated",
            Revoked::Switch => "the switch `use_agent_sandbox` of the bot is off",
        }
    }
}

impl From<Revoked> for OperationError {
    fn from(revoked: Revoked) -> OperationError {
        match revoked {
            Revoked::Key => OperationError::Unauthenticated("this key was deleted or rotated".to_owned()),
            Revoked::Switch => {
                OperationError::forbidden("the switch `use_agent_sandbox` of this bot is off; turn it on first")
            }
        }
    }
}

/// Waits until the caller's key is deleted or rotated, or the sandbox switch of its bot is turned off.
pub async fn revoked(app: &App, caller: &Caller) -> Revoked {
    // The subscription precedes the first check, so that no change is missed.
    let mut renewals = app.policy.renewals();
    loop {
        let snapshot = app.policy.load();
        if !caller.is_known(&snapshot, app.clock.now()) {
            return Revoked::Key;
        }
        if caller.bot.is_some_and(|bot| !has_switch(&snapshot, caller.workspace, bot)) {
            return Revoked::Switch;
        }
        if renewals.changed().await.is_err() {
            // The policy outlives all requests.
            std::future::pending::<()>().await;
        }
    }
}

/// Runs `work`, and ends it with an error if the caller's permission is revoked.
pub async fn guarded<T, E: From<OperationError>>(
    app: &App,
    caller: &Caller,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        biased;
        reason = revoked(app, caller) => Err(OperationError::from(reason).into()),
        done = work => done,
    }
}
