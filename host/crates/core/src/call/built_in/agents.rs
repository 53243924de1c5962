//! Calls of tools of remote agents.

use monstrum_guardian::Permit;
use monstrum_types::{CallOutcome, Code};

use crate::call::permitted::Execution;

/// Runs a tool of a remote agent.
pub async fn run(_execution: &Execution<'_>, _permit: &Permit) -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "this server cannot run the tool")
}
