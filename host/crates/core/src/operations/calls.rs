//! Hands calls of every kind from an interface to the pipeline, and returns their outcomes.

use monstrum_api::tools::CallResult;
use monstrum_types::CallOutcome;

use super::OperationError;
use crate::app::App;
use crate::audit::AuditUnavailable;
use crate::call::CallAnswer;
use crate::call_types::incoming::IncomingCall;

/// Runs a call and returns its outcome. A call that never ran is an error.
pub async fn run(app: &App, call: IncomingCall) -> Result<CallResult, OperationError> {
    let CallAnswer { request_id, outcome, duration_ms } = answer(app, call).await?;
    if let Some(retry_after) = outcome.retry_after {
        let message = outcome.message.unwrap_or_else(|| "too many calls".to_owned());
        return Err(OperationError::RateLimited { message, retry_after });
    }
    let CallOutcome { status, code, message, data, approval, authorization, .. } = outcome;
    let (approval, authorization) = (approval.map(|it| *it), authorization.map(|it| *it));
    Ok(CallResult { request_id, status, code, message, data, approval, authorization, duration_ms })
}

/// Runs a call and returns everything that is known about its outcome. A call over a rate limit is an outcome too.
pub async fn answer(app: &App, call: IncomingCall) -> Result<CallAnswer, OperationError> {
    let answer = app.calls.run(call).await;
    answer.map_err(|AuditUnavailable| OperationError::unavailable("the audit cannot be written; try again later"))
}
