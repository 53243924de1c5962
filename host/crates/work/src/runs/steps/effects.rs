//! The effects of tools, as they are declared now.

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::call::resolve::resolve;
use monstrum_core::call::session::Session;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::call_types::refusal::NotPermitted;
use monstrum_core::checks::Unchecked;
use monstrum_manifest::Effect;

/// Returns the effect of the tool that a call of a bot would run now. Returns `None` if the bot does not have the tool, or if
/// the call has to name a resource. A tool whose plugin makes calls has the effect of these calls, which can be any.
///
/// # Errors
///
/// The host is too busy to find out.
pub(super) async fn declared(app: &App, call: IncomingCall) -> Result<Option<Effect>, Unchecked> {
    let Some(bot) = call.bot() else { return Ok(None) };
    let (snapshot, now, workspace) = (app.policy.load(), app.clock.now(), call.workspace());
    let found = app.calls.ask(workspace, bot, move |effort| {
        let Ok(session) = Session::of(Arc::clone(&snapshot), now, &call) else { return Ok(None) };
        match resolve(&session, &call, effort) {
            Ok(resolved) if resolved.plugin.makes_calls() => Ok(Some(Effect::Write)),
            Ok(resolved) => Ok(Some(resolved.tool().manifest.effect)),
            Err(refused) => match refused.refusal {
                NotPermitted::Overrun(overrun) => Err(overrun),
                NotPermitted::Refused(_) => Ok(None),
            },
        }
    });
    found.await
}
