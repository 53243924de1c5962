//! Rejects query parameters that a route does not define, just as the extractors of bodies reject unknown JSON fields.
//! Otherwise, a request with a misspelt filter would list everything.
//!
//! The parameters of a route come from the API description, so the check and the description cannot differ.

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

/// The path prefixes of routes that ignore unknown parameters. Providers and mail programs add parameters to the URLs
/// of the first three. Routes with the other two prefixes ignore unknown parameters, as the products whose APIs they
/// imitate do.
const LENIENT: [&str; 5] = ["/oauth/begin/", "/oauth/connect/", "/api/oauth/callback", "/api/core/ai/", "/v1/"];

/// The query parameters of each route.
pub(crate) struct Queries(HashMap<(String, Method), BTreeSet<String>>);

/// The maximum number of unknown parameters that an answer names.
const UNKNOWN_MAX: usize = 20;
/// The maximum length of an unknown parameter's name in an answer. Longer names are truncated.
const NAME_CHARS_MAX: usize = 64;

impl Queries {
    /// Reads the parameters of each route from the description.
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
        // The API key has not been checked yet, so the size of the answer is limited.
        let unknown: BTreeSet<String> = url::form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| !known.contains(name.as_ref()))
            .map(|(name, _)| name.chars().take(NAME_CHARS_MAX).collect())
            .take(UNKNOWN_MAX)
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let message = match known.len() {
            0 => "unknown query parameter (this route supports no query parameters)".to_owned(),
            _ => {
                let names: Vec<&str> = known.iter().map(String::as_str).collect();
                format!("unknown query parameter (supported: {})", names.join(", "))
            }
        };
        Err(Problem::invalid(unknown.into_iter().map(|path| InputError { path, message: message.clone() }).collect()))
    }
}

fn names(operation: &Operation) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for parameter in operation.parameters.iter().flatten() {
        // Parameters are inline in their operations. If the description contained a parameter as a reference, the route
        // would reject the parameter as unknown.
        if let RefOr::T(parameter) = parameter
            && matches!(parameter.parameter_in, ParameterIn::Query)
        {
            names.insert(parameter.name.clone());
        }
    }
    names
}

/// Rejects a request with a query parameter that its route does not define.
pub(crate) async fn refuse_unknown(State(queries): State<Arc<Queries>>, request: Request, next: Next) -> Response {
    match queries.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
