//! The results of handlers.

use axum::Json;
use http::StatusCode;

use crate::gateway::http::problem::Problem;

/// An answer with status 200.
pub(crate) type Answer<T> = Result<Json<T>, Problem>;

/// An answer with a status, which is 201 when the handler created an object.
pub(crate) type Created<T> = Result<(StatusCode, Json<T>), Problem>;

/// A status without a body.
pub(crate) type Done = Result<StatusCode, Problem>;
