//! What was permitted when a request came may be taken back while it waits, or while its answer is under way.

use std::future::Future;

use super::has_switch;
use crate::app::App;
use crate::gateway::extract::Caller;
use crate::gateway::problem::Problem;

/// What is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenBack {
    Key,
    Switch,
}

impl TakenBack {
    pub(super) fn reason(self) -> &'static str {
        match self {
            TakenBack::Key => "its key is gone",
            TakenBack::Switch => "the switch use_agent_sandbox of its bot is off",
        }
    }
}

impl From<TakenBack> for Problem {
    fn from(taken: TakenBack) -> Problem {
        match taken {
            TakenBack::Key => Problem::unauthenticated("this key does not exist any more"),
            TakenBack::Switch => Problem::forbidden("the switch use_agent_sandbox of this bot is off"),
        }
    }
}

/// Waits until the key that the caller came with is gone or rotated, or the switch of its bot is off.
pub(super) async fn taken_back(app: &App, caller: &Caller) -> TakenBack {
    // Before the first look, so that no change falls between the two.
    let mut renewals = app.policy.renewals();
    loop {
        let snapshot = app.policy.load();
        if snapshot.key_hash(caller.key) != Some(&caller.key_hash) {
            return TakenBack::Key;
        }
        if caller.bot.is_some_and(|bot| !has_switch(&snapshot, caller.workspace, bot)) {
            return TakenBack::Switch;
        }
        if renewals.changed().await.is_err() {
            // The policy outlives what is asked by it.
            std::future::pending::<()>().await;
        }
    }
}

/// The work, as long as the caller may have it done.
pub(super) async fn guarded<T>(
    app: &App,
    caller: &Caller,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    tokio::select! {
        biased;
        taken = taken_back(app, caller) => Err(taken.into()),
        done = work => done,
    }
}
