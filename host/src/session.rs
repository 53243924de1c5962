//! First stage: who calls, and what is in force for the whole of this call.

use std::sync::Arc;

use monstrum_guardian::Denial;
use monstrum_types::{CallOutcome, Code, UtcMillis};

use crate::authorize::refuse;
use crate::call::{IncomingCall, Refusal};
use crate::policy::{Binding, Bot, Policy, Snapshot};

/// A bot, and the one snapshot by which its call is judged from here to the end.
pub struct Session {
    pub snapshot: Arc<Snapshot>,
    pub bot: Arc<Bot>,
    pub now: UtcMillis,
}

impl Session {
    /// Takes the present snapshot. A snapshot that may lag behind the database is no basis for a decision.
    pub fn open(policy: &Policy, now: UtcMillis, call: &IncomingCall) -> Result<Session, Refusal> {
        if policy.is_stale() {
            let message = "the permissions could not be read; try again";
            return Err(Box::new(CallOutcome::error(Code::Unavailable, message)));
        }
        let snapshot = policy.load();
        let Some(bot) = snapshot.bot(call.workspace, call.bot).cloned() else {
            return Err(refuse(Denial::unknown_tool(&call.tool)));
        };
        Ok(Session { snapshot, bot, now })
    }

    /// The bindings that count at present.
    pub fn bindings(&self) -> impl Iterator<Item = &Arc<Binding>> {
        self.bot.bindings.iter().filter(|binding| binding.is_active(self.now))
    }
}
