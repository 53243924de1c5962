//! Query parameters that a route does not know are refused, as unknown JSON fields are: a filter that is misspelt would
//! otherwise list everything.
//!
//! What a route knows is what the description says of it, so that the two cannot differ.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use monstrum_types::InputError;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use crate::gateway::http::problem::Problem;

/// Routes that ignore what they do not know: a browser comes to the first two with what a provider or a mail program has
/// added, and the others keep the habits of the products whose shape they have.
const LENIENT: [&str; 4] = ["/oauth/begin/", "/api/oauth/callback", "/api/core/ai/", "/v1/"];

/// The query parameters of each route.
pub(crate) struct Queries(HashMap<(String, Method), BTreeSet<String>>);

/// How many unknown parameters an answer names, and how much of each name.
const UNKNOWN_MAX: usize = 20;
const NAME_CHARS_MAX: usize = 64;

impl Queries {
    /// Those that the description names.
    pub(crate) fn of(description: &OpenApi) -> Arc<Queries> {
        let mut known = HashMap::new();
        for (path, item) in &description.paths.paths {
            if LENIENT.iter().any(|lenient| path.starts_with(lenient)) {
                continue;
            }
            let operations = [
                (Method::GET, &item.get),
                (Method::HEAD, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in operations {
                if let Some(operation) = operation {
                    known.insert((path.clone(), method), names(operation));
                }
            }
        }
        Arc::new(Queries(known))
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let Some(query) = request.uri().query() else { return Ok(()) };
        let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok(()) };
        let route = (path.as_str().to_owned(), request.method().clone());
        let Some(known) = self.0.get(&route) else { return Ok(()) };
        // No key has been looked at yet: the answer stays small for every query.
        let unknown: BTreeSet<String> = url::form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| !known.contains(name.as_ref()))
            .map(|(name, _)| name.chars().take(NAME_CHARS_MAX).collect())
            .take(UNKNOWN_MAX)
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let message = match known.len() {
            0 => "unknown query parameter; this route has none".to_owned(),
            _ => {
                let names: Vec<&str> = known.iter().map(String::as_str).collect();
                format!("unknown query parameter; this route has {}", names.join(", "))
            }
        };
        Err(Problem::invalid(unknown.into_iter().map(|path| InputError { path, message: message.clone() }).collect()))
    }
}

fn names(operation: &Operation) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for parameter in operation.parameters.iter().flatten() {
        // Parameters stand in their operations; one behind a reference would be a name that is not known.
        if let RefOr::T(parameter) = parameter
            && matches!(parameter.parameter_in, ParameterIn::Query)
        {
            names.insert(parameter.name.clone());
        }
    }
    names
}

/// Refuses a request with a query parameter that its route does not know.
pub(crate) async fn refuse_unknown(State(queries): State<Arc<Queries>>, request: Request, next: Next) -> Response {
    match queries.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
